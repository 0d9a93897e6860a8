//! Waits for the requests of a scope, and forces requests to end that do not complete in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::completion_queue::CompletionQueueHandle;
use super::scope::abort;
use super::scope_requests::ScopeRequests;
use super::scope_slots::{SlotState, Ticket};
use crate::completion::{WorkCompletion, WorkOpcode, WorkStatus, pause};
use crate::error::{Error, Result};
use crate::queue_pair::Outcome as End;
use crate::queue_pair::{Modification, QueuePairState, modify};

/// Maximum time between completions that a scope waits for while the device flushes its requests.
/// The wait begins when the scope has moved the queue pair to the error state. After this time
/// without a completion, the scope resets the queue pair.
const MAX_FLUSH_WAIT: Duration = Duration::from_secs(2);

impl ScopeRequests {
    /// Polls the completion queue with the index `way` once for the completion of the request
    /// `ticket`. Usually the request has succeeded, and no other completion is pending: this
    /// function then frees the request's slot, and returns the completion. In all other cases
    /// returns `None`, and the caller must call [`Self::wait`].
    #[inline(always)]
    pub(crate) fn poll_once(&self, way: usize, ticket: Ticket<'_>) -> Option<WorkCompletion> {
        if !ticket.is_simply_in_flight() {
            return None;
        }
        // With room for two completions, the poll shows whether more than one is pending.
        let mut room = [WorkCompletion::default(); 2];
        let queue = &*self.completions[way];
        match queue.poll_plain(&mut room) {
            [completion]
                if completion.id() == ticket.id()
                    && completion.result().is_ok()
                    && completion.invalidated_key().is_none() =>
            {
                self.in_flight.set(self.in_flight.get() - 1);
                ticket.free();
                Some(*completion)
            }
            [] => None,
            others => {
                self.sort(queue, others);
                None
            }
        }
    }

    /// Processes the completions of this scope's requests. Every other completion is delivered to
    /// the thread that waits for the completion, or put back into `queue` if no thread waits.
    #[inline(never)]
    fn sort(&self, queue: &CompletionQueueHandle, completions: &[WorkCompletion]) {
        for completion in completions {
            if !self.complete(completion) {
                queue.deliver(completion);
            }
        }
    }

    /// Waits until the request with the handle `ticket` has ended, and frees the request's slot in
    /// the table of requests. Returns the completion of the request, or the error if the request
    /// failed.
    #[inline(never)]
    pub(crate) fn wait(&self, ticket: Ticket<'_>) -> Result<WorkCompletion> {
        let is_over = || !self.is_awaited(ticket);
        // While this thread is polling the completion queue, the queue pair cannot be reset.
        // Therefore the request might never end, and its memory could not be returned.
        assert!(
            is_over() || !self.queue_pair.is_polled_here(),
            "a request was waited for within a poll of the queue pair's completions"
        );
        let waited = self.wait_until(is_over);
        let outcome = self.slots.get(ticket.id());
        ticket.free();
        let completion = match outcome {
            Some(SlotState::Completed(completion)) => completion,
            // A reset of the queue pair, during this wait or an earlier one, has discarded the
            // request.
            _ => return Err(waited.err().unwrap_or_else(|| self.timed_out())),
        };
        match completion.result() {
            Ok(()) => Ok(completion),
            // This wait has moved the queue pair to the error state, which flushed the request, so
            // the error is the timeout.
            Err(error) if error.status == WorkStatus::Flushed => {
                Err(waited.err().unwrap_or(Error::Work(error)))
            }
            Err(error) => Err(Error::Work(error)),
        }
    }

    /// Returns whether the request with the handle `ticket` has ended. If the request is still in
    /// flight according to earlier polls, first polls the completion queues once.
    pub(crate) fn is_over(&self, ticket: Ticket<'_>) -> Result<bool> {
        if self.is_awaited(ticket) {
            self.poll()?;
        }
        Ok(!self.is_awaited(ticket))
    }

    /// Returns whether the request with the handle `ticket` is still in flight, according to the
    /// completions that were polled so far. The request keeps its slot until its handle is dropped,
    /// so the slot contains the state of this request.
    fn is_awaited(&self, ticket: Ticket<'_>) -> bool {
        matches!(
            self.slots.get(ticket.id()),
            Some(SlotState::InFlight { .. })
        )
    }

    /// Records that the program has dropped the handle of the request `ticket`. If the request
    /// fails, the end of the scope must report the failure, because the program has no handle to
    /// ask.
    #[inline(never)]
    pub(crate) fn drop_handle(&self, ticket: Ticket<'_>) {
        match self.slots.get(ticket.id()) {
            Some(SlotState::InFlight { id }) => self.slots.set(id, SlotState::HandleDropped { id }),
            Some(SlotState::Completed(completion)) => {
                self.record_failure(&completion);
                ticket.free();
            }
            _ => ticket.free(),
        }
    }

    /// Records the failure of a request, so that the end of the [`Scope`](crate::Scope) can return
    /// the failure. Called for a request whose handle the program has dropped or leaked. Does
    /// nothing if the request has succeeded, or if an earlier failure was recorded.
    fn record_failure(&self, completion: &WorkCompletion) {
        if let Err(error) = completion.result() {
            let first = self.failure.take().unwrap_or(Error::Work(error));
            self.failure.set(Some(first));
        }
    }

    /// Waits until all requests of the scope have ended. After a timeout, forces the requests to
    /// end and returns an error.
    pub(super) fn wait_all(&self) -> Result<()> {
        if self.in_flight.get() > 0 {
            self.queue_pair.refuse_within_poll()?;
        }
        self.wait_until(|| self.in_flight.get() == 0)
    }

