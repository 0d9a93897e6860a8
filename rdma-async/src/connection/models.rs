//! Loom models of what futures share with the thread that polls: the requests of a connection, and
//! the tasks that wait for credits, room and messages. They explore every interleaving of the
//! threads, and every value that their loads may return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom_models" cargo test --release -p rdma-async --lib connection::models
//! ```

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Arc, Notify};
use loom::thread::{self, JoinHandle};

use super::credits::CreditCounter;
use super::inbox::Inbox;
use super::results::ResultSlot;
use super::send_state::{AwaitedBy, Posted, SendState};
use super::sender::Sender;
use super::waiters::Waiters;

/// Number of requests in flight, in place of the device's send queue. Changed only under the lock
/// of the sender.
#[derive(Debug, Clone, Default)]
struct InFlight(std::sync::Arc<AtomicUsize>);

impl Posted for InFlight {
    fn in_flight(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Send side of a connection, and the device behind it.
#[derive(Debug)]
struct Requests {
    sender: Sender<InFlight>,
    device: InFlight,
}

impl Deref for Requests {
    type Target = Sender<InFlight>;

    fn deref(&self) -> &Self::Target {
        &self.sender
    }
}

impl Requests {
    fn new(limit: usize) -> Arc<Self> {
        let device = InFlight::default();
        let sender = Sender::with(SendState::new(device.clone(), limit, limit));
        // Allocates the places of results, which must not happen in two threads.
        let place = sender.results.reserve().expect("every place is free");
        sender.results.release(place);
        Arc::new(Self { sender, device })
    }

    /// Accepts a request that a future waits for. Returns its number, or `None` if there is no
    /// room.
    fn begin(&self, place: Option<ResultSlot>) -> Option<u64> {
        let mut state = self.lock();
        state.has_room().then(|| {
            self.device.0.fetch_add(1, Ordering::Relaxed);
            state
                .count(AwaitedBy::Future, place.is_some(), place)
                .number
        })
    }

    /// Accepts an atomic. Returns its number and the place of its result.
    fn begin_atomic(&self) -> (u64, ResultSlot) {
        let place = self.results.reserve().expect("a place is free");
        let number = self.begin(Some(place)).expect("there is room");
        (number, place)
    }

    /// Ends the next request, as the thread that polls does. `value` is the result of an atomic.
    fn complete(&self, is_success: bool, value: u64) {
        let mut wakes = Vec::new();
        let has_ended = self.end(is_success, |state| {
            self.device.0.fetch_sub(1, Ordering::Relaxed);
            if let Some(place) = state.next_place() {
                self.results.set(place, value);
            }
            state.end(1, &mut wakes)
        });
        assert!(has_ended);
        let [room, _] = self.waiters();
        room.wake_in_order();
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Polls for the end of a request, as its future does. Resolves to `true` if the request
    /// succeeded.
    fn poll(&self, number: u64, waker: &Waker) -> Poll<bool> {
        if self.has_ended(number) || self.register(number, waker) {
            Poll::Ready(self.has_ended(number) && self.has_succeeded(number))
        } else {
            Poll::Pending
        }
    }

    /// Waits for the end of a request. Returns `true` if the request succeeded.
    fn wait(&self, number: u64) -> bool {
        block_on(poll_fn(|cx| self.poll(number, cx.waker())))
    }

    /// Asserts that nothing of an earlier future is left.
    fn assert_idle(&self) {
        let state = self.lock();
        assert!(state.is_settled() && !state.is_awaited());
        drop(state);
        let first = self.results.reserve().expect("a place is free");
        assert_eq!(first, ResultSlot::FIRST, "every place is free");
    }
}

/// Wakes a thread of a model.
#[derive(Debug, Default)]
struct Unpark(Notify);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Runs a future on this thread. A future that is never woken is a deadlock, which ends the model.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let unpark = std::sync::Arc::new(Unpark::default());
    let waker = Waker::from(std::sync::Arc::clone(&unpark));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        unpark.0.wait();
    }
}

fn spawn(act: impl FnOnce() + 'static) -> JoinHandle<()> {
    thread::spawn(act)
}

/// Runs `act` with the requests on another thread.
fn beside(requests: &Arc<Requests>, act: impl FnOnce(&Requests) + 'static) -> JoinHandle<()> {
    let requests = Arc::clone(requests);
    spawn(move || act(&requests))
}

#[test]
fn a_completion_is_never_missed() {
    loom::model(|| {
        let requests = Requests::new(1);
        let (number, place) = requests.begin_atomic();
        let device = beside(&requests, |requests| requests.complete(true, 7));
        assert!(requests.wait(number));
        assert_eq!(requests.value(place), 7);
        requests.release_result(place);
        device.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    loom::model(|| {
        let requests = Requests::new(1);
        let number = requests.begin(None).unwrap();
        let device = beside(&requests, |requests| requests.complete(true, 0));
        // The task that polled first has passed the future on.
        let _ = requests.poll(number, Waker::noop());
        assert!(requests.wait(number));
        device.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn a_future_of_a_failed_request_sees_the_failure() {
    loom::model(|| {
        let requests = Requests::new(2);
        let first = requests.begin(None).unwrap();
        let second = requests.begin(None).unwrap();
        let device = beside(&requests, |requests| {
            requests.complete(true, 0);
            requests.complete(false, 0);
        });
        assert!(!requests.wait(second));
        assert!(requests.wait(first));
        device.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn a_dropped_future_leaves_the_next_request_in_its_slot_alone() {
    loom::model(|| {
        let requests = Requests::new(1);
        let (old, place) = requests.begin_atomic();
        let dropping = beside(&requests, move |requests| requests.detach(old, Some(place)));
        requests.complete(true, 7);
        let (new, place) = requests.begin_atomic();
        let _ = requests.poll(new, Waker::noop());
        dropping.join().unwrap();
        assert!(requests.lock().is_awaited(), "the new request has a future");
        requests.complete(true, 8);
        assert!(requests.wait(new));
        assert_eq!(requests.value(place), 8);
        requests.release_result(place);
        requests.assert_idle();
    });
}

/// Checks that a dropped atomic, which completes afterwards, gives its place to the next atomic,
/// and that the future of the latter gets the right result.
#[test]
fn a_place_for_a_result_is_used_again_while_its_first_request_completes() {
    loom::model(|| {
        let requests = Requests::new(2);
        let (first, place) = requests.begin_atomic();
        let device = beside(&requests, |requests| requests.complete(true, 7));
        requests.detach(first, Some(place));
        let (second, again) = requests.begin_atomic();
        assert_eq!(place, again);
        device.join().unwrap();
        assert!(!requests.has_ended(second));
        requests.complete(true, 8);
        assert!(requests.wait(second));
        assert_eq!(requests.value(again), 8);
        requests.release_result(again);
        requests.assert_idle();
    });
}

#[test]
fn requests_that_the_device_never_got_fail() {
    loom::model(|| {
        let requests = Requests::new(2);
        let posted = requests.begin(None).unwrap();
        let staged = requests.begin(None).unwrap();
        // The device has only the first.
        requests.device.0.fetch_sub(1, Ordering::Relaxed);
        let failing = beside(&requests, |requests| {
            requests.give_up();
            requests.complete(true, 0);
        });
        assert!(!requests.wait(staged));
        assert!(requests.was_given_up(staged));
        assert!(requests.wait(posted));
        failing.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn a_future_does_not_wait_for_completions_that_are_not_announced() {
    loom::model(|| {
        let requests = Requests::new(1);
        let number = requests.begin(None).unwrap();
        let ending = beside(&requests, |requests| requests.end_waits());
        assert!(!requests.wait(number));
        assert!(!requests.has_ended(number));
        ending.join().unwrap();
    });
}

#[test]
fn a_slot_that_a_completion_frees_is_used_by_who_waits_for_room() {
    loom::model(|| {
        let requests = Requests::new(1);
        let first = requests.begin(None).unwrap();
        let device = beside(&requests, |requests| requests.complete(true, 0));
        let [room, _] = requests.waiters();
        let second = block_on(room.wait_for(|| requests.begin(None)));
        assert_eq!(second, first + 1);
        device.join().unwrap();
        assert!(requests.wait(first));
        requests.complete(true, 0);
        assert!(requests.wait(second));
        requests.assert_idle();
    });
}

#[test]
fn a_place_for_a_result_that_is_released_is_taken_by_who_waits_for_it() {
    loom::model(|| {
        let requests = Requests::new(1);
        let places: Vec<_> = std::iter::from_fn(|| requests.results.reserve()).collect();
        let place = places[3];
        let releasing = beside(&requests, move |requests| requests.release_result(place));
        let [_, result_free] = requests.waiters();
        let taken = block_on(result_free.wait_for(|| requests.results.reserve()));
        assert_eq!(taken, place);
        releasing.join().unwrap();
    });
}

#[test]
fn a_credit_that_is_given_is_taken_by_who_waits_for_it() {
    loom::model(|| {
        let credits = Arc::new(CreditCounter::new(1));
        assert!(credits.try_take(0));
        let giving = {
            let credits = Arc::clone(&credits);
            spawn(move || assert!(credits.give(1)))
        };
        let taken = || credits.try_take(0).then_some(());
        block_on(credits.waiters().wait_for(taken));
        giving.join().unwrap();
        assert!(!credits.try_take(0), "it is taken once");
    });
}

#[test]
fn a_message_that_arrives_is_taken_by_who_waits_for_it() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let arriving = {
            let inbox = Arc::clone(&inbox);
            spawn(move || assert!(inbox.push(7)))
        };
        assert_eq!(block_on(inbox.waiters().wait_for(|| inbox.pop())), 7);
        arriving.join().unwrap();
    });
}

/// Checks that a task that stops waiting, after a change that both wait for, does not take the wake
/// of the other task with it.
#[test]
fn a_waiter_that_is_dropped_takes_no_wake_from_the_others() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(1));
        let mut dropped = Box::pin({
            let inbox = Arc::clone(&inbox);
            async move { inbox.waiters().wait_for(|| inbox.pop()).await }
        });
        let mut context = Context::from_waker(Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        let arriving = {
            let inbox = Arc::clone(&inbox);
            spawn(move || assert!(inbox.push(7)))
        };
        drop(dropped);
        assert_eq!(block_on(inbox.waiters().wait_for(|| inbox.pop())), 7);
        arriving.join().unwrap();
    });
}

#[test]
fn a_wake_between_two_attempts_is_not_lost() {
    loom::model(|| {
        let waiters = Arc::new(Waiters::default());
        let changes = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let changing = {
            let (waiters, changes) = (Arc::clone(&waiters), Arc::clone(&changes));
            spawn(move || {
                for _ in 0..2 {
                    changes.fetch_add(1, Ordering::Relaxed);
                    waiters.wake();
                }
            })
        };
        block_on(waiters.wait_for(|| (changes.load(Ordering::Relaxed) == 2).then_some(())));
        changing.join().unwrap();
    });
}
