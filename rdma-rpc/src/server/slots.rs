//! [`Slots`]: the running calls of one connection at the server.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::bulk::ResultLeases;
use crate::deadlines::NO_DEADLINE;
use crate::error::Error;
use crate::stream::Streams;
use crate::wire::{CallId, Violation};

/// Table of the running calls of a connection, except one-way calls. The client chooses the slot of
/// each call. Each slot has room for one call, so the number of slots limits the running calls.
#[derive(Debug)]
pub(super) struct Slots(Box<[Mutex<Slot>]>);

#[derive(Debug, Default)]
/// State of one slot of the server for the calls of a connection. A slot runs one call at a time.
/// The *generation* of a call is a number that distinguishes the call from the other calls in the
/// slot. A slot can also store a cancellation, or an end of a stream, that has arrived before the
/// request of its call.
struct Slot {
    /// Call that is running in the slot.
    running: Option<RunningCall>,
    /// Newest generation of a request or cancellation. Requests of older generations are stale.
    newest: Option<u32>,
    /// Generation of the last call whose handler has finished. The task of the handler may still be
    /// sending a long response.
    finished: Option<u32>,
    /// Generation of a call that was cancelled before its request arrived: a short cancellation may
    /// overtake a long request.
    cancelled: Option<u32>,
    /// Generation of a call whose input stream ended before its request arrived, and the number of
    /// items of the stream.
    input_end: Option<(u32, u32)>,
    /// Generation of the last call whose result contains bulks, and the leases of the bulks.
    results: Option<(u32, ResultLeases)>,
}

#[derive(Debug)]
/// A running call: its deadline, its streams, and the task of its handler.
struct RunningCall {
    generation: u32,
    deadline: u64,
    streams: Streams,
    /// Task of the handler; `None` during the first poll.
    task: Option<AbortHandle>,
    /// Wakes the tasks that wait for the end of the call; `None` if no task has waited.
    end_notify: Option<Arc<Notify>>,
}

