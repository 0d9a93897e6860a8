//! The receives in flight of a shared receive queue, each with its memory.

use std::fmt;
use std::sync::Arc;

use super::context::ContextHandle;
use super::queue_pair::QueuePairSizes;
use super::request::{Limits, ReceiveElements, receive_request, scatter_fast_path, stack_room};
use super::shared_receive_queue::SharedReceiveQueueHandle;
use super::slot_table::{Reserved, SlotTable};
use crate::error::Error;
use crate::memory::Scatter;

/// The receives of a shared receive queue that have not completed. Each receive uses a slot (a
/// place in a fixed table) from posting to completion.
pub(crate) struct SharedReceiveSlots<T: Send + 'static> {
    handle: Arc<SharedReceiveQueueHandle>,
    table: SlotTable<T>,
    /// Limits that receives on the fast path must meet, or `None` if the queue does not support the
    /// fast path.
    fast_path: Option<Limits>,
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
    /// Creates a table with `slots` slots, but at most 2^16. Each slot is a place for one receive
    /// in flight.
    pub(crate) fn new(handle: Arc<SharedReceiveQueueHandle>, slots: u32) -> Self {
        let elements = handle.elements();
        let limits = || Limits::of_shared_receives(elements, handle.domain().context());
        Self {
            fast_path: (elements > 0).then(limits),
            handle,
            table: SlotTable::new(slots),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<SharedReceiveQueueHandle> {
        &self.handle
    }

    /// Returns the number of slots: the maximum number of receives in flight.
    pub(crate) fn most(&self) -> usize {
        self.table.capacity()
    }

    pub(super) fn table(&self) -> &SlotTable<T> {
        &self.table
    }

    /// Returns the limits that the memory of a receive must meet. Only the maximum number of
    /// elements is set, because the other limits do not concern receives.
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

    /// Returns the context with which memory for receives must be registered.
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

    /// Posts a receive into `memory`. Most receives take a fast path, which is inlined at the
    /// caller. All other receives take [the general path](Self::post_any).
    #[inline(always)]
    pub(crate) fn post(&self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let Some(reserved) = self.table.reserve() else {
            return Err((self.full(), memory));
        };
        let mut room = stack_room();
        let fast_path = self.fast_path;
        let count = fast_path.and_then(|limits| scatter_fast_path(&mut room, &memory, limits));
        let Some(count) = count else {
            return self.post_any(reserved, memory);
        };
        let mut wr = receive_request(&mut room, count, reserved.id());
        self.table.launch(&reserved, memory);
        // SAFETY: `room` outlives the call. The memory is in the slot, where no code can access it
        // until `complete` takes it for a completion with this id, or the queue is destroyed.
        let errno = unsafe { self.handle.post_fast_path(&mut wr) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.refused(errno, reserved))
    }

    #[cold]
    fn refused(&self, errno: i32, reserved: Reserved) -> (Error, T) {
        (self.handle.post_error(errno), self.table.withdraw(reserved))
    }

    #[inline(never)]
    fn post_any(&self, reserved: Reserved, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let mut elements = ReceiveElements::new();
        if let Err(error) = elements.scatter(&memory, self.limits(), self.context()) {
            self.table.cancel(reserved);
            return Err((error, memory));
        }
        let mut wr = elements.work_request(reserved.id());
        self.table.launch(&reserved, memory);
        // SAFETY: `elements` outlives the call. The memory is in the slot, where no code can access
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
