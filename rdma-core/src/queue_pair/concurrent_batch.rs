//! Doorbell batches of queues that many threads post to.

use ibverbs_sys::{ibv_recv_wr, ibv_send_wr};

use super::batch::kept;
use super::{BatchError, PostError, ReservedSlot, SendRequest};
use crate::ffi::{Slots, SlotsStaging};
use crate::memory::{Gather, Scatter};

/// Send requests that one thread hands to the device together, from
/// [`ConcurrentSendQueue::batch`](super::ConcurrentSendQueue::batch).
///
/// Each batch has room of its own for its requests, so threads with a batch each wait for each
/// other only in the driver. A batch is used again and again: posting leaves it empty. Dropping it
/// frees the slots of requests that were not posted and drops their memory; forgetting it loses
/// both, the slots until the queue is dropped.
#[derive(Debug)]
pub struct ConcurrentSendBatch<'a, T: Send + 'static> {
    staging: SlotsStaging<'a, T, ibv_send_wr>,
}

impl<'a, T: Send + 'static> ConcurrentSendBatch<'a, T> {
    pub(super) fn new(slots: &'a Slots<T>, capacity: usize) -> Self {
        Self {
            staging: SlotsStaging::new(slots, capacity),
        }
    }

    /// Adds a request in a slot of the queue. If that fails, the slot is free again.
    ///
    /// A request may be [unsignaled](SendRequest::unsignaled): the completion of the next signaled one
    /// completes it as well. The last request of each [`post`](Self::post) is signaled whatever it
    /// says, so that batches of `n` unsignaled requests have one completion each.
    ///
    /// # Errors
    ///
    /// The errors of [`ConcurrentSendQueue::post`](super::ConcurrentSendQueue::post), except the verb's, and
    /// [`Error::QueueFull`](crate::Error::QueueFull) when the batch is.
    #[inline]
    pub fn push(
        &mut self,
        slot: ReservedSlot<'_>,
        request: SendRequest<T>,
    ) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.staging.stage(slot.0, request).map_err(PostError::new)
    }

    /// Returns the number of requests that were added and not posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.staging.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.staging.len() == 0
    }

    /// Posts them, in one call of the driver, and tells how many they were. The batch is empty then
    /// and can take more. To post an empty batch does nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post`](super::SendBatch::post); the requests that were not posted stay in
    /// the batch.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    pub fn post(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Takes the memory of the requests that were not posted back, in their order; their slots are
    /// free again.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}

/// Receives that one thread hands to the device together, from
/// [`ConcurrentReceiveQueue::batch`](super::ConcurrentReceiveQueue::batch). Otherwise like
/// [`ConcurrentSendBatch`].
#[derive(Debug)]
pub struct ConcurrentReceiveBatch<'a, T: Send + 'static> {
    staging: SlotsStaging<'a, T, ibv_recv_wr>,
}

impl<'a, T: Send + 'static> ConcurrentReceiveBatch<'a, T> {
    pub(super) fn new(slots: &'a Slots<T>, capacity: usize) -> Self {
        Self {
            staging: SlotsStaging::new(slots, capacity),
        }
    }

    /// Adds memory for one message of the peer.
    ///
    /// # Errors
    ///
    /// The errors of [`ConcurrentReceiveQueue::post`](super::ConcurrentReceiveQueue::post), except the
    /// verb's, and [`Error::QueueFull`](crate::Error::QueueFull) when the batch is.
    #[inline]
    pub fn push(&mut self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.staging.stage(memory).map_err(PostError::new)
    }

    /// Returns the number of receives that were added and not posted.
    #[inline]
    pub fn len(&self) -> usize {
        self.staging.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.staging.len() == 0
    }

    /// Posts them as [`ConcurrentSendBatch::post`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post`](super::SendBatch::post).
    #[doc(alias = "ibv_post_recv")]
    pub fn post(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Takes the memory of the receives that were not posted back, in their order.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}
