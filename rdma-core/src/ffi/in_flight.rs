//! In-flight memory of a queue that many threads post to, without a lock.

use std::fmt;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use super::queue_pair::QueuePairHandle;
use super::receive_ring::no_receive_queue;
use super::request::{
    Limits, ReceiveElements, describe_inline, describe_send, describe_usual, stack_room,
};
use super::reserved_slot::SlotGuard;
use super::ring::Held;
use super::slot_table::{Reserved, SlotTable};
use crate::error::Error;
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{InlineData, KeepAlive, Outcome, SendRequest};

/// The requests of a queue, each in a slot from reservation to release.
pub(crate) struct Slots<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    table: SlotTable<Held<T>>,
    /// What usual send requests may have, where they may be posted in the usual way.
    usual: Option<Limits>,
}

impl<T: Send + 'static> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("queue_pair", &self.queue_pair.number())
            .field("table", &self.table)
            .finish()
    }
}

impl<T: Send + 'static> Slots<T> {
    /// A table of `capacity` slots, at most 2^16.
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        Self {
            usual: queue_pair.is_usual().then(|| Limits::of_sends(&queue_pair)),
            queue_pair,
            table: SlotTable::new(capacity),
        }
    }

    /// A table for receives. Where the queue pair takes none, its one slot is in use for ever.
    pub(crate) fn for_receives(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let refused = no_receive_queue(&queue_pair).is_some();
        let slots = Self::new(queue_pair, if refused { 1 } else { capacity });
        if refused && let Some(slot) = slots.reserve() {
            slot.into_reserved();
        }
        slots
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    pub(super) fn table(&self) -> &SlotTable<Held<T>> {
        &self.table
    }

    pub(crate) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Takes a free slot, which is free again when the guard is dropped; `None` when every one is in
    /// use.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<SlotGuard<'_>> {
        self.table.reserve().map(|reserved| self.guard(reserved))
    }

    /// Guards a slot of this table again that was taken out of its guard.
    #[inline]
    pub(crate) fn guard(&self, reserved: Reserved) -> SlotGuard<'_> {
        SlotGuard::new(&self.table, reserved)
    }

    /// Takes a slot of this table out of its guard; one of another table goes back there.
    #[inline]
    pub(super) fn claim(&self, slot: SlotGuard<'_>) -> Result<Reserved, Error> {
        if self.table.owns(slot.reserved()) {
            Ok(slot.into_reserved())
        } else {
            Err(foreign_slot())
        }
    }

    /// Gives a reserved slot back unused.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        self.table.cancel(reserved);
    }

    /// Posts a send request in a reserved slot, which is free again on failure. The usual ones go
    /// a way that the compiler makes one piece of code of, with the request's description, and the
    /// others [the general way](Self::post_any).
    #[inline(always)]
    pub(crate) fn post_send(
        &self,
        slot: SlotGuard<'_>,
        request: SendRequest<T>,
    ) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let reserved = match self.claim(slot) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (memory, description, keep) = request.into_pieces();
        let (Some(limits), KeepAlive::Nothing) = (self.usual, &keep) else {
            let request = SendRequest::from_pieces((memory, description, keep));
            return self.post_any(reserved, request);
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !describe_usual(&mut wr, &mut room, &memory, &description, limits, id) {
            let request = SendRequest::from_pieces((memory, description, keep));
            return self.post_any(reserved, request);
        }
        // It has nothing to be dropped, which the compiler does not see.
        mem::forget(keep);
        let held = Held {
            memory: Some(memory),
            keep: KeepAlive::Nothing,
        };
        self.table.launch(&reserved, held);
        // SAFETY: it was described, and `room` outlives the call. The memory is in the slot, where
        // nobody can reach it until `complete` takes it for a completion with this id, or the queue
        // pair is destroyed.
        let errno = unsafe { self.queue_pair.usual().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_send_error(errno)))
    }

    /// Takes back the memory of a request that was not posted.
    #[cold]
    fn withdraw(&self, reserved: Reserved, error: Error) -> (Error, T) {
        let mut held = self.table.withdraw(reserved);
        held.keep.settle(Outcome::NotPosted);
        (error, held.memory.expect("the memory that was put in"))
    }

    #[inline(never)]
    fn post_any(&self, reserved: Reserved, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&self.queue_pair, reserved.id());
        if let Err(error) = describe_send(&mut wr, &mut room, &request, queue_pair, id) {
            self.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let (memory, keep) = request.into_parts();
        let memory = Some(memory);
        self.table.launch(&reserved, Held { memory, keep });
        // SAFETY: it was described, and `room` outlives the call. Memory and what keeps alive are in
        // the slot, where nobody can reach them until `complete` takes them for a completion with
        // this id, or the queue pair is destroyed.
        let posted = unsafe { queue_pair.post_send(wr.assume_init_mut()) };
        posted.map_err(|error| self.withdraw(reserved, error))
    }

    /// Posts a send request whose data is copied in a reserved slot, which is free again on failure.
    #[inline]
    pub(crate) fn post_inline<D: InlineData>(
        &self,
        slot: SlotGuard<'_>,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        let reserved = match self.claim(slot) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&self.queue_pair, reserved.id());
        if let Err(error) = describe_inline(&mut wr, &mut room, &request, queue_pair, id) {
            self.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let (data, keep) = request.into_parts();
        self.table.launch(&reserved, Held { memory: None, keep });
        // SAFETY: it was described, and `room` and the data, which is copied, outlive the call. What
        // keeps alive is in the slot.
        let posted = unsafe { queue_pair.post_send(wr.assume_init_mut()) };
        posted.map_err(|error| {
            let mut held = self.table.withdraw(reserved);
            held.keep.settle(Outcome::NotPosted);
            (error, data)
        })
    }

    /// Posts a receive request in a free slot.
    #[inline]
    pub(crate) fn post_receive(&self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let Some(reserved) = self.table.reserve() else {
            return Err((self.no_slot(), memory));
        };
        let mut elements = ReceiveElements::new();
        let (limits, context) = (self.queue_pair.sizes(), self.queue_pair.domain().context());
        if let Err(error) = elements.scatter(&memory, limits, context) {
            self.cancel(reserved);
            return Err((error, memory));
        }
        let mut wr = elements.work_request(reserved.id());
        let held = Held {
            memory: Some(memory),
            keep: KeepAlive::Nothing,
        };
        self.table.launch(&reserved, held);
        // SAFETY: as in `post_send`.
        let posted = unsafe { self.queue_pair.post_receive(&mut wr) };
        posted.map_err(|error| {
            let held = self.table.withdraw(reserved);
            (error, held.memory.expect("the memory that was put in"))
        })
    }

    /// Why a receive found no free slot.
    #[cold]
    pub(super) fn no_slot(&self) -> Error {
        no_receive_queue(&self.queue_pair).unwrap_or(Error::QueueFull {
            queue: "receive",
            capacity: self.capacity(),
        })
    }

    /// Takes the memory, if it has some, of the request with this id, once, and the index of its
    /// slot, which stays in use until [`Self::release`].
    #[inline]
    pub(crate) fn complete(&self, id: u64, outcome: Outcome) -> Option<(u32, Option<T>)> {
        let (index, mut held) = self.table.complete(id)?;
        held.keep.settle(outcome);
        Some((index, held.memory))
    }

    /// Makes a completed slot free again; does nothing to a slot in any other state.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.table.release(index);
    }
}

#[cold]
fn foreign_slot() -> Error {
    Error::invalid("reserved slot", "it is of another queue")
}

impl<T: Send + 'static> Drop for Slots<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.table.abandon() {
            self.queue_pair.abandon(memory);
        }
    }
}
