//! The calls that are in progress on a connection, and the delivery of their answers.

use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::Error;
use crate::failure::Failure;
use crate::message::Payload;

/// The outcome of a call.
#[derive(Debug)]
pub(super) enum Answer {
    Response {
        codec: u8,
        payload: Payload,
    },
    Failure(Failure),
    /// The connection has ended, for this reason, before an answer arrived.
    Ended(Error),
}

/// The slots of the calls in progress, one for each call.
///
/// The id of a call consists of the index of its slot and of the slot's generation, which changes with
/// each use. An answer to an abandoned call therefore matches no later call.
#[derive(Debug)]
pub(super) struct Calls {
    places: Box<[Mutex<Place>]>,
    free: ArrayQueue<u32>,
    /// One permit for each free slot.
    room: Semaphore,
    end: OnceLock<Error>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Free,
    Waiting(Option<Waker>),
    Answered(Answer),
}

impl Calls {
    /// Creates slots for at most `capacity` concurrent calls (minimum 1).
    pub(super) fn new(capacity: u16) -> Self {
        let capacity = capacity.max(1);
        let free = ArrayQueue::new(usize::from(capacity));
        for index in 0..u32::from(capacity) {
            free.push(index).expect("there is room for all of them");
        }
        let place = || {
            Mutex::new(Place {
                generation: 0,
                state: State::Free,
            })
        };
        Self {
            places: std::iter::repeat_with(place).take(free.len()).collect(),
            room: Semaphore::new(free.len()),
            free,
            end: OnceLock::new(),
        }
    }

    /// Waits for a free slot and starts a call in it. Fails if the connection has ended.
    pub(super) async fn begin(&self) -> Result<PendingCall<'_>, Error> {
        let permit = match self.room.try_acquire() {
            Ok(permit) => permit,
            Err(_) => match self.room.acquire().await {
                Ok(permit) => permit,
                Err(_closed) => return Err(self.ended()),
            },
        };
        let index = self
            .free
            .pop()
            .expect("there are no more permits than free places");
        let mut place = self.places[index as usize].lock();
        place.state = State::Waiting(None);
        let id = u64::from(place.generation) << 32 | u64::from(index);
        drop(place);
        let call = PendingCall {
            calls: self,
            id,
            _permit: permit,
        };
        // Checked after the slot is in the state `Waiting`: either this check sees the end that `fail`
        // has set, or `fail` sees the waiting slot.
        match self.end() {
            Some(end) => Err(end.clone()),
            None => Ok(call),
        }
    }

    /// Delivers an answer to the call with this id. Returns `false` if no such call waits for an
    /// answer.
    pub(super) fn answer(&self, id: u64, answer: Answer) -> bool {
        // The index is the low half of the id, the generation the high one.
        let (index, generation) = (id as u32, (id >> 32) as u32);
        let Some(place) = self.places.get(index as usize) else {
            return false;
        };
        let mut place = place.lock();
        if place.generation != generation {
            return false;
        }
        place.answer(answer)
    }

    /// Ends all waiting and future calls with the error `end`. Only the first call of this function has
    /// an effect.
    pub(super) fn fail(&self, end: Error) {
        if self.end.set(end).is_err() {
            return;
        }
        self.room.close();
        for place in &self.places {
            place.lock().answer(Answer::Ended(self.ended()));
        }
    }

    /// Returns the error that [`Self::fail`] was called with, if it was.
    pub(super) fn end(&self) -> Option<&Error> {
        self.end.get()
    }

    fn ended(&self) -> Error {
        self.end
            .get()
            .cloned()
            .expect("the end is known before anybody is told")
    }
}

impl Place {
    fn answer(&mut self, answer: Answer) -> bool {
        let State::Waiting(waker) = &mut self.state else {
            return false;
        };
        let waker = waker.take();
        self.state = State::Answered(answer);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// A call that waits for its answer. Dropping this value abandons the call: its slot becomes free, and
/// a later answer is discarded.
#[derive(Debug)]
#[must_use = "a call that is dropped is given up"]
pub(super) struct PendingCall<'c> {
    calls: &'c Calls,
    id: u64,
    /// Released after `drop` has freed the slot.
    _permit: SemaphorePermit<'c>,
}

impl PendingCall<'_> {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the answer.
    pub(super) async fn answer(self) -> Answer {
        std::future::poll_fn(|cx| self.poll_answer(cx)).await
    }