impl RunningCall {
    /// Ends the call early: aborts the task of its handler, and fails its streams with `error`.
    fn stop(mut self, error: &Error) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        self.end(error);
    }

    /// Ends the call: its streams fail with `error`, and the tasks that wait for the end of the
    /// call are notified.
    fn end(self, error: &Error) {
        self.streams.fail(error);
        if let Some(end_notify) = self.end_notify {
            end_notify.notify_waiters();
        }
    }
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// Returns the slot (the server's entry of a call) of the call `id`. The client has chosen this
    /// ID. Fails if no slot has the index in the ID.
    fn slot(&self, id: CallId) -> Result<&Mutex<Slot>, Violation> {
        self.0.get(id.index as usize).ok_or(Violation::Index)
    }

    /// Begins a call in the slot that the client has chosen. Ends the previous call in the slot,
    /// which the client has abandoned. Returns `false` if the call must not be executed, because
    /// the client has cancelled it or has already used the slot for a newer call.
    pub(super) fn begin(
        &self,
        id: CallId,
        deadline: u64,
        streams: Streams,
    ) -> Result<bool, Violation> {
        let former = {
            let mut slot = self.slot(id)?.lock();
            let generation = id.generation;
            if slot.is_stale(generation) || slot.cancelled == Some(generation) {
                return Ok(false);
            }
            let is_repeated = |running: &RunningCall| running.generation == generation;
            if slot.running.as_ref().is_some_and(is_repeated) {
                return Err(Violation::Repeated);
            }
            slot.newest = Some(generation);
            slot.cancelled = None;
            let ended = slot.input_end.take();
            if let Some((_, items)) = ended.filter(|ended| ended.0 == generation) {
                let incoming = streams.incoming.as_ref().ok_or(Violation::Window)?;
                incoming.end(items)?;
            }
            slot.running.replace(RunningCall {
                generation,
                deadline,
                streams,
                task: None,
                end_notify: None,
            })
        };
        if let Some(former) = former {
            former.stop(&Error::Cancelled);
        }
        Ok(true)
    }

    /// Stores `task`, the handler's task of the running call `id`, so that the end of the call can
    /// abort the task. If the call has already ended, aborts the task immediately, unless the
    /// handler has finished.
    pub(super) fn set_task(&self, id: CallId, task: AbortHandle) {
        let Ok(slot) = self.slot(id) else { return };
        let mut slot = slot.lock();
        let is_this = |running: &&mut RunningCall| running.generation == id.generation;
        if let Some(running) = slot.running.as_mut().filter(is_this) {
            running.task = Some(task);
        } else if slot.finished != Some(id.generation) {
            drop(slot);
            task.abort();
        }
    }

    /// Calls `visit` with the state of a running call, under the lock of its slot, and returns the
    /// result of `visit`. Returns `None` if the call is not running.
    fn with_call<T>(&self, id: CallId, visit: impl FnOnce(&mut RunningCall) -> T) -> Option<T> {
        let mut slot = self.slot(id).ok()?.lock();
        let running = slot.running.as_mut();
        running
            .filter(|running| running.generation == id.generation)
            .map(visit)
    }

    /// Returns a stream of the running call `id`. `of` selects the stream: the caller's or the
    /// handler's. Returns `None` if the call is not running. Fails if the method has no such
    /// stream.
    pub(super) fn stream<T>(
        &self,
        id: CallId,
        of: impl FnOnce(&Streams) -> Option<T>,
    ) -> Result<Option<T>, Violation> {
        self.slot(id)?;
        match self.with_call(id, |running| of(&running.streams)) {
            Some(None) => Err(Violation::Window),
            found => Ok(found.flatten()),
        }
    }

    /// Records the end of the caller's stream, which has `items` items in total. If the request of
    /// the call has not arrived yet, stores the number until the request arrives.
    pub(super) fn end_input(&self, id: CallId, items: u32) -> Result<(), Violation> {
        let incoming = {
            let mut slot = self.slot(id)?.lock();
            let generation = id.generation;
            match &slot.running {
                Some(running) if running.generation == generation => {
                    running.streams.incoming.clone().ok_or(Violation::Window)?
                }
                _ => {
                    let is_late = slot.newest == Some(generation) || slot.is_stale(generation);
                    let is_older = |ended: (u32, u32)| precedes(generation, ended.0);
                    if !is_late && !slot.input_end.is_some_and(is_older) {
                        slot.input_end = Some((generation, items));
                    }
                    return Ok(());
                }
            }
        };
        incoming.end(items)
    }

    /// Returns whether the call with the ID `id` is running, that is, has begun and has not ended.
    pub(super) fn is_running(&self, id: CallId) -> bool {
        self.with_call(id, |_| ()).is_some()
    }

    /// Returns a notification with which a task can wait for the end of a call; `None` if the call
    /// is not running.
    pub(super) fn end_notify(&self, id: CallId) -> Option<Arc<Notify>> {
        self.with_call(id, |running| {
            Arc::clone(running.end_notify.get_or_insert_default())
        })
    }

    /// Ends the call `id` and frees its slot. Called when the call's handler has finished. Returns
    /// `false`, and does nothing, if the call has already ended.
    pub(super) fn end(&self, id: CallId) -> bool {
        let Ok(slot) = self.slot(id) else {
            return false;
        };
        let ended = {
            let mut slot = slot.lock();
            let ended = slot.take(id.generation);
            if ended.is_some() {
                slot.finished = Some(id.generation);
            }
            ended
        };
        let has_ended = ended.is_some();
        if let Some(ended) = ended {
            ended.end(&Error::Cancelled);
        }
        has_ended
    }

    /// Stores `results`, references to the leases of the [`Bulk`](crate::Bulk)s in the result of
    /// the call `id`. Through the leases, the caller can access the memory. A later
    /// [`Self::cancel`] ends the leases. If the caller has already cancelled the call, ends the
    /// leases immediately.
    pub(super) fn set_results(&self, id: CallId, results: ResultLeases) {
        let Ok(slot) = self.slot(id) else { return };
        let mut slot = slot.lock();
        if slot.cancelled == Some(id.generation) {
            results.release();
        } else if !slot.is_stale(id.generation) {
            slot.results = Some((id.generation, results));
        }
    }

    /// Ends the call `id`. Called when the caller has cancelled the call. If the call has already
    /// finished, ends the leases of the memory in its result instead, because the caller will not
    /// use the result. Fails if the ID is not valid.
    pub(super) fn cancel(&self, id: CallId) -> Result<(), Violation> {
        let cancelled = {
            let mut slot = self.slot(id)?.lock();
            let is_this = |results: &mut (u32, ResultLeases)| results.0 == id.generation;
            if let Some((_, results)) = slot.results.take_if(is_this) {
                results.release();
            }
            let cancelled = slot.take(id.generation);
            if cancelled.is_none() && !slot.is_stale(id.generation) {
                slot.newest = Some(id.generation);
                slot.cancelled = Some(id.generation);
            }
            cancelled
        };
        if let Some(cancelled) = cancelled {
            cancelled.stop(&Error::Cancelled);
        }
        Ok(())
    }

    /// Ends each call for whose deadline `is_due` returns `true`. Aborts the call's handler, fails
    /// its streams with `error`, and calls `ended` with the call's ID. Returns the earliest
    /// deadline of the remaining calls, or [`NO_DEADLINE`].
    pub(super) fn stop(
        &self,
        is_due: impl Fn(u64) -> bool,
        error: &Error,
        mut ended: impl FnMut(CallId),
    ) -> u64 {
        let mut next = NO_DEADLINE;
        for (index, slot) in self.0.iter().enumerate() {
            let stopped = {
                let mut slot = slot.lock();
                let due = slot.running.take_if(|running| is_due(running.deadline));
                if let Some(running) = &slot.running {
                    next = next.min(running.deadline);
                }
                due
            };
            if let Some(stopped) = stopped {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                let generation = stopped.generation;
                stopped.stop(error);
                ended(CallId { index, generation });
            }
        }
        next
    }
}