    /// Ends the scope: waits until no request of the scope is in flight, so that the borrows of the
    /// requests' memory can end. Returns an error if the wait timed out. Otherwise returns the
    /// first failure that no handle has reported.
    pub(super) fn end(&self) -> Result<()> {
        let waited = self.wait_all();
        if self.in_flight.get() > 0 {
            abort("a scope ended with requests in flight");
        }
        for (_, what) in self.slots.in_use() {
            // These requests have completed, but their handles were leaked.
            if let SlotState::Completed(completion) = what {
                self.record_failure(&completion);
            }
        }
        waited?;
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Waits until `is_over` returns `true`. If no request ends during the timeout of the scope,
    /// forces all requests to end, and returns an error. `is_over` must return `true` when no
    /// request is in flight any more.
    fn wait_until(&self, is_over: impl Fn() -> bool) -> Result<()> {
        match self.await_progress(self.timeout, &is_over) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.force_end();
                Err(error)
            }
        }
    }

    /// Waits until `is_over` returns `true`. Returns an error if no request of the scope completes
    /// for the duration `timeout`.
    fn await_progress(&self, timeout: Duration, is_over: &impl Fn() -> bool) -> Result<()> {
        let mut since = None;
        let mut idle = 0_u32;
        while !is_over() {
            let polled = self.poll();
            if polled.as_ref().is_ok_and(|&ended| ended > 0) {
                since = None;
                idle = 0;
                continue;
            }
            idle = idle.saturating_add(1);
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= timeout {
                return Err(polled.err().unwrap_or_else(|| self.timed_out()));
            }
            pause(idle, waited);
        }
        Ok(())
    }

    /// Polls the completion queues once, and then processes the completions of this scope's
    /// requests that other threads have polled. Returns the number of the scope's requests that
    /// have completed.
    fn poll(&self) -> Result<usize> {
        let [sends, receives] = &self.completions;
        let mut polled = self.poll_queue(sends);
        if !Arc::ptr_eq(sends, receives) {
            polled = polled.and_then(|count| Ok(count + self.poll_queue(receives)?));
        }
        // The inbox is read after the queues were polled. A completion that another thread took
        // from a queue before is in the inbox now, or will be at the next poll.
        match self.process_inbox() {
            0 => polled,
            noted => Ok(noted + polled.unwrap_or(0)),
        }
    }

    /// Processes the completions in the inbox of this scope. The inbox contains completions of the
    /// scope's requests that other threads have polled. Returns the number of requests that have
    /// ended.
    fn process_inbox(&self) -> usize {
        let noted = std::iter::from_fn(|| self.slots.inbox().take());
        noted
            .filter(|record| self.complete(&record.completion))
            .count()
    }

    fn poll_queue(&self, queue: &CompletionQueueHandle) -> Result<usize> {
        let mut room = [WorkCompletion::default(); 16];
        let found = match queue.poll_for(&mut room, |id| self.slots.is_in_flight(id)) {
            Ok(found) => found,
            // Another thread is iterating over the entries of the extended queue, and puts the
            // completions of this scope into its inbox.
            Err(Error::InUse { .. }) => return Ok(0),
            Err(error) => return Err(error),
        };
        for completion in &room[..found] {
            self.complete(completion);
        }
        Ok(found)
    }

    /// Processes a completion, and returns `true`, if the completion belongs to a request of this
    /// scope that is in flight. Otherwise returns `false`.
    fn complete(&self, completion: &WorkCompletion) -> bool {
        let id = completion.id();
        let is_watched = match self.slots.get(id) {
            Some(SlotState::InFlight { id: it }) if it == id => true,
            Some(SlotState::HandleDropped { id: it }) if it == id => false,
            _ => return false,
        };
        self.slots.keep(id).settle(End::of(completion));
        let received = matches!(
            completion.opcode(),
            WorkOpcode::Receive | WorkOpcode::ReceiveWriteImmediate
        );
        if let Some(key) = completion.invalidated_key().filter(|_| received) {
            self.queue_pair.domain().ended_by_peer(key);
        }
        self.in_flight.set(self.in_flight.get() - 1);
        if is_watched {
            self.slots.set(id, SlotState::Completed(*completion));
        } else {
            self.record_failure(completion);
            self.slots.free(id);
        }
        true
    }

    /// Forces all requests of the scope to end: moves the queue pair to the error state, and waits
    /// for the flushed completions. If no completion arrives for [`MAX_FLUSH_WAIT`] and requests
    /// are still in flight, resets the queue pair, which discards all requests (IBTA volume 1,
    /// 10.3.1.1). If the reset fails, aborts the process.
    #[cold]
    fn force_end(&self) {
        if let Err(error) = self.change(QueuePairState::Error) {
            tracing::error!(%error, "a queue pair with borrowed memory in flight");
        }
        let nothing_left = || self.in_flight.get() == 0;
        if self.await_progress(MAX_FLUSH_WAIT, &nothing_left).is_ok() {
            return;
        }
        if let Err(error) = self.change(QueuePairState::Reset) {
            abort(&error.to_string());
        }
        for (slot, what) in self.slots.in_use() {
            match what {
                SlotState::InFlight { .. } => self.slots.set(slot, SlotState::Discarded),
                SlotState::HandleDropped { .. } => self.slots.free(slot),
                SlotState::Completed(_) | SlotState::Discarded | SlotState::Unusable => continue,
            }
            drop(self.slots.keep(slot));
            self.in_flight.set(self.in_flight.get() - 1);
        }
    }

    fn change(&self, to: QueuePairState) -> Result<()> {
        modify(&self.queue_pair, &Modification::to(to))
    }

    #[cold]
    fn timed_out(&self) -> Error {
        Error::TimedOut {
            what: "the requests of a scope",
            timeout: self.timeout,
        }
    }
}
