//! A batch of receives: the requests are filled in one by one and posted in one call.

use std::fmt;

use super::batch::posted_before;
use super::receive_ring::ReceiveRing;
use super::request::{receive_request, scatter, scatter_fast_path};
use super::ring::Unstaged;
use crate::error::{Error, Result};
use crate::memory::Scatter;
use crate::queue_pair::KeepAlive;

/// A batch of receives under construction: the receives are added one by one, and then posted to
/// the borrowed queue in one call.
pub(crate) struct ReceiveStaging<'a, T: Send + 'static> {
    queue: &'a mut ReceiveRing<T>,
    /// Index, in the batch storage, of the first receive that was added and not posted.
    first: usize,
}

impl<T: Send + 'static> fmt::Debug for ReceiveStaging<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveStaging")
            .field("queue", &self.queue)
            .field("len", &self.len())
            .finish()
    }
}

impl<'a, T: Send + 'static> ReceiveStaging<'a, T> {
    /// Begins an empty batch that will post to `queue`.
    #[inline]
    pub(crate) fn new(queue: &'a mut ReceiveRing<T>) -> Self {
        queue.ring.begin_staging();
        queue.open_room();
        Self { queue, first: 0 }
    }

    /// Returns the number of receives that were added to the batch and not posted yet.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.ring.staged()
    }

    /// Adds a receive into `memory` to the batch. On failure returns the error and the memory.
    #[inline(always)]
    pub(crate) fn stage(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let queue = &mut *self.queue;
        let Some(id) = queue.ring.fast_path_staged_id() else {
            return self.stage_any(memory);
        };
        let limits = queue.limits();
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        let Some(count) = scatter_fast_path(room, &memory, limits) else {
            return self.stage_any(memory);
        };
        wr.write(receive_request(room, count, id));
        // SAFETY: the ring has returned an id of the fast path for the receive.
        unsafe { queue.ring.stage_memory(memory) };
        Ok(())
    }

    #[inline(never)]
    fn stage_any(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let queue = &mut *self.queue;
        if !queue.ring.has_room() {
            return Err((queue.full(), memory));
        }
        let id = queue.ring.staged_id();
        let limits = queue.ring.queue_pair().sizes();
        let (wr, room) = queue.room.place(self.first + queue.ring.staged());
        let count = match scatter(
            room,
            &memory,
            limits,
            queue.ring.queue_pair().domain().context(),
        ) {
            Ok(count) => count,
            Err(error) => return Err((error, memory)),
        };
        wr.write(receive_request(room, count, id));
        queue.ring.stage(Some(memory), KeepAlive::Nothing);
        Ok(())
    }

    /// Posts the receives of the batch to the device in one call. Returns the number of posted
    /// receives, and the result of the call. After an error, the receives that were not posted stay
    /// in the batch.
    #[inline]
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        let count = self.len();
        if count == 0 {
            return (0, Ok(()));
        }
        let queue = &mut *self.queue;
        // SAFETY: the staged receives were filled in at these places, each with its id. The memory
        // is in the slots, where no code can access it; that of posted receives leaves the slots
        // when their completion takes it, or when the queue pair is destroyed.
        let posted = unsafe {
            let list = queue.room.chain(self.first, count);
            queue.ring.queue_pair().post_receives(list)
        };
        let (posted, result) = match posted {
            Ok(()) => (count, Ok(())),
            Err((error, bad)) => {
                let bad = queue.room.index_of(bad);
                (posted_before(bad, self.first, count), Err(error))
            }
        };
        queue.ring.launch_staged(posted);
        self.first = if result.is_ok() {
            0
        } else {
            self.first + posted
        };
        (posted, result)
    }

    /// Ends the batch. Returns an iterator over the memory of the receives that were not posted.
    pub(crate) fn end(&mut self) -> Unstaged<'_, T> {
        self.first = 0;
        self.queue.ring.end_staging()
    }
}

impl<T: Send + 'static> Drop for ReceiveStaging<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.queue.room.close();
    }
}
