//! Doorbell batches: many requests, one call of the driver.

use std::fmt;

use super::{InlineData, PostError, SendRequest};
use crate::error::Error;
use crate::ffi::{ReceiveRing, ReceiveStaging, SendRing, SendStaging, Unstaged};
use crate::memory::{Gather, Scatter};

/// A batch that was not posted, or posted in part. `Debug` prints the same text as `Display`.
#[derive(thiserror::Error)]
#[error("{posted} requests of the batch were posted, the next one was not: {error}")]
pub struct BatchError<B = ()> {
    /// The number of requests, from the batch's first on, that were posted.
    pub posted: usize,
    /// Why the next one was not.
    pub error: Error,
    /// The batch with the requests that were not posted, in their order, to be posted again or
    /// taken back. Nothing for batches that are still there.
    pub rest: B,
}

impl<B> fmt::Debug for BatchError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<B> From<BatchError<B>> for Error {
    fn from(refused: BatchError<B>) -> Self {
        refused.error
    }
}

/// Send requests that are handed to the device together, from
/// [`SendQueue::batch`](super::SendQueue::batch).
///
/// The requests are put together in memory that the thread keeps for its batches, and posted by one
/// call of the driver: a linked list for `ibv_post_send`, or, on queue pairs that were [made for
/// it](super::QueuePairBuilder::extended_posting) and if no request has several elements, one
/// sequence from `ibv_wr_start` to `ibv_wr_complete`. Memory is allocated only for a thread's first
/// batch, for a larger one, for one that is made beside two others, or for one that another thread
/// began. No code of the program runs within that call.
///
/// Dropping the batch drops the memory of requests that were not posted. Forgetting it leaves that
/// memory with the queue, which drops it when another batch or request takes the place; nothing of
/// it is posted.
///
/// A batch is `Send` if its queue and memory are.
#[derive(Debug)]
pub struct SendBatch<'a, T: Send + 'static> {
    staging: SendStaging<'a, T>,
}

impl<'a, T: Send + 'static> SendBatch<'a, T> {
    #[inline]
    pub(super) fn new(ring: &'a mut SendRing<T>) -> Self {
        Self {
            staging: SendStaging::new(ring),
        }
    }

    /// Adds a request.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`](super::SendQueue::post), except the verb's.
    #[inline(always)]
    pub fn push(&mut self, request: SendRequest<T>) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.staging.stage(request).map_err(PostError::new)
    }

    /// Adds a request whose data is copied when the batch is posted, as
    /// [`SendQueue::post_inline`](super::SendQueue::post_inline). It stays borrowed until then:
    ///
    /// ```compile_fail,E0597
    /// # use rdma_core::{Buffer, SendQueue, SendRequest};
    /// # fn example(queue: &mut SendQueue<Buffer>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut batch = queue.batch();
    /// {
    ///     let short_lived = vec![1_u8, 2, 3];
    ///     batch.push_inline(SendRequest::send(&short_lived[..]))?;
    /// }
    /// batch.post()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post_inline`](super::SendQueue::post_inline), except the verb's.
    #[inline]
    pub fn push_inline<D>(&mut self, request: SendRequest<D>) -> Result<(), PostError<D>>
    where
        D: InlineData + 'a,
    {
        self.staging.stage_inline(request).map_err(PostError::new)
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

    /// Posts them, in one call of the driver, and tells how many they were. To post an empty batch
    /// does nothing.
    ///
    /// # Errors
    ///
    /// The verb's, and how many were posted before the one that was refused: none by the functions
    /// `ibv_wr_*`. The batch comes back with the others.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn post(mut self) -> Result<usize, BatchError<Self>> {
        let (posted, result) = self.staging.post();
        match result {
            Ok(()) => Ok(posted),
            Err(error) => Err(BatchError {
                posted,
                error,
                rest: self,
            }),
        }
    }

    /// Posts what was added, as [`Self::post`] does, and keeps the batch for more requests.
    ///
    /// Completions are given to the queue when the batch is gone, so a program that posts many
    /// batches before that leaves them room in the queue.
    ///
    /// ```
    /// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest};
    /// # let context = Context::open_default()?;
    /// # let domain = context.protection_domain()?;
    /// # let prepared = domain.queue_pair().build()?;
    /// # let endpoint = prepared.endpoint();
    /// # let queue_pair = prepared.connect(&endpoint, &ConnectOptions::default())?;
    /// # let peer = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
    /// let mut sends = queue_pair.send_queue();
    /// let mut batch = sends.batch();
    /// for _ in 0..3 {
    ///     for _ in 0..4 {
    ///         batch.push(SendRequest::write(domain.allocate(8)?, peer.remote()))?;
    ///     }
    ///     assert_eq!(batch.post_and_keep()?, 4);
    /// }
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Self::post`]; the requests that were not posted stay in the batch.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn post_and_keep(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Takes the memory of the requests that were not posted back, in their order. Requests whose
    /// data was to be copied have no memory.
    pub fn take_back(&mut self) -> Unposted<'_, T> {
        Unposted(self.staging.end())
    }
}

impl<T: Send + 'static> Drop for SendBatch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_empty() {
            drop(self.take_back());
        }
    }
}

/// Receives that are handed to the device together, from
/// [`ReceiveQueue::batch`](super::ReceiveQueue::batch). Otherwise like [`SendBatch`].
#[derive(Debug)]
pub struct ReceiveBatch<'a, T: Send + 'static> {
    staging: ReceiveStaging<'a, T>,
}

impl<'a, T: Send + 'static> ReceiveBatch<'a, T> {
    #[inline]
    pub(super) fn new(ring: &'a mut ReceiveRing<T>) -> Self {
        Self {
            staging: ReceiveStaging::new(ring),
        }
    }

    /// Adds memory for one message of the peer.
    ///
    /// # Errors
    ///
    /// The errors of [`ReceiveQueue::post`](super::ReceiveQueue::post), except the verb's.
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

    /// Posts them as [`SendBatch::post`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(mut self) -> Result<usize, BatchError<Self>> {
        let (posted, result) = self.staging.post();
        match result {
            Ok(()) => Ok(posted),
            Err(error) => Err(BatchError {
                posted,
                error,
                rest: self,
            }),
        }
    }

    /// Posts what was added, and keeps the batch for more receives, as
    /// [`SendBatch::post_and_keep`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post_and_keep`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_and_keep(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Takes the memory of the receives that were not posted back, in their order.
    pub fn take_back(&mut self) -> Unposted<'_, T> {
        Unposted(self.staging.end())
    }
}

impl<T: Send + 'static> Drop for ReceiveBatch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_empty() {
            drop(self.take_back());
        }
    }
}

/// The memory of requests that were not posted, from [`SendBatch::take_back`] or
/// [`ReceiveBatch::take_back`]. Memory that is not taken is dropped.
#[derive(Debug)]
pub struct Unposted<'a, T: Send + 'static>(Unstaged<'a, T>);

impl<T: Send + 'static> Iterator for Unposted<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.next()
    }
}

impl<T: Send + 'static> Drop for Unposted<'_, T> {
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

/// Returns the outcome of a batch that is still there.
#[inline]
pub(super) fn kept((posted, result): (usize, Result<(), Error>)) -> Result<usize, BatchError> {
    let refused = |error| BatchError {
        posted,
        error,
        rest: (),
    };
    result.map_or_else(|error| Err(refused(error)), |()| Ok(posted))
}
