//! [`Slots`]: the calls of one connection that its server runs.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::bulk::Results;
use crate::deadlines::NEVER;
use crate::error::Error;
use crate::stream::Streams;
use crate::wire::{CallId, Violation};

/// Slots of running calls, at the indices that the client chose. Their number limits the calls of
/// the connection.
#[derive(Debug)]
pub(super) struct Slots(Box<[Mutex<Slot>]>);

#[derive(Debug, Default)]
struct Slot {
    /// Call that runs in the slot.
    running: Option<Running>,
    /// Newest generation of a request or of a cancellation. Requests of older ones are stale.
    newest: Option<u32>,
    /// Generation of a call that was cancelled before its request arrived: a short message may
    /// overtake a long one.
    cancelled: Option<u32>,
    /// Generation and number of items of an input that ended before its request arrived.
    ended: Option<(u32, u32)>,
    /// Generation of the last call whose result has bulks, with their leases.
    results: Option<(u32, Results)>,
}

#[derive(Debug)]
struct Running {
    generation: u32,
    deadline: u64,
    streams: Streams,
    /// Task of the handler, unless the handler is in its first poll.
    task: Option<AbortHandle>,
    /// Notification of those who wait for the end of the call; `None` if nobody has waited.
    watch: Option<Arc<Notify>>,
}

