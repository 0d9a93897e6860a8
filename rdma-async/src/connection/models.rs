//! Loom models of the state that futures share with the polling thread: the requests of a
//! connection, and the tasks that wait for credits, room and messages. Loom explores every
//! interleaving of the threads, and every value that an atomic load may return.
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

/// Number of requests that the simulated device has not completed. Replaces a device's send queue
/// in the loom models, the tests of all thread interleavings. Changed only while the lock of
/// [`Sender`] is held.
#[derive(Debug, Clone, Default)]
struct InFlight(std::sync::Arc<AtomicUsize>);

impl Posted for InFlight {
    fn in_flight(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Send side of a connection for the loom models, which check all interleavings of threads that
/// post and complete requests. A counter of requests in flight replaces the device.
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
        // Allocates the result slots here, because two threads must not allocate them.
        let slot = sender.results.reserve().expect("every slot is free");
        sender.results.release(slot);
        Arc::new(Self { sender, device })
    }

    /// Adds a request, for which a future waits, to the send queue. Counts the request as posted to
    /// the simulated device immediately. `slot` is the slot for the result of an atomic operation.
    /// Returns the number of the request, or `None` if the queue has no room.
    fn begin(&self, slot: Option<ResultSlot>) -> Option<u64> {
        let mut state = self.lock();
        state.has_room().then(|| {
            self.device.0.fetch_add(1, Ordering::Relaxed);
            state.count(AwaitedBy::Future, slot.is_some(), slot).number
        })
    }

    /// Adds the request of an atomic operation (such as fetch-and-add), for which a future waits.
    /// Returns the number of the request, and the slot in which [`Self::complete`] stores the
    /// result.
    fn begin_atomic(&self) -> (u64, ResultSlot) {
        let slot = self.results.reserve().expect("a slot is free");
        let number = self.begin(Some(slot)).expect("there is room");
        (number, slot)
    }

