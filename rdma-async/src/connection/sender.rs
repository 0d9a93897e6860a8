//! The send side of a connection: submits requests to the device, and records which have completed.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::task::Waker;

use rdma_core::{SendQueue, WorkCompletion, WorkError, WorkStatus};

use super::Connection;
use super::operation::Operation;
use super::results::{ResultSlot, Results};
use super::send_state::{Accepted, AwaitedBy, Ended, NotAccepted, PostTime, Posted, SendState};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard};
use super::waiters::Waiters;
use super::work::{Memory, Push, Work};
use crate::error::Result;

/// Send queue of a connection, with the state of its requests. `Q` is another type only in models.
#[derive(Debug)]
pub(super) struct Sender<Q = SendQueue<Memory>> {
    state: Mutex<SendState<Q>>,
    /// Number of requests that completed, successfully or not.
    ended: AtomicU64,
    /// Number of the first staged request at the last change of the queue. Decides only whether a
    /// future polls, so that a stale value does no harm.
    first_staged: AtomicU64,
    /// Number of the first request that failed, or `u64::MAX`.
    failed_from: AtomicU64,
    /// Number of the first request that was cancelled before the device got it, or `u64::MAX`.
    given_up_from: AtomicU64,
    /// Number and error of the first request that failed by itself; flushed requests do not count.
    first_failure: OnceLock<(u64, WorkError)>,
    /// Tasks that wait for room for a request.
    room: Waiters,
    pub(super) results: Results,
    result_free: Waiters,
    /// Set when completions are no longer announced, so that futures must not wait for one.
    waits_ended: AtomicBool,
}

impl Sender {
    /// Creates the send side of a connection, with at most `limit` requests that have not ended.
    pub(super) fn new(queue: SendQueue<Memory>, limit: usize) -> Self {
        let capacity = queue.capacity();
        Self::with(SendState::new(queue, capacity, limit))
    }
}

