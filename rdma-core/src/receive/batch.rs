//! Doorbell batches (receives that are posted in one call) of shared receive queues.

use crate::error::Error;
use crate::ffi::{SharedReceiveSlots, SharedReceiveStaging};
use crate::memory::Scatter;
use crate::queue_pair::{BatchError, PostError};

/// A batch of receives that one thread posts to a shared receive queue in one call. Created by
/// [`SharedReceiveQueue::batch`](super::SharedReceiveQueue::batch).
///
/// A batch is `Send` and `Sync` like the queue, and its methods take `&mut self`. Each batch has
/// its own buffer for requests, so threads that use separate batches wait for each other only in
/// the driver. Posting empties the batch, and the batch can be used again.
///
/// Dropping the batch drops the memory of the receives that were not posted. These receives then no
/// longer count against the capacity of the queue. Forgetting the batch (`mem::forget`) leaks the
/// memory, and the receives count against the capacity until the queue is dropped.
#[derive(Debug)]
pub struct SharedReceiveBatch<'a, T: Send + 'static> {
    staging: SharedReceiveStaging<'a, T>,
}

impl<'a, T: Send + 'static> SharedReceiveBatch<'a, T> {
    pub(super) fn new(slots: &'a SharedReceiveSlots<T>, capacity: usize) -> Self {
        Self {
            staging: SharedReceiveStaging::new(slots, capacity),
        }
    }

    /// Adds a receive to the batch: the device will write one message, from one of the peers, to
    /// `memory`.
    ///
    /// # Errors
    ///
    /// The errors of [`SharedReceiveQueue::post`](super::SharedReceiveQueue::post), except errors
    /// of the device, which only [`Self::post`] returns. Also returns [`Error::QueueFull`] if the
    /// batch is full.
    #[inline]
    pub fn push(&mut self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.staging.stage(memory).map_err(PostError::new)
    }

    /// Returns the number of receives that were added to the batch and not posted yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.staging.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.staging.len() == 0
    }

    /// Posts all receives of the batch in one call of the driver, and returns the number of
    /// receives. The batch is then empty and can be used again. Posting an empty batch has no
    /// effect.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_srq_recv`, with the number of receives that were posted. The receives
    /// that were not posted stay in the batch.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self) -> Result<usize, BatchError> {
        let (posted, result) = self.staging.post();
        let refused = |error: Error| BatchError {
            posted,
            error,
            rest: (),
        };
        result.map(|()| posted).map_err(refused)
    }

    /// Removes the receives that were not posted from the batch, and returns their memory in the
    /// order of addition.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}
