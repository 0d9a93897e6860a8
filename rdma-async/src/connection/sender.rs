//! The send side of a connection: accepts requests, posts them to the device, and records their
//! completions.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::task::Waker;

use rdma_core::{SendQueue, WorkCompletion, WorkError, WorkStatus};

use super::Connection;
use super::operation::Operation;
use super::results::{ResultSlot, Results};
use super::send_state::{
    Accepted, AwaitedBy, EndedCount, NotAccepted, PostTime, Posted, SendState,
};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard};
use super::waiters::Waiters;
use super::work::{Memory, Push, Work};
use crate::error::Result;

/// Send queue of a connection, with the state of its requests, shared by futures and the polling
/// thread. `Q` is the queue of the device. Tests use a model of the queue instead.
#[derive(Debug)]
pub(super) struct Sender<Q = SendQueue<Memory>> {
    state: Mutex<SendState<Q>>,
    /// Number of requests that have ended: completed, successfully or not.
    ended: AtomicU64,
    /// Number of the first staged request, at the last change of the queue. May be stale: only the
    /// decision to poll depends on it.
    first_staged: AtomicU64,
    /// Number of the first request that failed, or `u64::MAX` if no request has failed.
    failed_from: AtomicU64,
    /// Number of the first request that was cancelled before it was posted, or `u64::MAX` if no
    /// request was cancelled.
    cancelled_from: AtomicU64,
    /// Number and error of the first request that failed for a reason other than a flush.
    first_failure: OnceLock<(u64, WorkError)>,
    /// Tasks that wait for room in the send queue.
    room: Waiters,
    pub(super) results: Results,
    result_free: Waiters,
    /// Set by [`Self::end_waits`]. Futures must then not wait for a completion, which may never
    /// arrive.
    waits_ended: AtomicBool,
}

impl Sender {
    /// Creates the send side of a connection, which posts requests to `queue`. At most `limit`
    /// requests can be in progress at the same time.
    pub(super) fn new(queue: SendQueue<Memory>, limit: usize) -> Self {
        let capacity = queue.capacity();
        Self::with(SendState::new(queue, capacity, limit))
    }
}

impl<Q: Posted> Sender<Q> {
    /// Creates the send side of a connection. `state` contains the device's send queue, or a
    /// replacement for it in the loom models (concurrency tests).
    pub(super) fn with(state: SendState<Q>) -> Self {
        Self {
            state: Mutex::new(state),
            ended: AtomicU64::new(0),
            first_staged: AtomicU64::new(0),
            failed_from: AtomicU64::new(u64::MAX),
            cancelled_from: AtomicU64::new(u64::MAX),
            first_failure: OnceLock::new(),
            room: Waiters::default(),
            results: Results::new(),
            result_free: Waiters::default(),
            waits_ended: AtomicBool::new(false),
        }
    }

