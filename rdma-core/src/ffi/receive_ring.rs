//! The receive queue of a queue pair for a single owner: posts receives, and keeps receives in
//! flight.

use std::fmt;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::batch::BatchStorage;
use super::queue_pair::QueuePairHandle;
use super::request::{Limits, receive_request, scatter, scatter_fast_path, stack_room};
use super::ring::Ring;
use crate::error::Error;
use crate::memory::Scatter;
use crate::queue_pair::KeepAlive;

/// The receive queue of a queue pair, used by a single owner. The queue posts receives, and keeps
/// the memory of each receive until the receive has completed.
pub(crate) struct ReceiveRing<T: Send + 'static> {
    pub(super) ring: Ring<T>,
    /// Storage in which batches are built.
    pub(super) room: BatchStorage<sys::ibv_recv_wr>,
    limits: Limits,
}

impl<T: Send + 'static> fmt::Debug for ReceiveRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(f)
    }
}

impl<T: Send + 'static> ReceiveRing<T> {
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>) -> Self {
        let sizes = queue_pair.sizes();
        let capacity = match no_receive_queue(&queue_pair) {
            Some(_) => 0,
            None => sizes.receive_requests,
        };
        let ring = Ring::new(queue_pair, capacity, sizes.receive_elements > 0);
        Self {
            room: BatchStorage::CLOSED,
            limits: Limits::of_receives(ring.queue_pair()),
            ring,
        }
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        self.ring.queue_pair()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns whether `id` is the id of the oldest receive in flight.
    #[inline]
    pub(crate) fn is_oldest(&self, id: u64) -> bool {
        self.ring.is_oldest(id)
    }

    /// Removes the oldest receive in flight, and returns its memory. The caller must ensure that a
    /// receive is in flight.
    #[inline]
    pub(crate) fn complete_oldest(&mut self) -> Option<T> {
        self.ring.take_oldest()
    }

    /// Removes the receive with the id `id`, and returns its memory. Returns `None` if no receive
    /// of this queue with this id is in flight.
    pub(crate) fn complete(&mut self, id: u64) -> Option<T> {
        self.ring.take(id)
    }

    /// Returns the limits that a receive must meet to be posted with few checks: the maximum number
    /// of elements, and the context with which the memory must be registered.
    #[inline]
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Prepares the storage in which a batch of receives is built. Reuses or allocates memory for
    /// as many receives as the queue can hold, each with the maximum number of elements.
    #[inline]
    pub(super) fn open_room(&mut self) {
        self.room.open(self.ring.capacity(), self.limits.elements());
    }

    /// Posts a receive into `memory`, and keeps the memory until the receive has completed. Returns
    /// the memory on an error. Most receives take a fast path with few checks, which is inlined at
    /// the caller. All other receives take [the general path](Self::post_any) with all checks.
    #[inline(always)]
    pub(crate) fn post(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let mut room = stack_room();
        if !self.ring.is_ready() {
            return self.post_any(memory);
        }
        let Some(count) = scatter_fast_path(&mut room, &memory, self.limits) else {
            return self.post_any(memory);
        };
        let mut wr = receive_request(&mut room, count, self.ring.next_id());
        // SAFETY: `room` outlives the call. On success the memory moves into its slot, where no
        // code can access it until the receive has completed or the queue pair is destroyed.
        let errno = unsafe { self.ring.fast_path().post_receive(&mut wr) };
        if errno != 0 {
            return Err(self.refused(errno, memory));
        }
        // SAFETY: the ring was ready, and no receive was posted since.
        unsafe { self.ring.keep_memory(memory) };
        Ok(())
    }

    #[cold]
    fn refused(&self, errno: i32, memory: T) -> (Error, T) {
        (self.ring.queue_pair().post_receive_error(errno), memory)
    }

    #[inline(never)]
    fn post_any(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        if self.ring.in_flight() == self.ring.capacity() {
            return Err((self.full(), memory));
        }
        let queue_pair = self.ring.queue_pair();
        let mut room = stack_room();
        let (limits, context) = (queue_pair.sizes(), queue_pair.domain().context());
        let count = match scatter(&mut room, &memory, limits, context) {
            Ok(count) => count,
            Err(error) => return Err((error, memory)),
        };
        let mut wr = receive_request(&mut room, count, self.ring.next_id());
        // SAFETY: `room` outlives the call. On success the memory moves into its slot, where no
        // code can access it until a completion of this queue takes it or the queue pair is
        // destroyed.
        match unsafe { queue_pair.post_receive(&mut wr) } {
            Ok(()) => {
                self.ring.keep(Some(memory), KeepAlive::Nothing);
                Ok(())
            }
            Err(error) => Err((error, memory)),
        }
    }

    #[cold]
    pub(super) fn full(&self) -> Error {
        if let Some(error) = no_receive_queue(self.ring.queue_pair()) {
            return error;
        }
        Error::QueueFull {
            queue: "receive",
            capacity: self.ring.capacity(),
        }
    }
}

/// Returns an error if the queue pair has no receive queue of its own, and `None` if the queue pair
/// has a receive queue.
pub(super) fn no_receive_queue(queue_pair: &QueuePairHandle) -> Option<Error> {
    let reason = if queue_pair.shared_receive_queue().is_some() {
        "the queue pair takes its receives from a shared receive queue".to_owned()
    } else if !queue_pair.kind().has_receive_queue() {
        format!("{} queue pairs have no receive queue", queue_pair.kind())
    } else {
        return None;
    };
    Some(Error::invalid("receive", reason))
}
