//! [`Calls`]: the slots of the calls in progress on a connection.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::core::{Core, Side};
use crate::deadlines::NEVER;
use crate::error::Error;
use crate::payload::Stored;
use crate::status::Status;
use crate::stream::Streams;
use crate::wire::{CallId, Header};

/// Slots of a client's calls. A slot keeps its memory for the next call, so that a call allocates
/// nothing.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(super) slots: Box<[Mutex<Slot>]>,
    /// Indices of free slots. The last one was used last, so that few slots stay in the cache.
    free: Mutex<Vec<u32>>,
    /// One permit for each free slot.
    room: Semaphore,
    /// Number of occupied slots.
    active: AtomicU32,
    /// Set once the server accepts no new calls.
    is_closing: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(super) waker: Option<Waker>,
    deadline: u64,
    pub(super) body: Stored,
    pub(super) streams: Streams,
}

#[derive(Debug)]
pub(super) enum Phase {
    Free,
    Waiting,
    Answered(Answer),
}

/// Outcome of a call. The body of a response is in the slot.
#[derive(Debug)]
pub(crate) enum Answer {
    Response {
        codec: u8,
        is_error: bool,
    },
    Status(Status),
    /// The deadline has passed.
    Expired,
    /// The connection has ended.
    Ended(Error),
}

