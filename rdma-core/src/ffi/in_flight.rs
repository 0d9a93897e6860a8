//! In-flight memory of a queue that many threads post to, without a lock.

use std::fmt;
use std::sync::Arc;

use super::queue_pair::QueuePairHandle;
use super::request::{ReceiveElements, SendElements};
use super::slot_table::{Reserved, SlotTable};
use crate::error::Error;
use crate::memory::{Gather, Scatter};
use crate::queue_pair::SendRequest;

/// The requests of a queue, each in a slot from reservation to release.
pub(crate) struct Slots<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    table: SlotTable<T>,
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
            queue_pair,
            table: SlotTable::new(capacity),
        }
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    pub(crate) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Takes a free slot; `None` when every one is in use.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<Reserved> {
        self.table.reserve()
    }

    /// Gives a reserved slot back unused.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        self.table.cancel(reserved);
    }

    /// Posts a send request in a reserved slot; on failure the slot is free again.
    #[inline]
    pub(crate) fn post_send(
        &self,
        reserved: Reserved,
        request: SendRequest<T>,
    ) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if !self.table.owns(&reserved) {
            let error = Error::invalid("reserved slot", "it is of another queue");
            return Err((error, request.into_memory()));
        }
        let mut elements = SendElements::new();
        if let Err(error) = elements.gather(&request, self.queue_pair.sizes()) {
            self.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let mut wr = elements.work_request(&request, reserved.id());
        self.table.launch(&reserved, request.into_memory());
        // SAFETY: `elements` outlives the call. The memory is in the slot, where nobody can reach
        // it until `complete` takes it for a completion with this id, or the queue pair is
        // destroyed.
        let posted = unsafe { self.queue_pair.post_send(&mut wr) };
        posted.map_err(|error| (error, self.table.withdraw(reserved)))
    }

    /// Posts a receive request in a reserved slot; on failure the slot is free again.
    #[inline]
    pub(crate) fn post_receive(&self, reserved: Reserved, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let mut elements = ReceiveElements::new();
        if let Err(error) = elements.scatter(&memory, self.queue_pair.sizes()) {
            self.cancel(reserved);
            return Err((error, memory));
        }
        let mut wr = elements.work_request(reserved.id());
        self.table.launch(&reserved, memory);
        // SAFETY: as in `post_send`.
        let posted = unsafe { self.queue_pair.post_receive(&mut wr) };
        posted.map_err(|error| (error, self.table.withdraw(reserved)))
    }

    /// Takes the memory of the request with this id, once, and the index of its slot, which stays
    /// in use until [`Self::release`].
    #[inline]
    pub(crate) fn complete(&self, id: u64) -> Option<(u32, T)> {
        self.table.complete(id)
    }

    /// Makes a completed slot free again; does nothing to a slot in any other state.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.table.release(index);
    }
}

impl<T: Send + 'static> Drop for Slots<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.table.abandon() {
            self.queue_pair.abandon(memory);
        }
    }
}