    /// Locks the state of the send queue, and returns the guard, whose drop unlocks the state.
    pub(super) fn lock(&self) -> MutexGuard<'_, SendState<Q>> {
        self.state.lock()
    }

    /// Returns the tasks that wait for room in the send queue, and the tasks that wait for a result
    /// slot.
    pub(super) fn waiters(&self) -> [&Waiters; 2] {
        [&self.room, &self.result_free]
    }

    /// Returns whether the request with this number has completed or was cancelled, so that its
    /// future can return the result.
    #[inline]
    pub(super) fn has_ended(&self, number: u64) -> bool {
        number < self.ended.load(Ordering::Acquire)
            || number >= self.cancelled_from.load(Ordering::Acquire)
    }

    /// Returns whether the request `number` is staged: accepted, but not yet posted to the device.
    /// Polling cannot complete a staged request.
    #[inline]
    pub(super) fn is_staged(&self, number: u64) -> bool {
        number >= self.first_staged.load(Ordering::Relaxed)
    }

    /// Stores the number of the first staged request (accepted, but not yet posted) in an atomic
    /// variable, so that [`Self::is_staged`] does not need the lock. Called after requests were
    /// accepted or posted.
    #[inline]
    pub(super) fn note_staged(&self, state: &SendState<Q>) {
        self.first_staged
            .store(state.first_staged(), Ordering::Relaxed);
    }

    /// Returns whether the request `number` was successful. The request must have ended.
    #[inline]
    pub(super) fn has_succeeded(&self, number: u64) -> bool {
        number < self.failed_from.load(Ordering::Acquire)
    }

    /// Returns whether the request with this number was cancelled before it was posted, so that the
    /// peer has not executed it.
    pub(super) fn was_cancelled(&self, number: u64) -> bool {
        number >= self.cancelled_from.load(Ordering::Acquire)
    }

    /// Returns the error that the device reported for the request with this number. Returns `None`
    /// if the request did not fail, or was only flushed after the failure of another request.
    pub(super) fn own_failure(&self, number: u64) -> Option<WorkError> {
        let (failed, error) = self.first_failure.get()?;
        (*failed == number).then_some(*error)
    }

    /// Returns whether futures must fail instead of waiting for a completion, because
    /// [`Self::end_waits`] was called: completions perhaps never arrive. The reason is that no task
    /// polls for completions, or that the queue pair could not be moved to the error state.
    pub(super) fn have_waits_ended(&self) -> bool {
        self.waits_ended.load(Ordering::SeqCst)
    }

    /// Returns the result of the completed atomic operation that uses `slot`: the previous value of
    /// the remote memory.
    #[inline]
    pub(super) fn value(&self, slot: ResultSlot) -> u64 {
        self.results.value(slot)
    }

    /// Frees `slot`, which was reserved for the result of an atomic operation, and wakes the tasks
    /// that wait for a free slot.
    pub(super) fn release_result(&self, slot: ResultSlot) {
        self.results.release(slot);
        self.result_free.wake();
    }

    /// Cancels the staged requests, which were accepted and not posted to the device, and wakes
    /// their futures. Called when the connection has failed. Returns `true` if any of these
    /// requests contained data and no future waited for the request, for example for a piece of a
    /// stream: no future then reports the loss of the data.
    pub(super) fn cancel_staged(&self) -> bool {
        let mut wakes = Vec::new();
        let has_lost = {
            let mut state = self.lock();
            let (first, has_lost) = state.cancel_staged(&mut wakes);
            self.failed_from.fetch_min(first, Ordering::AcqRel);
            self.cancelled_from.store(first, Ordering::Release);
            has_lost
        };
        wakes.into_iter().for_each(Waker::wake);
        has_lost
    }

    /// Wakes all futures that wait for completions, and makes later waits end immediately. Called
    /// after the connection has failed, if completions perhaps never arrive. The futures then
    /// return the error of the connection.
    pub(super) fn end_waits(&self) {
        self.waits_ended.store(true, Ordering::SeqCst);
        let mut wakes = Vec::new();
        self.lock().take_wakers(&mut wakes);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Registers `waker`, which is woken when the request `number` ends, if another future also
    /// waits for a request. Returns `Some(true)` if the future must not wait, because the request
    /// has ended or completions are no longer polled. Otherwise returns `Some(false)`. If no other
    /// future waits, registers nothing and returns `None`: the caller can then poll for completions
    /// itself.
    pub(super) fn register_unless_alone(&self, number: u64, waker: &Waker) -> Option<bool> {
        let state = self.lock();
        (!state.has_one_waiter()).then(|| self.register_in(state, number, waker))
    }

    /// Registers `waker`, which is woken when the request `number` ends. Returns `true` if the
    /// future must not wait, because the request has ended or because completions are no longer
    /// polled.
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

    /// Removes the waker of the request `number`, because the future of the request is dropped. The
    /// request stays in flight, but its result is no longer stored. Also frees `slot`, the slot for
    /// the result of an atomic operation.
    pub(super) fn detach(&self, number: u64, slot: Option<ResultSlot>) {
        let waker = self.lock().detach(number);
        // Dropped after the lock is released, because dropping a waker can run code of the runtime.
        drop(waker);
        if let Some(slot) = slot {
            self.release_result(slot);
        }
    }

    /// Calls `end`, which marks requests as ended, under the lock of the send queue. Then updates
    /// the number of ended requests, by which futures notice the end. `is_success` is the outcome
    /// of the last of these requests. Returns whether any request has ended.
    #[inline]
    pub(super) fn end(
        &self,
        is_success: bool,
        end: impl FnOnce(&mut SendState<Q>) -> EndedCount,
    ) -> bool {
        let mut state = self.lock();
        let ended = end(&mut state);
        if ended.newly_ended == 0 {
            return false;
        }
        if !is_success {
            self.failed_from
                .fetch_min(ended.total - 1, Ordering::AcqRel);
        }
        // Stored under the lock, so that a future that registers a waker afterwards sees that its
        // request has ended.
        self.ended.store(ended.total, Ordering::Release);
        true
    }

    /// Stores `error`, which the device reported for a request, as the first failure of the
    /// connection. `ended` counts the requests that the completion has ended. The last of these
    /// requests has failed. Does nothing if a failure is already stored, or if the request was only
    /// flushed after an earlier failure.
    #[cold]
    fn note_failure(&self, ended: &EndedCount, error: &WorkError) {
        if ended.newly_ended > 0 && error.status != WorkStatus::Flushed {
            // Only the first error is kept: the queue pair flushes all later requests.
            let _ = self.first_failure.set((ended.total - 1, *error));
        }
    }
}

impl Connection {
    /// Submits a request whose data, the concatenated `pieces`, is copied. Returns the number of
    /// the request, by which the caller can wait for its completion.
    #[inline(never)]
    pub(super) fn submit_copied(
        &self,
        push: Push,
        pieces: [&[u8]; 2],
        how: (AwaitedBy, PostTime),
    ) -> Result<u64, NotAccepted> {
        let mut state = self.sender.lock();
        let accepted = state.accept_copied(push, pieces, how);
        let Accepted { number, must_post } = match accepted {
            Ok(accepted) => accepted,
            Err(not_accepted) => {
                self.fail_if_closed(state, &not_accepted);
                return Err(not_accepted);
            }
        };
        if must_post {
            self.schedule_post(state);
        } else {
            self.sender.note_staged(&state);
        }
        Ok(number)
    }

