//! Handing requests to the device, and learning that they have ended.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};
use rdma_core::{SendQueue, WorkCompletion, WorkError, WorkStatus};

use super::Connection;
use super::operation::Operation;
use super::results::{Place, Results};
use super::send_state::{Accepted, Attendance, Departure, NotAccepted, SendState};
use super::waiters::Waiters;
use super::work::{Memory, Push, Work};
use crate::error::Result;

/// The send side of a connection.
#[derive(Debug)]
pub(super) struct Sender {
    state: Mutex<SendState>,
    /// Number of requests that have ended by a completion.
    ended: AtomicU64,
    /// Number of the first request that failed; no request has the greatest number.
    failed_from: AtomicU64,
    /// Number of the first request that was given up before the device had it.
    given_up_from: AtomicU64,
    /// The request that failed first, unless the device only flushed it.
    first_failure: OnceLock<(u64, WorkError)>,
    /// Wakes those who wait until a request can be accepted.
    room: Waiters,
    results: Results,
    result_free: Waiters,
    /// Set if completions are not announced any more: who waits for one must not.
    forsaken: AtomicBool,
}

impl Sender {
    /// Creates the send side of a connection, with at most `limit` requests that have not ended.
    pub(super) fn new(queue: SendQueue<Memory>, limit: usize) -> Self {
        Self {
            state: Mutex::new(SendState::new(queue, limit)),
            ended: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
            given_up_from: AtomicU64::new(u64::MAX),
            first_failure: OnceLock::new(),
            room: Waiters::default(),
            results: Results::new(),
            result_free: Waiters::default(),
            forsaken: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SendState> {
        self.state.lock()
    }

    pub(super) fn waiters(&self) -> [&Waiters; 2] {
        [&self.room, &self.result_free]
    }

    /// Returns whether a request has ended, in whatever way.
    #[inline]
    pub(super) fn has_ended(&self, number: u64) -> bool {
        number < self.ended.load(Ordering::Acquire)
            || number >= self.given_up_from.load(Ordering::Acquire)
    }

    /// Returns whether a request that has ended succeeded.
    #[inline]
    pub(super) fn has_succeeded(&self, number: u64) -> bool {
        number < self.failed_from.load(Ordering::Acquire)
    }

    /// Returns whether a request was given up before the device had it.
    pub(super) fn was_given_up(&self, number: u64) -> bool {
        number >= self.given_up_from.load(Ordering::Acquire)
    }

    /// Returns why this request failed, unless the device only flushed it.
    pub(super) fn own_failure(&self, number: u64) -> Option<WorkError> {
        let (failed, error) = self.first_failure.get()?;
        (*failed == number).then_some(*error)
    }

    pub(super) fn is_forsaken(&self) -> bool {
        self.forsaken.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn value(&self, place: Place) -> u64 {
        self.results.value(place)
    }

    pub(super) fn release_place(&self, place: Place) {
        self.results.release(place);
        self.result_free.wake();
    }

    /// Ends the requests that the device does not have, and wakes all futures that wait for one.
    pub(super) fn give_up(&self) {
        let mut wakes = Vec::new();
        {
            let mut state = self.lock();
            let first = state.give_up(&mut wakes);
            self.failed_from.fetch_min(first, Ordering::AcqRel);
            self.given_up_from.store(first, Ordering::Release);
        }
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Has nobody wait for completions any more.
    pub(super) fn forsake(&self) {
        self.forsaken.store(true, Ordering::SeqCst);
        let mut wakes = Vec::new();
        self.lock().take_wakers(&mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }
}

impl Connection {
    /// Accepts a request whose data is copied, if there is room for it.
    #[inline(never)]
    pub(super) fn submit_copied(
        &self,
        push: Push,
        pieces: [&[u8]; 2],
        how: (Attendance, Departure),
    ) -> Result<u64, NotAccepted> {
        let mut state = self.sender.lock();
        let accepted = state.accept_copied(push, pieces, how);
        let Accepted { number, has_turn } = match accepted {
            Ok(accepted) => accepted,
            Err(not_accepted) => {
                self.fail_if_closed(state, &not_accepted);
                return Err(not_accepted);
            }
        };
        if has_turn {
            self.turn(state);
        }
        Ok(number)
    }

    /// Accepts a request that keeps memory, if there is room for it. A request that is not accepted gives
    /// it back.
    #[inline(never)]
    pub(super) fn submit_held(
        &self,
        work: Work,
        memory: Memory,
        how: (Attendance, Departure),
        place: Option<Place>,
    ) -> Result<u64, (NotAccepted, Memory)> {
        let mut state = self.sender.lock();
        let accepted = state.accept_held(work, memory, how, place);
        let Accepted { number, has_turn } = match accepted {
            Ok(accepted) => accepted,
            Err(refused) => {
                self.fail_if_closed(state, &refused.0);
                return Err(refused);
            }
        };
        if has_turn {
            self.turn(state);
        }
        Ok(number)
    }

    /// Ends the connection if the device refused requests that were staged before the one that was not
    /// accepted: no completion ends them.
    #[cold]
    fn fail_if_closed(&self, state: MutexGuard<'_, SendState>, not_accepted: &NotAccepted) {
        let is_closed = state.is_closed();
        drop(state);
        if is_closed && let NotAccepted::Refused(error) = not_accepted {
            self.fail((**error).clone());
        }
    }

    /// Sees to it that staged requests leave.
    #[inline(never)]
    fn turn(&self, mut state: MutexGuard<'_, SendState>) {
        let waits = !state.is_laden() && self.shard.leaves_later(self);
        let outcome = if waits { Ok(()) } else { state.leave() };
        drop(state);
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Hands the staged requests to the device.
    pub(crate) fn leave(&self) {
        let outcome = self.sender.lock().leave();
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Repeats `attempt` until the request is accepted, after `first` was its outcome: a full queue is
    /// backpressure, not an error.
    pub(super) async fn retry(
        &self,
        first: NotAccepted,
        mut attempt: impl FnMut() -> Result<u64, NotAccepted>,
    ) -> Result<u64> {
        let mut outcome = first;
        loop {
            if let NotAccepted::Refused(error) = outcome {
                return Err(*error);
            }
            self.wait_for_room().await?;
            match attempt() {
                Ok(number) => return Ok(number),
                Err(again) => outcome = again,
            }
        }
    }

    pub(super) async fn wait_for_room(&self) -> Result<()> {
        let attempt = || {
            self.failed()
                .or_else(|| self.sender.lock().has_room().then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.sender.room.wait_for(attempt).await
    }

    /// Waits for a place for what an atomic finds.
    pub(super) async fn reserve_place(&self) -> Result<Place> {
        self.checked()?;
        let attempt = || {
            self.failed()
                .or_else(|| self.sender.results.reserve().map(Ok))
        };
        self.sender.result_free.wait_for(attempt).await
    }

    /// Takes the requests that a completion ends. The wakers of their futures are added to `wakes`.
    #[inline]
    pub(crate) fn complete(&self, completion: &WorkCompletion, wakes: &mut Vec<Waker>) {
        let mut state = self.sender.lock();
        let ended = state.complete(completion, &self.sender.results, wakes, |memory| {
            self.recycle(memory);
        });
        if ended.fresh == 0 {
            return;
        }
        let outcome = completion.result();
        if let Err(error) = &outcome {
            self.sender.fail_from(ended.count - 1, error);
        }
        self.sender.ended.store(ended.count, Ordering::Release);
        drop(state);
        if let Err(error) = outcome {
            self.fail_with(error);
        }
        // First the messages of the connection itself, which free credits of the peer.
        self.flush_outbox_into_room();
        self.sender.room.wake_in_order();
    }

    /// Takes a request's own memory for the next one; the application's is let go.
    pub(super) fn recycle(&self, (own, _claim): Memory) {
        if let Some(own) = own
            && let Ok(piece) = own.into_shared()
        {
            self.device.pool().put_back_header(piece);
        }
    }

    /// Returns a future of an accepted request.
    pub(super) fn operation(&self, number: u64, place: Option<Place>) -> Operation<'_> {
        Operation::new(self, number, place)
    }
}

impl Sender {
    /// Records that a request failed.
    #[cold]
    fn fail_from(&self, number: u64, error: &WorkError) {
        if error.status != WorkStatus::Flushed {
            // A queue pair fails once.
            let _ = self.first_failure.set((number, *error));
        }
        self.failed_from.fetch_min(number, Ordering::AcqRel);
    }
}
