//! A batch of receives for a shared receive queue: the receives are posted in one call.

use std::fmt;

use ibverbs_sys as sys;

use super::batch::{BatchStorage, posted_before};
use super::elements::MAX_ELEMENTS;
use super::request::{receive_request, scatter};
use super::shared_receive_slots::SharedReceiveSlots;
use super::slot_table::Reserved;
use crate::error::{Error, Result};
use crate::memory::Scatter;

/// A batch of receives for a shared receive queue. One thread builds the batch, and posts all
/// receives in one call. The batch has its own storage for the C structs of its receives.
pub(crate) struct SharedReceiveStaging<'a, T: Send + 'static> {
    slots: &'a SharedReceiveSlots<T>,
    room: BatchStorage<sys::ibv_recv_wr>,
    /// Index, in `room`, of the first receive that was added and not posted.
    first: usize,
    /// The receives that were added and not posted, in the order of addition. The vector never
    /// reallocates. The memory of a receive is `None` only during posting.
    staged: Vec<(Reserved, Option<T>)>,
}

impl<T: Send + 'static> fmt::Debug for SharedReceiveStaging<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveStaging")
            .field("slots", &self.slots)
            .field("len", &self.len())
            .finish()
    }
}

impl<'a, T: Send + 'static> SharedReceiveStaging<'a, T> {
    /// Creates an empty batch of at most `capacity` receives, which will be posted to the queue of
    /// `slots`.
    pub(crate) fn new(slots: &'a SharedReceiveSlots<T>, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, slots.most());
        let mut room = BatchStorage::CLOSED;
        room.open(capacity, MAX_ELEMENTS);
        Self {
            slots,
            room,
            first: 0,
            staged: Vec::with_capacity(capacity),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.staged.len()
    }

    /// Adds a receive into `memory` to the batch. Returns the memory on an error, for example if
    /// every slot is in use.
    #[inline]
    pub(crate) fn stage(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let place = self.first + self.staged.len();
        if place == self.room.capacity() {
            let error = Error::QueueFull {
                queue: "batch",
                capacity: self.room.capacity(),
            };
            return Err((error, memory));
        }
        let (wr, room) = self.room.place(place);
        let count = match scatter(room, &memory, self.slots.limits(), self.slots.context()) {
            Ok(count) => count,
            Err(error) => return Err((error, memory)),
        };
        let Some(reserved) = self.slots.table().reserve() else {
            return Err((self.slots.full(), memory));
        };
        wr.write(receive_request(room, count, reserved.id()));
        self.staged.push((reserved, Some(memory)));
        Ok(())
    }

    /// Posts the receives of the batch to the device in one call. Returns the number of posted
    /// receives, and the result of the call. After an error, the receives that were not posted stay
    /// in the batch.
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        let count = self.staged.len();
        if count == 0 {
            return (0, Ok(()));
        }
        for (reserved, memory) in &mut self.staged {
            let memory = memory.take().expect("memory that is not posted");
            self.slots.table().launch(reserved, memory);
        }
        // SAFETY: the staged receives were filled in at these places, each with the id of its slot.
        // The memory is in the slots, where no code can access it until `complete` takes it for a
        // completion with the id, or the queue is destroyed. The memory of receives that were not
        // posted is recalled.
        let posted = unsafe {
            let list = self.room.chain(self.first, count);
            self.slots.handle().post_list(list)
        };
        match posted {
            Ok(()) => {
                self.staged.clear();
                self.first = 0;
                (count, Ok(()))
            }
            Err((error, bad)) => (self.recall(bad), Err(error)),
        }
    }

    /// Takes the memory of the receives that were not posted back out of their slots. The receives
    /// that were not posted are `bad` and all receives after `bad`. Returns the number of receives
    /// that were posted.
    #[cold]
    fn recall(&mut self, bad: *mut sys::ibv_recv_wr) -> usize {
        let count = self.staged.len();
        let posted = posted_before(self.room.index_of(bad), self.first, count);
        for (reserved, memory) in &mut self.staged[posted..] {
            *memory = Some(self.slots.table().recall(reserved));
        }
        self.staged.drain(..posted);
        self.first = if posted == count {
            0
        } else {
            self.first + posted
        };
        posted
    }

    /// Ends the batch, and returns the memory of the receives that were not posted. Frees the slots
    /// of all these receives, even if the caller does not take the memory of each.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = T> {
        self.first = 0;
        for (reserved, _) in &self.staged {
            self.slots.table().cancel(reserved.duplicate());
        }
        self.staged.drain(..).filter_map(|(_, memory)| memory)
    }
}

impl<T: Send + 'static> Drop for SharedReceiveStaging<'_, T> {
    fn drop(&mut self) {
        self.end().for_each(drop);
        self.room.close();
    }
}