    fn poll_answer(&self, cx: &Context<'_>) -> Poll<Answer> {
        let mut place = self.place().lock();
        match &mut place.state {
            State::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            State::Answered(_) | State::Free => {
                match std::mem::replace(&mut place.state, State::Free) {
                    State::Answered(answer) => Poll::Ready(answer),
                    _ => unreachable!("a pending call's place is its own, and taken from once"),
                }
            }
        }
    }

    fn place(&self) -> &Mutex<Place> {
        // The index is the low half of the id.
        &self.calls.places[self.id as u32 as usize]
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        let left = {
            let mut place = self.place().lock();
            place.generation = place.generation.wrapping_add(1);
            std::mem::replace(&mut place.state, State::Free)
        };
        drop(left);
        let full = self.calls.free.push(self.id as u32);
        debug_assert!(full.is_ok(), "there are no more places than were taken");
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls a pinned future once, with a waker that counts its wakeups.
    macro_rules! poll {
        ($future:expr, $counter:expr) => {
            $future
                .as_mut()
                .poll(&mut Context::from_waker(&Waker::from(Arc::clone($counter))))
        };
    }

    fn begin(calls: &Calls) -> PendingCall<'_> {
        let counter = Arc::new(Counter::default());
        match poll!(pin!(calls.begin()), &counter) {
            Poll::Ready(Ok(call)) => call,
            other => panic!("a call that can begin: {other:?}"),
        }
    }

    #[test]
    fn answers_reach_their_calls_in_any_order() {
        let calls = Calls::new(3);
        let (first, second) = (begin(&calls), begin(&calls));
        let (first_id, second_id) = (first.id(), second.id());
        let counter = Arc::new(Counter::default());
        let (mut first, mut second) = (pin!(first.answer()), pin!(second.answer()));
        assert!(poll!(first, &counter).is_pending() && poll!(second, &counter).is_pending());
        assert!(calls.answer(second_id, Answer::Failure(Failure::Panicked)));
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(poll!(first, &counter).is_pending());
        assert!(calls.answer(first_id, Answer::Failure(Failure::Overloaded)));
        assert!(matches!(
            poll!(first, &counter),
            Poll::Ready(Answer::Failure(Failure::Overloaded))
        ));
        assert!(matches!(
            poll!(second, &counter),
            Poll::Ready(Answer::Failure(Failure::Panicked))
        ));
    }

    #[test]
    fn late_repeated_and_invented_answers_are_nobodys() {
        let calls = Calls::new(1);
        let given_up = begin(&calls).id();
        let current = begin(&calls);
        let answer = || Answer::Failure(Failure::Panicked);
        assert_ne!(given_up, current.id());
        assert!(!calls.answer(given_up, answer()));
        assert!(!calls.answer(7, answer()));
        assert!(!calls.answer(u64::MAX, answer()));
        assert!(calls.answer(current.id(), answer()));
        assert!(!calls.answer(current.id(), answer()));
    }

    #[test]
    fn more_calls_than_places_wait_their_turn() {
        let calls = Calls::new(1);
        let counter = Arc::new(Counter::default());
        let first = begin(&calls);
        let mut second = pin!(calls.begin());
        assert!(poll!(second, &counter).is_pending());
        drop(first);
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(matches!(poll!(second, &counter), Poll::Ready(Ok(_))));
    }

    #[test]
    fn an_end_is_everybodys() {
        let calls = Calls::new(2);
        let counter = Arc::new(Counter::default());
        let mut waiting = pin!(begin(&calls).answer());
        let _other = begin(&calls);
        let mut queued = pin!(calls.begin());
        assert!(poll!(waiting, &counter).is_pending() && poll!(queued, &counter).is_pending());
        calls.fail(Error::ShuttingDown);
        assert!(matches!(
            poll!(waiting, &counter),
            Poll::Ready(Answer::Ended(Error::ShuttingDown))
        ));
        assert!(matches!(
            poll!(queued, &counter),
            Poll::Ready(Err(Error::ShuttingDown))
        ));
        let mut later = pin!(calls.begin());
        assert!(matches!(
            poll!(later, &counter),
            Poll::Ready(Err(Error::ShuttingDown))
        ));
    }
}