impl Running {
    /// Ends the call: drops its handler at the next `await`.
    fn stop(mut self, error: &Error) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        self.end(error);
    }

    fn end(self, error: &Error) {
        self.streams.fail(error);
        if let Some(watch) = self.watch {
            watch.notify_waiters();
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

    fn slot(&self, id: CallId) -> Result<&Mutex<Slot>, Violation> {
        self.0.get(id.index as usize).ok_or(Violation::Index)
    }

    /// Begins a call. Ends the former call of the slot, which the client has given up. Returns
    /// `false` if the call was cancelled before it began, or if the client has used the slot again
    /// since.
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
            let is_repeated = |running: &Running| running.generation == generation;
            if slot.running.as_ref().is_some_and(is_repeated) {
                return Err(Violation::Repeated);
            }
            slot.newest = Some(generation);
            slot.cancelled = None;
            let ended = slot.ended.take();
            if let Some((_, items)) = ended.filter(|ended| ended.0 == generation) {
                let inlet = streams.inlet.as_ref().ok_or(Violation::Window)?;
                inlet.end(items)?;
            }
            slot.running.replace(Running {
                generation,
                deadline,
                streams,
                task: None,
                watch: None,
            })
        };
        if let Some(former) = former {
            former.stop(&Error::Cancelled);
        }
        Ok(true)
    }

    /// Sets the task of a handler that did not finish in its first poll.
    pub(super) fn set_task(&self, id: CallId, task: AbortHandle) {
        let is_running = self.with(id, |running| running.task = Some(task.clone()));
        if is_running.is_none() {
            task.abort();
        }
    }

    /// Calls `visit` with a running call, or returns `None` if the call does not run.
    fn with<T>(&self, id: CallId, visit: impl FnOnce(&mut Running) -> T) -> Option<T> {
        let mut slot = self.slot(id).ok()?.lock();
        let running = slot.running.as_mut();
        running
            .filter(|running| running.generation == id.generation)
            .map(visit)
    }

    /// Returns a stream of a running call; `None` if the call does not run.
    pub(super) fn stream<T>(
        &self,
        id: CallId,
        of: impl FnOnce(&Streams) -> Option<T>,
    ) -> Result<Option<T>, Violation> {
        self.slot(id)?;
        match self.with(id, |running| of(&running.streams)) {
            Some(None) => Err(Violation::Window),
            found => Ok(found.flatten()),
        }
    }

    /// Ends the input of a call. The end of a call whose request has not arrived is remembered.
    pub(super) fn end_input(&self, id: CallId, items: u32) -> Result<(), Violation> {
        let inlet = {
            let mut slot = self.slot(id)?.lock();
            let generation = id.generation;
            match &slot.running {
                Some(running) if running.generation == generation => {
                    running.streams.inlet.clone().ok_or(Violation::Window)?
                }
                _ => {
                    let is_late = slot.newest == Some(generation) || slot.is_stale(generation);
                    let is_older = |ended: (u32, u32)| precedes(generation, ended.0);
                    if !is_late && !slot.ended.is_some_and(is_older) {
                        slot.ended = Some((generation, items));
                    }
                    return Ok(());
                }
            }
        };
        inlet.end(items)
    }

    /// Returns whether a call runs.
    pub(super) fn is_running(&self, id: CallId) -> bool {
        self.with(id, |_| ()).is_some()
    }

    /// Returns the notification of the end of a call; `None` if the call does not run.
    pub(super) fn watch(&self, id: CallId) -> Option<Arc<Notify>> {
        self.with(id, |running| {
            Arc::clone(running.watch.get_or_insert_default())
        })
    }

    /// Ends a call whose handler has finished.
    pub(super) fn end(&self, id: CallId) {
        let ended = self
            .slot(id)
            .ok()
            .and_then(|slot| slot.lock().take(id.generation));
        if let Some(ended) = ended {
            ended.end(&Error::Cancelled);
        }
    }

    /// Sets the leases of the result of a call that has ended. If its caller has given it up, they
    /// end.
    pub(super) fn set_results(&self, id: CallId, results: Results) {
        let Ok(slot) = self.slot(id) else { return };
        let mut slot = slot.lock();
        if slot.cancelled == Some(id.generation) {
            results.release();
        } else if !slot.is_stale(id.generation) {
            slot.results = Some((id.generation, results));
        }
    }

    /// Ends a call that its caller has given up. A result that is on its way will not be decoded.
    pub(super) fn cancel(&self, id: CallId) -> Result<(), Violation> {
        let cancelled = {
            let mut slot = self.slot(id)?.lock();
            let is_this = |results: &mut (u32, Results)| results.0 == id.generation;
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

    /// Ends the calls for which `is_due` holds, passing their numbers to `ended`, and returns the
    /// earliest deadline of the others.
    pub(super) fn stop(
        &self,
        is_due: impl Fn(u64) -> bool,
        error: &Error,
        mut ended: impl FnMut(CallId),
    ) -> u64 {
        let mut next = NEVER;
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

/// Returns whether a generation is older than another one. Generations wrap around.
fn precedes(generation: u32, other: u32) -> bool {
    generation.wrapping_sub(other).cast_signed() < 0
}

impl Slot {
    /// Returns whether the slot was used again after this generation.
    fn is_stale(&self, generation: u32) -> bool {
        self.newest
            .is_some_and(|newest| precedes(generation, newest))
    }

    fn take(&mut self, generation: u32) -> Option<Running> {
        self.running
            .take_if(|running| running.generation == generation)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::stream::{Inlet, Window};

    fn id(index: u32, generation: u32) -> CallId {
        CallId { index, generation }
    }

    fn begin(slots: &Slots, id: CallId) -> Result<bool, Violation> {
        slots.begin(id, 10, Streams::default())
    }

    #[test]
    fn a_call_runs_from_its_begin_to_its_end() {
        let slots = Slots::new(2);
        assert_eq!(begin(&slots, id(1, 5)), Ok(true));
        assert!(slots.is_running(id(1, 5)));
        assert!(!slots.is_running(id(1, 4)) && !slots.is_running(id(0, 5)));
        assert_eq!(begin(&slots, id(1, 5)), Err(Violation::Repeated));
        slots.end(id(1, 4));
        assert!(slots.is_running(id(1, 5)));
        slots.end(id(1, 5));
        assert!(!slots.is_running(id(1, 5)));
    }

    #[test]
    fn a_slot_that_is_used_again_ends_the_former_call() {
        let slots = Slots::new(1);
        assert_eq!(begin(&slots, id(0, 1)), Ok(true));
        assert_eq!(begin(&slots, id(0, 2)), Ok(true));
        assert!(!slots.is_running(id(0, 1)) && slots.is_running(id(0, 2)));
    }

    #[test]
    fn a_cancellation_before_the_request_is_remembered() {
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
        // Neither after the newer call has finished, nor if the newer one was cancelled early.
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
    fn an_end_before_the_request_is_remembered() {
        let slots = Slots::new(1);
        let input = || Streams {
            inlet: Some(Arc::new(Inlet::new(Window { items: 4, bytes: 9 }))),
            ..Streams::default()
        };
        let is_ended = |streams: &Streams| {
            let mut cx = Context::from_waker(Waker::noop());
            let inlet = streams.inlet.as_ref().unwrap();
            let next = inlet.poll_run(&mut cx);
            matches!(next, Poll::Ready(Ok(None)))
        };
        slots.end_input(id(0, 3), 0).unwrap();
        slots.end_input(id(0, 2), 0).unwrap();
        let streams = input();
        assert_eq!(slots.begin(id(0, 3), 10, streams.clone()), Ok(true));
        assert!(is_ended(&streams));
        // It is forgotten with the call. Late ones are ignored.
        slots.end_input(id(0, 2), 0).unwrap();
        slots.end(id(0, 3));
        slots.end_input(id(0, 3), 0).unwrap();
        let streams = input();
        assert_eq!(slots.begin(id(0, 4), 10, streams.clone()), Ok(true));
        assert!(!is_ended(&streams));
        slots.end_input(id(0, 4), 0).unwrap();
        assert!(is_ended(&streams));
        // A call that takes no items has no end of them.
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
    fn only_calls_that_are_due_are_stopped() {
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
