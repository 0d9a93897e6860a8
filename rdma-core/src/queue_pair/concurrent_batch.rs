//! Doorbell batches (requests that are posted in one call) of the concurrent queues.

use ibverbs_sys::{ibv_recv_wr, ibv_send_wr};

use super::batch::kept;
use super::{BatchError, PostError, ReservedSlot, SendRequest};
use crate::ffi::{Slots, SlotsStaging};
use crate::memory::{Gather, Scatter};

/// Send requests of one thread that one call posts to the device together. Created by
/// [`ConcurrentSendQueue::batch`](super::ConcurrentSendQueue::batch).
///
/// Each batch has its own buffer for requests. Threads that use separate batches therefore wait for
/// each other only in the driver. Posting empties the batch, and the batch can be used again.
/// Dropping the batch drops the memory of the requests that were not posted, and releases their
/// slots. A slot is the storage for one request in flight. Forgetting the batch (`mem::forget`)
/// leaks that memory, and the slots stay in use until the queue is dropped.
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

    /// Adds a request to the batch. The request occupies `slot`, which the caller has reserved in
    /// the queue. If the request cannot be added, the slot is released.
    ///
    /// A request may be [unsignaled](SendRequest::unsignaled), which means without a completion of
    /// its own. The completion of the next signaled request then completes the unsignaled request
    /// as well. The last request of each [`post`](Self::post) is always made signaled, so a batch
    /// of `n` unsignaled requests has one completion.
    ///
    /// # Errors
    ///
    /// The errors of [`ConcurrentSendQueue::post`](super::ConcurrentSendQueue::post), except errors
    /// of the device. Only [`Self::post`] returns errors of the device.
    /// [`Error::QueueFull`](crate::Error::QueueFull) if the batch is full.
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

    /// Returns the number of requests that were added to the batch and not posted yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.staging.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.staging.len() == 0
    }

    /// Posts all requests by one call of the driver, and returns their number. The batch is then
    /// empty and can be used again. Posting an empty batch has no effect.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post`](super::SendBatch::post). The requests that were not posted
    /// stay in the batch.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    pub fn post(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Empties the batch, releases the slots of the requests that were not posted, and returns the
    /// memory of these requests in the order of addition.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}

/// Receive requests of one thread that one call posts to the device together. Created by
/// [`ConcurrentReceiveQueue::batch`](super::ConcurrentReceiveQueue::batch). [`ConcurrentSendBatch`]
/// describes the buffer of a batch, and the effect of dropping a batch.
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

    /// Adds a receive to the batch: the device will write one message of the peer to `memory`.
    ///
    /// # Errors
    ///
    /// The errors of [`ConcurrentReceiveQueue::post`](super::ConcurrentReceiveQueue::post), except
    /// errors of the device. Only [`Self::post`] returns errors of the device.
    /// [`Error::QueueFull`](crate::Error::QueueFull) if the batch is full.
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

    /// Posts all receives by one call of the driver, and returns their number. The batch is then
    /// empty and can be used again. Posting an empty batch has no effect.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post`](super::SendBatch::post).
    #[doc(alias = "ibv_post_recv")]
    pub fn post(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Empties the batch, and returns the memory of the receives that were not posted, in the order
    /// of addition.
    pub fn take_back(&mut self) -> impl Iterator<Item = T> {
        self.staging.end()
    }
}