impl<Q: Posted> Sender<Q> {
    pub(super) fn with(state: SendState<Q>) -> Self {
        Self {
            state: Mutex::new(state),
            ended: AtomicU64::new(0),
            first_staged: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
            given_up_from: AtomicU64::new(u64::MAX),
            first_failure: OnceLock::new(),
            room: Waiters::default(),
            results: Results::new(),
            result_free: Waiters::default(),
            waits_ended: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SendState<Q>> {
        self.state.lock()
    }

    pub(super) fn waiters(&self) -> [&Waiters; 2] {
        [&self.room, &self.result_free]
    }

    /// Returns whether a request has completed or was cancelled.
    #[inline]
    pub(super) fn has_ended(&self, number: u64) -> bool {
        number < self.ended.load(Ordering::Acquire)
            || number >= self.given_up_from.load(Ordering::Acquire)
    }

    /// Returns whether a request waits for the end of the turn, so that polling cannot end it.
    #[inline]
    pub(super) fn is_staged(&self, number: u64) -> bool {
        number >= self.first_staged.load(Ordering::Relaxed)
    }

    /// Records which requests are staged, after a change of the queue.
    #[inline]
    fn note_staged(&self, state: &SendState<Q>) {
        self.first_staged
            .store(state.first_staged(), Ordering::Relaxed);
    }

    /// Returns whether a request that has ended succeeded.
    #[inline]
    pub(super) fn has_succeeded(&self, number: u64) -> bool {
        number < self.failed_from.load(Ordering::Acquire)
    }

    /// Returns whether a request was cancelled before the device got it.
    pub(super) fn was_given_up(&self, number: u64) -> bool {
        number >= self.given_up_from.load(Ordering::Acquire)
    }

    /// Returns the error of this request, or `None` if the request did not fail or was only
    /// flushed.
    pub(super) fn own_failure(&self, number: u64) -> Option<WorkError> {
        let (failed, error) = self.first_failure.get()?;
        (*failed == number).then_some(*error)
    }

    pub(super) fn have_waits_ended(&self) -> bool {
        self.waits_ended.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn value(&self, place: ResultSlot) -> u64 {
        self.results.value(place)
    }

    pub(super) fn release_result(&self, place: ResultSlot) {
        self.results.release(place);
        self.result_free.wake();
    }

    /// Cancels the requests that were not handed to the device, and wakes their futures.
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

    /// Wakes all futures that wait for completions, which are no longer announced.
    pub(super) fn end_waits(&self) {
        self.waits_ended.store(true, Ordering::SeqCst);
        let mut wakes = Vec::new();
        self.lock().take_wakers(&mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Registers `waker` like [`Self::register`]. Returns `None`, and registers nothing, if no
    /// other future waits for a request.
    pub(super) fn register_unless_alone(&self, number: u64, waker: &Waker) -> Option<bool> {
        let state = self.lock();
        (!state.has_one_waiter()).then(|| self.register_in(state, number, waker))
    }

    /// Registers `waker`, which is woken when the request ends. Returns whether the request has
    /// ended or will never be announced, so that the future must not wait for `waker`.
    pub(super) fn register(&self, number: u64, waker: &Waker) -> bool {
        self.register_in(self.lock(), number, waker)
    }

    #[inline]
    fn register_in(
        &self,
        mut state: MutexGuard<'_, SendState<Q>>,
        number: u64,
        waker: &Waker,
    ) -> bool {
        let replaced = state.register(number, waker);
        drop(state);
        // Dropped outside of the lock, because dropping a waker can run code of the runtime.
        drop(replaced);
        // The request may have ended before the waker was registered.
        self.has_ended(number) || self.have_waits_ended()
    }

    /// Releases what the future of a request occupies. The request itself stays in flight.
    pub(super) fn detach(&self, number: u64, place: Option<ResultSlot>) {
        let waker = self.lock().detach(number);
        // Dropped after the lock was released: dropping a waker can run code of the program.
        drop(waker);
        if let Some(place) = place {
            self.release_result(place);
        }
    }

    /// Ends requests by `end`, so that their futures see it. Unless `is_success` is set, the last
    /// of them has failed. Returns `false` if none has ended.
    #[inline]
    pub(super) fn end(
        &self,
        is_success: bool,
        end: impl FnOnce(&mut SendState<Q>) -> Ended,
    ) -> bool {
        let mut state = self.lock();
        let ended = end(&mut state);
        if ended.fresh == 0 {
            return false;
        }
        if !is_success {
            self.failed_from
                .fetch_min(ended.count - 1, Ordering::AcqRel);
        }
        // Stored under the lock: a future that registers a waker later sees that its request has
        // ended.
        self.ended.store(ended.count, Ordering::Release);
        true
    }

    /// Keeps the error of the last of the requests that have just ended.
    #[cold]
    fn note_failure(&self, ended: &Ended, error: &WorkError) {
        if ended.fresh > 0 && error.status != WorkStatus::Flushed {
            // Only the first error is kept: the queue pair flushes all later requests.
            let _ = self.first_failure.set((ended.count - 1, *error));
        }
    }
}

impl Connection {
    /// Submits a request whose data is copied, and returns its number.
    #[inline(never)]
    pub(super) fn submit_copied(
        &self,
        push: Push,
        pieces: [&[u8]; 2],
        how: (AwaitedBy, PostTime),
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
        } else {
            self.sender.note_staged(&state);
        }
        Ok(number)
    }

    /// Submits a request that keeps memory until it has completed, and returns its number. If the
    /// request is not accepted, returns the memory.
    #[inline(never)]
    pub(super) fn submit_held(
        &self,
        work: Work,
        memory: Memory,
        how: (AwaitedBy, PostTime),
        place: Option<ResultSlot>,
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
        } else {
            self.sender.note_staged(&state);
        }
        Ok(number)
    }

    /// Ends the connection if the device refused requests that were staged before the one that was
    /// not accepted: no completion ends them.
    #[cold]
    fn fail_if_closed(&self, state: MutexGuard<'_, SendState>, not_accepted: &NotAccepted) {
        let is_closed = state.is_closed();
        drop(state);
        if is_closed && let NotAccepted::Refused(error) = not_accepted {
            self.fail((**error).clone());
        }
    }

    /// Hands the staged requests to the device, or adds the connection to the turn, at whose end
    /// they are handed over.
    #[inline(never)]
    fn turn(&self, mut state: MutexGuard<'_, SendState>) {
        let waits = !state.is_batch_full() && self.shard.post_at_turn_end(self);
        let outcome = if waits { Ok(()) } else { state.post_staged() };
        self.sender.note_staged(&state);
        drop(state);
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Hands the staged requests and the collected bytes of a stream to the device.
    pub(crate) fn post_staged(&self) {
        self.flush_outgoing_and_open();
        let mut state = self.sender.lock();
        let outcome = state.post_staged();
        self.sender.note_staged(&state);
        drop(state);
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Repeats `attempt`, which failed with `first`, until the request is accepted. Waits while the
    /// send queue is full; any other error is returned.
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

    /// Waits for a place for the result of an atomic.
    pub(super) async fn reserve_result(&self) -> Result<ResultSlot> {
        self.checked()?;
        let attempt = || {
            self.failed()
                .or_else(|| self.sender.results.reserve().map(Ok))
        };
        self.sender.result_free.wait_for(attempt).await
    }

    /// Ends the requests that a completion completes. Adds the wakers of their futures to `wakes`.
    #[inline]
    pub(crate) fn complete(&self, completion: &WorkCompletion, wakes: &mut Vec<Waker>) {
        let outcome = completion.result();
        let has_ended = self.sender.end(outcome.is_ok(), |state| {
            let recycle = |memory| self.recycle(memory);
            let ended = state.complete(completion, &self.sender.results, wakes, recycle);
            if let Err(error) = &outcome {
                self.sender.note_failure(&ended, error);
            }
            ended
        });
        if !has_ended {
            return;
        }
        if let Err(error) = outcome {
            self.fail_with(error);
        }
        // Control messages go first, because they return credits to the peer.
        self.flush_outbox_into_room();
        self.flush_outgoing();
        self.sender.room.wake_in_order();
    }

    /// Returns the header memory of a request to the pool, and drops its claim on the application's
    /// memory.
    pub(super) fn recycle(&self, (own, _claim): Memory) {
        if let Some(own) = own
            && let Ok(piece) = own.into_shared()
        {
            self.device.pool().put_back_header(piece);
        }
    }

    /// Returns the future of an accepted request.
    pub(super) fn operation(&self, number: u64, place: Option<ResultSlot>) -> Operation<'_> {
        Operation::new(self, number, place)
    }
}