    /// Submits the operation `work` to the send queue. The request holds `memory` until it
    /// completes. Returns the number of the request. If the queue is full or the device refuses the
    /// request, returns the reason and the memory. `slot` is the slot for the result of an atomic
    /// operation.
    #[inline(never)]
    pub(super) fn submit_held(
        &self,
        work: Work,
        memory: Memory,
        how: (AwaitedBy, PostTime),
        slot: Option<ResultSlot>,
    ) -> Result<u64, (NotAccepted, Memory)> {
        let mut state = self.sender.lock();
        let accepted = state.accept_held(work, memory, how, slot);
        let Accepted { number, must_post } = match accepted {
            Ok(accepted) => accepted,
            Err(refused) => {
                self.fail_if_closed(state, &refused.0);
                return Err(refused);
            }
        };
        if must_post {
            self.schedule_post(state);
        } else {
            self.sender.note_staged(&state);
        }
        Ok(number)
    }

    /// Ends the connection if the send queue is closed, because the device has refused requests
    /// that were accepted earlier. Such requests never complete, so their futures would wait
    /// forever. Unlocks `state`, the state of the send queue.
    #[cold]
    pub(super) fn fail_if_closed(
        &self,
        state: MutexGuard<'_, SendState>,
        not_accepted: &NotAccepted,
    ) {
        let is_closed = state.is_closed();
        drop(state);
        if is_closed && let NotAccepted::Refused(error) = not_accepted {
            self.fail((**error).clone());
        }
    }

    /// Schedules the staged requests (accepted, but not yet posted): the driver task posts them
    /// together at the end of its current round (turn). Posts them immediately if the number of
    /// staged requests has reached its maximum, or if the driver task sleeps or has ended.
    #[inline(never)]
    fn schedule_post(&self, mut state: MutexGuard<'_, SendState>) {
        let waits = !state.is_batch_full() && self.shard.post_at_turn_end(self);
        let outcome = if waits { Ok(()) } else { state.post_staged() };
        self.sender.note_staged(&state);
        drop(state);
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Posts the staged requests (accepted, but not yet posted), and the buffered bytes of a
    /// stream, to the device.
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

    /// Repeats `attempt` until the send queue accepts its request, and returns the number of the
    /// request. Waits while the queue is full. `first` is the failure of the attempt before this
    /// call. Returns any failure other than a full queue as an error.
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

    /// Waits until the send queue has room for a request. Fails if the connection ends.
    pub(super) async fn wait_for_room(&self) -> Result<()> {
        let attempt = || {
            self.failed()
                .or_else(|| self.sender.lock().has_room().then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.sender.room.wait_for(attempt).await
    }

    /// Waits for a free slot for the result of an atomic operation, and reserves the slot.
    pub(super) async fn reserve_result(&self) -> Result<ResultSlot> {
        self.check_open()?;
        let attempt = || {
            self.failed()
                .or_else(|| self.sender.results.reserve().map(Ok))
        };
        self.sender.result_free.wait_for(attempt).await
    }

    /// Handles a completion of the send queue: marks the completed request and all earlier requests
    /// as ended. Adds the wakers of their futures to `wakes`. The caller must wake these wakers.
    /// Ends the connection if the request has failed. Then sends messages that waited for room in
    /// the send queue, and wakes the tasks that wait for room.
    #[inline]
    pub(crate) fn complete(&self, completion: &WorkCompletion, wakes: &mut Vec<Waker>) {
        let outcome = completion.result();
        // Set before the request ends, so that a future that gets the error of the request finds
        // the connection ended.
        let must_fail = outcome
            .as_ref()
            .is_err_and(|error| self.set_work_failure(*error));
        let has_ended = self.sender.end(outcome.is_ok(), |state| {
            let recycle = |memory| self.recycle(memory);
            let ended = state.complete(completion, &self.sender.results, wakes, recycle);
            if let Err(error) = &outcome {
                self.sender.note_failure(&ended, error);
            }
            ended
        });
        if must_fail {
            self.end_after_failure();
        }
        if !has_ended {
            return;
        }
        // Control messages are sent first, because they return credits to the peer.
        self.flush_outbox_into_room();
        self.flush_outgoing();
        self.sender.room.wake_without_fence();
    }

    /// Releases the memory of a completed request. Memory that this crate has allocated (for a
    /// message header, or the result of an atomic operation) returns to the pool. Afterwards, the
    /// application can use its own memory again.
    pub(super) fn recycle(&self, (own, _claim): Memory) {
        if let Some(own) = own
            && let Ok(piece) = own.into_shared()
        {
            self.device.pool().put_back_header(piece);
        }
    }

    /// Returns a future that waits until the accepted request `number` has completed. `slot` is the
    /// slot for the result if the request is an atomic operation.
    pub(super) fn operation(&self, number: u64, slot: Option<ResultSlot>) -> Operation<'_> {
        Operation::new(self, number, slot)
    }
}