/// Returns whether the call with the number `generation` began before the call with the number
/// `other` in the same slot. The numbers wrap around.
fn precedes(generation: u32, other: u32) -> bool {
    generation.wrapping_sub(other).cast_signed() < 0
}

impl Slot {
    /// Returns whether the client has already sent a newer call in this slot than the call with the
    /// number `generation`. Frames of the older call must then be ignored.
    fn is_stale(&self, generation: u32) -> bool {
        self.newest
            .is_some_and(|newest| precedes(generation, newest))
    }

    /// Removes the running call from the slot, and returns the call. Returns `None`, and removes
    /// nothing, if the slot contains no call with this generation (use count of the slot).
    fn take(&mut self, generation: u32) -> Option<RunningCall> {
        self.running
            .take_if(|running| running.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::stream::{ReceiveBuffer, Window};

    fn id(index: u32, generation: u32) -> CallId {
        CallId { index, generation }
    }

    fn begin(slots: &Slots, id: CallId) -> Result<bool, Violation> {
        slots.begin(id, 10, Streams::default())
    }

    #[test]
    fn a_call_runs_from_its_beginning_to_its_end() {
        let slots = Slots::new(2);
        assert_eq!(begin(&slots, id(1, 5)), Ok(true));
        assert!(slots.is_running(id(1, 5)));
        assert!(!slots.is_running(id(1, 4)) && !slots.is_running(id(0, 5)));
        assert_eq!(begin(&slots, id(1, 5)), Err(Violation::Repeated));
        assert!(!slots.end(id(1, 4)));
        assert!(slots.is_running(id(1, 5)));
        assert!(slots.end(id(1, 5)));
        assert!(!slots.is_running(id(1, 5)));
        assert!(!slots.end(id(1, 5)), "the call has already ended");
    }

    #[test]
    fn a_new_call_in_a_slot_ends_the_previous_call() {
        let slots = Slots::new(1);
        assert_eq!(begin(&slots, id(0, 1)), Ok(true));
        assert_eq!(begin(&slots, id(0, 2)), Ok(true));
        assert!(!slots.is_running(id(0, 1)) && slots.is_running(id(0, 2)));
    }

    #[test]
    fn a_cancellation_that_arrives_before_its_request_cancels_the_call() {
        let slots = Slots::new(1);
        slots.cancel(id(0, 3)).unwrap();
        assert_eq!(begin(&slots, id(0, 3)), Ok(false));
        assert_eq!(begin(&slots, id(0, 4)), Ok(true));
        slots.cancel(id(0, 4)).unwrap();
        assert!(!slots.is_running(id(0, 4)));
    }

    #[test]
    fn a_stale_request_does_not_replace_a_newer_call() {
        let slots = Slots::new(2);
        // Generations wrap around.
        assert_eq!(begin(&slots, id(0, 0)), Ok(true));
        assert_eq!(begin(&slots, id(0, u32::MAX)), Ok(false));
        assert!(slots.is_running(id(0, 0)));
        // A stale request is also ignored after the newer call has finished or was cancelled.
        slots.end(id(0, 0));
        assert_eq!(begin(&slots, id(0, u32::MAX)), Ok(false));
        slots.cancel(id(1, 7)).unwrap();
        slots.cancel(id(1, 6)).unwrap();
        for generation in [5, 6, 7] {
            assert_eq!(begin(&slots, id(1, generation)), Ok(false));
        }
        assert_eq!(begin(&slots, id(1, 8)), Ok(true));
    }

    #[test]
    fn the_end_of_a_stream_may_arrive_before_its_request() {
        let slots = Slots::new(1);
        let input = || Streams {
            incoming: Some(Arc::new(ReceiveBuffer::new(Window { items: 4, bytes: 9 }))),
            ..Streams::default()
        };
        let is_ended = |streams: &Streams| {
            let mut cx = Context::from_waker(Waker::noop());
            let incoming = streams.incoming.as_ref().unwrap();
            let next = incoming.poll_run(&mut cx);
            matches!(next, Poll::Ready(Ok(None)))
        };
        slots.end_input(id(0, 3), 0).unwrap();
        slots.end_input(id(0, 2), 0).unwrap();
        let streams = input();
        assert_eq!(slots.begin(id(0, 3), 10, streams.clone()), Ok(true));
        assert!(is_ended(&streams));
        // The stored end is removed with its call. Late ends are ignored.
        slots.end_input(id(0, 2), 0).unwrap();
        slots.end(id(0, 3));
        slots.end_input(id(0, 3), 0).unwrap();
        let streams = input();
        assert_eq!(slots.begin(id(0, 4), 10, streams.clone()), Ok(true));
        assert!(!is_ended(&streams));
        slots.end_input(id(0, 4), 0).unwrap();
        assert!(is_ended(&streams));
        // The end of a stream that the method does not have is a violation.
        slots.end_input(id(0, 5), 0).unwrap();
        assert_eq!(begin(&slots, id(0, 5)), Err(Violation::Window));
    }

    #[test]
    fn indices_beyond_the_slots_are_refused() {
        let slots = Slots::new(1);
        assert_eq!(begin(&slots, id(1, 0)), Err(Violation::Index));
        assert_eq!(slots.cancel(id(u32::MAX, 0)), Err(Violation::Index));
    }

    #[test]
    fn only_calls_that_satisfy_the_condition_are_stopped() {
        let slots = Slots::new(3);
        for (index, deadline) in [(0, 5), (1, 20), (2, 30)] {
            let begun = slots.begin(id(index, 0), deadline, Streams::default());
            assert_eq!(begun, Ok(true));
        }
        let mut ended = Vec::new();
        let next = slots.stop(
            |deadline| deadline <= 20,
            &Error::Cancelled,
            |id| ended.push(id.index),
        );
        assert_eq!((next, ended), (30, vec![0, 1]));
    }
}
