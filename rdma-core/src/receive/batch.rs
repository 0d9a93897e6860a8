//! Doorbell batches of shared receive queues.

use crate::error::Error;
use crate::ffi::{SharedReceiveSlots, SharedReceiveStaging};
use crate::memory::Scatter;
use crate::queue_pair::{BatchError, PostError};

/// Receives that one thread hands to a shared queue together, from
/// [`SharedReceiveQueue::batch`](super::SharedReceiveQueue::batch).
///
/// It is `Send` and `Sync` as the queue is, and takes `&mut self`. It has room of its own for its requests, so threads with a batch each do not wait for each other
/// but where the driver makes them. It is used again and again: posting leaves it empty. Dropping
/// it frees the slots of receives that were not posted and drops their memory; forgetting it loses
/// both, the slots until the queue is dropped.
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

    /// Adds memory for one message of any peer.
    ///
    /// # Errors
    ///
    /// As [`SharedReceiveQueue::post`](super::SharedReceiveQueue::post), but for the verb's, and
    /// [`Error::QueueFull`] when the batch is.
    #[inline]
    pub fn push(&mut self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.staging.stage(memory).map_err(PostError::new)
    }

    /// How many receives it has that were not posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.staging.len()
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.staging.len() == 0
    }

    /// Posts them, in one call of the driver, and tells how many they were. The batch is empty then
    /// and can take more. To post an empty batch does nothing.
    ///
    /// # Errors
    ///
    /// The verb's, with how many were posted before; the others stay in the batch.
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

    /// Takes the memory of the receives that were not posted back, in their order.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}