    /// Ends the oldest request of the send queue in the model, as the thread that polls for
    /// completions does. `is_success` is the outcome of the request. `value` is its result if the
    /// request is an atomic operation.
    fn complete(&self, is_success: bool, value: u64) {
        let mut wakes = Vec::new();
        let has_ended = self.end(is_success, |state| {
            self.device.0.fetch_sub(1, Ordering::Relaxed);
            if let Some(slot) = state.next_slot() {
                self.results.set(slot, value);
            }
            state.end(1, &mut wakes)
        });
        assert!(has_ended);
        let [room, _] = self.waiters();
        room.wake_without_fence();
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Polls the request `number` once, as the future does that waits for this request. Returns
    /// `true` if the request was successful. Returns `false` if the request has failed, or if no
    /// thread polls for its completion any more. If the request has not ended, registers `waker`,
    /// which is woken at the end of the request.
    fn poll(&self, number: u64, waker: &Waker) -> Poll<bool> {
        if self.has_ended(number) || self.register(number, waker) {
            Poll::Ready(self.has_ended(number) && self.has_succeeded(number))
        } else {
            Poll::Pending
        }
    }

    /// Waits until the request `number` ends, or until no thread polls for its completion any more.
    /// Returns `true` if the request was successful.
    fn wait(&self, number: u64) -> bool {
        block_on(poll_fn(|cx| self.poll(number, cx.waker())))
    }

    /// Asserts that no request, waker or result slot is in use.
    fn assert_idle(&self) {
        let state = self.lock();
        assert!(state.is_idle() && !state.is_awaited());
        drop(state);
        let first = self.results.reserve().expect("a slot is free");
        assert_eq!(first, ResultSlot::FIRST, "every slot is free");
    }
}

/// Waker for a future in a loom model (a test of all thread interleavings). Wakes the model's
/// thread that waits for the future.
#[derive(Debug, Default)]
struct Unpark(Notify);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Runs a future on this thread. If the future is never woken, loom reports a deadlock.
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

/// Runs `act` on another thread of the loom model. Returns the handle by which the thread is
/// joined.
fn spawn(act: impl FnOnce() + 'static) -> JoinHandle<()> {
    thread::spawn(act)
}

/// Runs `act` with `requests` on another thread of the loom model. Returns the handle by which the
/// thread is joined.
fn spawn_with(requests: &Arc<Requests>, act: impl FnOnce(&Requests) + 'static) -> JoinHandle<()> {
    let requests = Arc::clone(requests);
    spawn(move || act(&requests))
}

#[test]
fn a_completion_is_never_missed() {
    loom::model(|| {
        let requests = Requests::new(1);
        let (number, slot) = requests.begin_atomic();
        let device = spawn_with(&requests, |requests| requests.complete(true, 7));
        assert!(requests.wait(number));
        assert_eq!(requests.value(slot), 7);
        requests.release_result(slot);
        device.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    loom::model(|| {
        let requests = Requests::new(1);
        let number = requests.begin(None).unwrap();
        let device = spawn_with(&requests, |requests| requests.complete(true, 0));
        // The waker of an earlier poll, which the next poll replaces.
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
        let device = spawn_with(&requests, |requests| {
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
fn a_dropped_future_does_not_change_a_request_that_reuses_its_state() {
    loom::model(|| {
        let requests = Requests::new(1);
        let (old, slot) = requests.begin_atomic();
        let dropping = spawn_with(&requests, move |requests| requests.detach(old, Some(slot)));
        requests.complete(true, 7);
        let (new, slot) = requests.begin_atomic();
        let _ = requests.poll(new, Waker::noop());
        dropping.join().unwrap();
        assert!(requests.lock().is_awaited(), "the new request has a future");
        requests.complete(true, 8);
        assert!(requests.wait(new));
        assert_eq!(requests.value(slot), 8);
        requests.release_result(slot);
        requests.assert_idle();
    });
}

/// Checks that an atomic operation can reuse the result slot of an earlier operation that has not
/// completed. Dropping the future of the earlier operation frees the slot immediately. The future
/// of the later operation must get the result of the later operation.
#[test]
fn a_result_slot_can_be_reused_while_its_first_request_completes() {
    loom::model(|| {
        let requests = Requests::new(2);
        let (first, slot) = requests.begin_atomic();
        let device = spawn_with(&requests, |requests| requests.complete(true, 7));
        requests.detach(first, Some(slot));
        let (second, again) = requests.begin_atomic();
        assert_eq!(slot, again);
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
fn requests_that_were_never_posted_fail() {
    loom::model(|| {
        let requests = Requests::new(2);
        let posted = requests.begin(None).unwrap();
        let staged = requests.begin(None).unwrap();
        // The device has only accepted the first request.
        requests.device.0.fetch_sub(1, Ordering::Relaxed);
        let failing = spawn_with(&requests, |requests| {
            requests.cancel_staged();
            requests.complete(true, 0);
        });
        assert!(!requests.wait(staged));
        assert!(requests.was_cancelled(staged));
        assert!(requests.wait(posted));
        failing.join().unwrap();
        requests.assert_idle();
    });
}

#[test]
fn a_future_does_not_wait_after_the_end_of_waits() {
    loom::model(|| {
        let requests = Requests::new(1);
        let number = requests.begin(None).unwrap();
        let ending = spawn_with(&requests, |requests| requests.end_waits());
        assert!(!requests.wait(number));
        assert!(!requests.has_ended(number));
        ending.join().unwrap();
    });
}

#[test]
fn room_that_a_completion_frees_is_used_by_a_waiting_task() {
    loom::model(|| {
        let requests = Requests::new(1);
        let first = requests.begin(None).unwrap();
        let device = spawn_with(&requests, |requests| requests.complete(true, 0));
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
fn a_released_result_slot_is_reserved_by_a_waiting_task() {
    loom::model(|| {
        let requests = Requests::new(1);
        let slots: Vec<_> = std::iter::from_fn(|| requests.results.reserve()).collect();
        let slot = slots[3];
        let releasing = spawn_with(&requests, move |requests| requests.release_result(slot));
        let [_, result_free] = requests.waiters();
        let taken = block_on(result_free.wait_for(|| requests.results.reserve()));
        assert_eq!(taken, slot);
        releasing.join().unwrap();
    });
}

#[test]
fn a_returned_credit_is_taken_by_a_waiting_task() {
    loom::model(|| {
        let credits = Arc::new(CreditCounter::new(1));
        assert!(credits.try_take(0));
        let returning = {
            let credits = Arc::clone(&credits);
            spawn(move || assert!(credits.add(1)))
        };
        let taken = || credits.try_take(0).then_some(());
        block_on(credits.waiters().wait_for(taken));
        returning.join().unwrap();
        assert!(!credits.try_take(0), "the credit is taken once");
    });
}

#[test]
fn a_received_message_is_taken_by_a_waiting_task() {
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

/// Checks that dropping a waiting task does not consume a wakeup that another waiting task needs.
#[test]
fn a_dropped_waiter_does_not_consume_the_wakeup_of_others() {
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
fn a_wakeup_between_two_attempts_is_not_lost() {
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
