//! The memory of the receives in a shared queue.

use std::fmt;
use std::sync::Arc;

use super::context::ContextHandle;
use super::queue_pair::QueuePairSizes;
use super::request::ReceiveElements;
use super::shared_receive_queue::SharedReceiveQueueHandle;
use super::slot_table::SlotTable;
use crate::error::Error;
use crate::memory::Scatter;

/// The receives of a shared queue, each in a slot from posting to completion.
pub(crate) struct SharedReceiveSlots<T: Send + 'static> {
    handle: Arc<SharedReceiveQueueHandle>,
    table: SlotTable<T>,
}

impl<T: Send + 'static> fmt::Debug for SharedReceiveSlots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveSlots")
            .field("handle", &self.handle)
            .field("table", &self.table)
            .finish()
    }
}

impl<T: Send + 'static> SharedReceiveSlots<T> {
    /// A table of `slots` slots, at most 2^16.
    pub(crate) fn new(handle: Arc<SharedReceiveQueueHandle>, slots: u32) -> Self {
        Self {
            handle,
            table: SlotTable::new(slots),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<SharedReceiveQueueHandle> {
        &self.handle
    }

    /// How many slots there are.
    pub(crate) fn most(&self) -> usize {
        self.table.capacity()
    }

    pub(super) fn table(&self) -> &SlotTable<T> {
        &self.table
    }

    /// What a receive can be.
    #[inline]
    pub(super) fn limits(&self) -> QueuePairSizes {
        QueuePairSizes {
            send_requests: 0,
            receive_requests: 0,
            send_elements: 0,
            receive_elements: self.handle.elements(),
            inline_data: 0,
        }
    }

    /// Whose keys the memory has to have.
    #[inline]
    pub(super) fn context(&self) -> &ContextHandle {
        self.handle.domain().context()
    }

    #[cold]
    pub(super) fn full(&self) -> Error {
        Error::QueueFull {
            queue: "shared receive",
            capacity: self.table.capacity(),
        }
    }

    #[inline]
    pub(crate) fn post(&self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let Some(reserved) = self.table.reserve() else {
            return Err((self.full(), memory));
        };
        let mut elements = ReceiveElements::new();
        if let Err(error) = elements.scatter(&memory, self.limits(), self.context()) {
            self.table.cancel(reserved);
            return Err((error, memory));
        }
        let mut wr = elements.work_request(reserved.id());
        self.table.launch(&reserved, memory);
        // SAFETY: `elements` outlives the call. The memory is in the slot, where nobody can reach
        // it until `complete` takes it for a completion with this id, or the queue is destroyed.
        let posted = unsafe { self.handle.post(&mut wr) };
        posted.map_err(|error| (error, self.table.withdraw(reserved)))
    }

    #[inline]
    pub(crate) fn complete(&self, id: u64) -> Option<T> {
        let (index, memory) = self.table.complete(id)?;
        self.table.release(index);
        Some(memory)
    }
}

impl<T: Send + 'static> Drop for SharedReceiveSlots<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.table.abandon() {
            self.handle.abandon(memory);
        }
    }
}
