//! Doorbell batches: many requests that are posted by one call of the driver.

use std::fmt;

use super::{InlineData, PostError, SendRequest};
use crate::error::Error;
use crate::ffi::{ReceiveRing, ReceiveStaging, SendRing, SendStaging, Unstaged};
use crate::memory::{Gather, Scatter};

/// The error of a call that posted only some of the requests of a batch, or no request. `B` is the
/// type of the batch that the error gives back. `B` is `()` if the caller still owns the batch.
#[derive(thiserror::Error)]
#[error("{posted} requests of the batch were posted, the next one was not: {error}")]
pub struct BatchError<B = ()> {
    /// The number of requests that were posted before the first refused request.
    pub posted: usize,
    /// The reason why the first refused request was not posted.
    pub error: Error,
    /// The batch, which now contains only the requests that were not posted, in their order. The
    /// program can post this batch again or take the memory back. The value is `()` if the caller
    /// still owns the batch.
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

/// Send requests that one call posts to the device together. Created by
/// [`SendQueue::batch`](super::SendQueue::batch).
///
/// The batch assembles the requests in a buffer of the current thread, and posts the requests by
/// one call of the driver. The call is `ibv_post_send` with a linked list. On queue pairs with
/// [extended posting](super::QueuePairBuilder::extended_posting), the call is one sequence from
/// `ibv_wr_start` to `ibv_wr_complete` instead, unless a request has several scatter/gather
/// elements. No code of the program runs during the call.
///
/// The thread reuses its buffers. A batch allocates memory only if the thread has no free buffer of
/// sufficient size: for the first batch of a thread, for a larger batch, for a third batch at the
/// same time, and for a batch that another thread created.
///
/// Dropping the batch drops the memory of the requests that were not posted. Forgetting the batch
/// (`mem::forget`) leaves that memory in the queue. The queue drops the memory when another request
/// needs the space, and never posts the requests of a forgotten batch.
///
/// A batch is `Send` if its queue and its memory are `Send`.
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

    /// Adds a request to the batch. [`Self::post`] posts the request later. The batch keeps the
    /// memory of the request until then.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`](super::SendQueue::post), except errors of the device. Only
    /// [`Self::post`] returns errors of the device.
    #[inline(always)]
    pub fn push(&mut self, request: SendRequest<T>) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.staging.stage(request).map_err(PostError::new)
    }

    /// Adds a request with inline data to the batch, like
    /// [`SendQueue::post_inline`](super::SendQueue::post_inline). Inline data is copied when the
    /// batch is posted. The data stays borrowed until then:
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
    /// The errors of [`SendQueue::post_inline`](super::SendQueue::post_inline), except errors of
    /// the device. Only [`Self::post`] returns errors of the device.
    #[inline]
    pub fn push_inline<D>(&mut self, request: SendRequest<D>) -> Result<(), PostError<D>>
    where
        D: InlineData + 'a,
    {
        self.staging.stage_inline(request).map_err(PostError::new)
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

    /// Posts all requests by one call of the driver, and returns their number. Posting an empty
    /// batch has no effect.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_send` or `ibv_wr_complete`. The error contains the number of requests
    /// that were posted before the refused request, and the batch with the remaining requests. The
    /// functions `ibv_wr_*` post either all requests or no request.
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

    /// Posts all requests by one call of the driver, and returns their number. The batch is then
    /// empty and can be used again.
    ///
    /// The batch borrows the queue. Therefore the program cannot process completions, which would
    /// free room in the queue, while the batch exists. All requests that are posted through the
    /// batch must fit into the queue.
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
    /// The errors of [`Self::post`]. The requests that were not posted stay in the batch.
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn post_and_keep(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Empties the batch, and returns the memory of the requests that were not posted, in the order
    /// of addition. Inline requests have no memory to return.
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

/// Receive requests that one call posts to the device together. Created by
/// [`ReceiveQueue::batch`](super::ReceiveQueue::batch). [`SendBatch`] describes when a batch
/// allocates memory, and the effect of dropping a batch.
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

    /// Adds a receive to the batch: the device will write one message of the peer to `memory`.
    ///
    /// # Errors
    ///
    /// The errors of [`ReceiveQueue::post`](super::ReceiveQueue::post), except errors of the
    /// device. Only [`Self::post`] returns errors of the device.
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

    /// Posts all receives by one call of the driver, and returns their number.
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

    /// Posts all receives by one call of the driver, and returns their number. The batch is then
    /// empty and can be used again, as in the example of [`SendBatch::post_and_keep`].
    ///
    /// # Errors
    ///
    /// The errors of [`SendBatch::post_and_keep`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_and_keep(&mut self) -> Result<usize, BatchError> {
        kept(self.staging.post())
    }

    /// Empties the batch, and returns the memory of the receives that were not posted, in the order
    /// of addition.
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

/// An iterator over the memory of a batch's requests that were not posted. Created by
/// [`SendBatch::take_back`] or [`ReceiveBatch::take_back`]. Dropping the iterator drops the
/// remaining memory.
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

/// Converts the result of posting a batch: returns the number of posted requests, or an error with
/// this number. The error does not contain the batch, because the caller still owns the batch.
#[inline]
pub(super) fn kept((posted, result): (usize, Result<(), Error>)) -> Result<usize, BatchError> {
    let refused = |error| BatchError {
        posted,
        error,
        rest: (),
    };
    result.map_or_else(|error| Err(refused(error)), |()| Ok(posted))
}