impl Calls {
    /// Creates slots for at most `capacity` concurrent calls. None can be used before
    /// [`Self::open`].
    pub(crate) fn new(capacity: u32) -> Self {
        let slot = || {
            Mutex::new(Slot {
                generation: 0,
                phase: Phase::Free,
                waker: None,
                deadline: NEVER,
                body: Stored::default(),
                streams: Streams::default(),
            })
        };
        Self {
            slots: std::iter::repeat_with(slot)
                .take(capacity as usize)
                .collect(),
            free: Mutex::new(Vec::with_capacity(capacity as usize)),
            room: Semaphore::new(0),
            active: AtomicU32::new(0),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Opens the slots that the server allows.
    pub(super) fn open(&self, allowed: u32) {
        let count = allowed.min(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        self.free.lock().extend((0..count).rev());
        self.room.add_permits(count as usize);
    }

    /// Begins no new calls from now on.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.room.close();
    }

    /// Returns whether new calls can be begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Takes a permit to begin a call, without waiting. Returns whether a slot is free.
    pub(super) fn try_permit(&self) -> bool {
        let permit = self.room.try_acquire();
        permit.map(SemaphorePermit::forget).is_ok()
    }

    /// Returns whether a call can be begun without waiting.
    pub(super) fn has_free(&self) -> bool {
        self.room.available_permits() > 0
    }

    /// Waits for a permit to begin a call.
    pub(super) async fn permit(&self, core: &Core) -> Result<(), Error> {
        match self.room.acquire().await {
            Ok(permit) => {
                permit.forget();
                Ok(())
            }
            Err(_) if core.end().is_some() => Err(core.ended_now()),
            Err(_) => Err(Error::ShuttingDown),
        }
    }

    /// Begins a call in a free slot, for which the caller has a permit.
    pub(super) fn begin<C: Deref<Target = Core>>(
        core: C,
        deadline: u64,
        streams: Streams,
    ) -> Result<Pending<C>, Error> {
        let id = calls(&core).occupy(deadline, streams);
        core.deadlines.add(deadline);
        let pending = Pending {
            core,
            id,
            is_sent: false,
        };
        // Checked after the slot is occupied: either this check sees the end, or `fail` sees the
        // slot.
        match pending.core.end() {
            Some(end) => Err(end.clone()),
            None if pending.calls().is_closing() => Err(Error::ShuttingDown),
            None => Ok(pending),
        }
    }

    fn occupy(&self, deadline: u64, streams: Streams) -> CallId {
        let popped = self.free.lock().pop();
        let index = popped.expect("there are no more permits than free slots");
        self.active.fetch_add(1, Ordering::Relaxed);
        let mut slot = self.slots[index as usize].lock();
        slot.phase = Phase::Waiting;
        slot.deadline = deadline;
        slot.streams = streams;
        let generation = slot.generation;
        CallId { index, generation }
    }

    /// Returns whether exactly one call is in progress.
    pub(super) fn has_one(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 1
    }

    /// Ends the calls whose deadline has passed at `now`, and returns the next deadline.
    pub(crate) fn expire(&self, now: u64) -> u64 {
        let mut next = NEVER;
        for slot in &self.slots {
            let (waker, streams) = {
                let mut slot = slot.lock();
                if !matches!(slot.phase, Phase::Waiting) {
                    continue;
                }
                if slot.deadline > now {
                    next = next.min(slot.deadline);
                    continue;
                }
                (slot.answer(Answer::Expired), slot.streams.clone())
            };
            streams.fail(&Error::Cancelled);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        next
    }

    /// Fails all calls with this error.
    pub(crate) fn fail(&self, error: &Error) {
        self.close();
        for slot in &self.slots {
            let (waker, streams) = {
                let mut slot = slot.lock();
                let streams = slot.streams.clone();
                (slot.answer(Answer::Ended(error.clone())), streams)
            };
            streams.fail(error);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn release(&self, id: CallId) -> bool {
        let (was_waiting, left) = {
            let mut slot = self.slots[id.index as usize].lock();
            slot.generation = slot.generation.wrapping_add(1);
            let phase = std::mem::replace(&mut slot.phase, Phase::Free);
            slot.body.clear();
            slot.deadline = NEVER;
            let left = (slot.waker.take(), std::mem::take(&mut slot.streams));
            (
                matches!(phase, Phase::Waiting | Phase::Answered(Answer::Expired)),
                left,
            )
        };
        let (waker, streams) = left;
        drop(waker);
        streams.fail(&Error::Cancelled);
        self.free.lock().push(id.index);
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.room.add_permits(1);
        was_waiting
    }
}

impl Slot {
    /// Answers the call if it waits, and returns its waker.
    pub(super) fn answer(&mut self, answer: Answer) -> Option<Waker> {
        if !matches!(self.phase, Phase::Waiting) {
            return None;
        }
        self.phase = Phase::Answered(answer);
        self.waker.take()
    }
}

/// A call in progress. Dropping it before the answer has arrived cancels the call at the server.
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub(super) struct Pending<C: Deref<Target = Core>> {
    pub(super) core: C,
    pub(super) id: CallId,
    /// Set once the server may have the request.
    pub(super) is_sent: bool,
}

impl<C: Deref<Target = Core>> Pending<C> {
    pub(super) fn calls(&self) -> &Calls {
        calls(&self.core)
    }

    /// Returns the deadline of the call; `None` without a deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = self.calls().slots[self.id.index as usize].lock().deadline;
        self.core.deadlines.time(deadline)
    }

    /// Waits for the answer, and passes it to `take` with the body of the response.
    pub(super) fn poll_answer<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(Answer, &mut Stored) -> T,
    ) -> Poll<T> {
        let mut slot = self.calls().slots[self.id.index as usize].lock();
        let slot = &mut *slot;
        match std::mem::replace(&mut slot.phase, Phase::Free) {
            Phase::Answered(answer) => {
                // The server need not be told that nobody waits any more, except after a deadline.
                if let Answer::Expired = answer {
                    slot.phase = Phase::Answered(Answer::Expired);
                }
                Poll::Ready(take(answer, &mut slot.body))
            }
            phase => {
                slot.phase = phase;
                match &mut slot.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl<C: Deref<Target = Core>> Drop for Pending<C> {
    fn drop(&mut self) {
        let is_unanswered = self.calls().release(self.id);
        if is_unanswered && self.is_sent && self.core.end().is_none() {
            // A connection that has ended also ends the call.
            drop(
                self.core
                    .outbox
                    .append_bare(&Header::Cancel { id: self.id }),
            );
        }
    }
}

/// Returns the calls of a client's connection.
pub(super) fn calls(core: &Core) -> &Calls {
    match &core.side {
        Side::Client(calls) => calls,
        Side::Server(_) => unreachable!("a client's connection is on the client's side"),
    }
}
