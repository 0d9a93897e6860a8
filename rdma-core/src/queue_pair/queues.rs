//! Send and receive queues with one owner.

use std::fmt;
use std::sync::Arc;

use super::{InlineData, Outcome, ReceiveBatch, SendBatch, SendRequest};
use crate::completion::WorkCompletion;
use crate::error::Error;
use crate::ffi::{QueuePairHandle, ReceiveRing, SendRing};
use crate::memory::{Gather, Scatter};

/// The error of a request that could not be posted, together with the memory of the request.
/// `Debug` prints the same text as `Display`.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct PostError<T> {
    /// The reason why the request was not posted.
    pub error: Error,
    /// The memory of the request, which the caller gets back.
    pub memory: T,
}

impl<T> fmt::Debug for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> PostError<T> {
    pub(crate) fn new((error, memory): (Error, T)) -> Self {
        Self { error, memory }
    }
}

impl<T> From<PostError<T>> for Error {
    fn from(refused: PostError<T>) -> Self {
        refused.error
    }
}

/// A send queue of a queue pair, for use by one thread at a time.
///
/// The queue keeps the memory of each request until the request has completed. Dropping the queue
/// with requests in flight is safe: their memory is freed with the queue pair.
///
/// The queue is `Send`, because memory in flight moves with the queue. The queue is `Sync` if the
/// memory is `Sync`, because posting takes `&mut self`.
#[derive(Debug)]
pub struct SendQueue<T: Send + 'static> {
    ring: SendRing<T>,
}

impl<T: Send + 'static> SendQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        Self {
            ring: SendRing::new(handle),
        }
    }

    /// Posts a send request to the queue pair. The queue keeps the memory of the request until
    /// [`Self::complete`] returns the memory.
    ///
    /// # Errors
    ///
    /// Returns the memory of the request with one of these errors: [`Error::QueueFull`] if the
    /// queue already has the maximum number of outstanding requests, [`Error::TooManyElements`],
    /// [`Error::InvalidArgument`] for a request that no device can execute, [`Error::NotWritable`],
    /// or the error of posting, such as the error of `ibv_post_send`.
    ///
    /// If the driver fails but may have posted the request, the queue keeps the memory, and the
    /// error is only logged. For example, the Soft-RoCE driver of Linux queues the request before
    /// it notifies the kernel, and the notification may fail.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post(&mut self, request: SendRequest<T>) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.ring.post(request).map_err(PostError::new)
    }

    /// Posts a request with inline data, which this call copies, or a request without data. The
    /// queue keeps no memory for the request, so the completion of the request returns no memory.
    ///
    /// The data of a send or write needs no registration. The maximum length is
    /// [`QueuePair::inline_limit`](super::QueuePair::inline_limit) bytes. The maximum number of
    /// slices is the maximum number of scatter/gather elements of a send request.
    ///
    /// ```
    /// # use rdma_core::{Buffer, ConnectOptions, Context, SendRequest};
    /// # let context = Context::open("softroce0")?;
    /// # let domain = context.protection_domain()?;
    /// # let (left, right) = (domain.queue_pair().inline_data(64).build()?, domain.queue_pair().build()?);
    /// # let (to_right, to_left) = (right.endpoint(), left.endpoint());
    /// # let right = right.connect(&to_left, &ConnectOptions::default())?;
    /// # let left = left.connect(&to_right, &ConnectOptions::default())?;
    /// let mut receives = right.receive_queue();
    /// receives.post(domain.allocate(64)?).map_err(|refused| refused.error)?;
    /// let mut queue = left.send_queue::<Buffer>();
    /// let name = String::from("world");
    /// queue.post_inline(SendRequest::send([b"hello, ".as_slice(), name.as_bytes()]))?;
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Self::post`], and [`Error::InvalidArgument`] for an operation that reads
    /// data from the peer.
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    #[inline]
    pub fn post_inline<D: InlineData>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), PostError<D>> {
        self.ring.post_inline(request).map_err(PostError::new)
    }

    /// Creates an empty batch of requests. One call posts all requests of the batch to the device.
    ///
    /// ```
    /// # use rdma_core::{Buffer, PostError, RemoteMemory, SendQueue, SendRequest};
    /// # fn example(queue: &mut SendQueue<Buffer>, pieces: Vec<Buffer>, to: RemoteMemory) -> rdma_core::Result<()> {
    /// let mut batch = queue.batch();
    /// for piece in pieces {
    ///     batch.push(SendRequest::write(piece, to).unsignaled())?;
    /// }
    /// batch.post()?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn batch(&mut self) -> SendBatch<'_, T> {
        SendBatch::new(&mut self.ring)
    }

    /// Returns the memory of every request that `completion` completes, in the order of posting.
    /// The requests are the signaled request of the completion, and the unsignaled requests before
    /// it. For a completion of another queue, returns no memory. Inline requests are completed as
    /// well, but have no memory to return.
    #[inline]
    pub fn complete(&mut self, completion: &WorkCompletion) -> Retired<'_, T> {
        let id = completion.id();
        Retired {
            left: if self.ring.is_oldest(id) {
                OLDEST
            } else {
                self.ring.completed(id)
            },
            outcome: Outcome::of(completion),
            ring: &mut self.ring,
        }
    }

    /// Returns the number of requests in flight: posted requests whose completion was not passed to
    /// [`Self::complete`].
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns the maximum number of requests in flight.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns the number of the queue pair to which this send queue belongs.
    pub fn queue_pair(&self) -> u32 {
        self.ring.queue_pair().number()
    }
}

/// An iterator over the memory of completed requests. Created by [`SendQueue::complete`]. Dropping
/// the iterator drops the memory of the remaining requests.
#[derive(Debug)]
pub struct Retired<'a, T: Send + 'static> {
    ring: &'a mut SendRing<T>,
    /// Number of completed requests whose memory the iterator has not returned yet, or [`OLDEST`].
    left: u64,
    outcome: Outcome,
}

/// The value of [`Retired::left`] if exactly one request, the oldest request in the queue, has
/// completed. A special value instead of 1 makes the compiler generate faster code for this most
/// common case.
const OLDEST: u64 = u64::MAX;

impl<T: Send + 'static> Iterator for Retired<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.left == OLDEST {
            self.left = 0;
            return self.ring.retire(self.outcome, 0);
        }
        if self.left == 0 {
            return None;
        }
        let memory;
        (memory, self.left) = retire(self.ring, self.left, self.outcome);
        memory
    }

    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(mut self, init: B, mut f: F) -> B {
        if self.left == OLDEST {
            self.left = 1;
        }
        let mut result = init;
        while self.left > 0 {
            self.left -= 1;
            if let Some(memory) = self.ring.retire(self.outcome, self.left) {
                result = f(result, memory);
            }
        }
        result
    }
}

/// Removes completed requests from `ring` until a removed request has memory, and returns this
/// memory. Inline requests have no memory, so their removal returns nothing. `left` is the number
/// of completed requests in the ring. The second result is the number of completed requests that
/// are still in the ring.
#[inline(never)]
fn retire<T: Send + 'static>(
    ring: &mut SendRing<T>,
    mut left: u64,
    outcome: Outcome,
) -> (Option<T>, u64) {
    let mut memory = None;
    while left > 0 && memory.is_none() {
        left -= 1;
        memory = ring.retire(outcome, left);
    }
    (memory, left)
}

#[inline(never)]
fn drain<T: Send + 'static>(ring: &mut SendRing<T>, left: u64, outcome: Outcome) {
    let left = if left == OLDEST { 1 } else { left };
    for left in (0..left).rev() {
        drop(ring.retire(outcome, left));
    }
}

impl<T: Send + 'static> Drop for Retired<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.left > 0 {
            drain(self.ring, self.left, self.outcome);
        }
    }
}

/// A receive queue of a queue pair, for use by one thread at a time. The queue keeps the memory of
/// each receive until the receive has completed.
#[derive(Debug)]
pub struct ReceiveQueue<T: Send + 'static> {
    ring: ReceiveRing<T>,
}

impl<T: Send + 'static> ReceiveQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        Self {
            ring: ReceiveRing::new(handle),
        }
    }

    /// Posts a receive: the device will write one message of the peer to `memory`.
    /// [`Self::complete`] returns the memory when the receive has completed.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`].
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post(&mut self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.ring.post(memory).map_err(PostError::new)
    }

    /// Creates an empty batch of receives. One call posts all receives of the batch to the device.
    #[inline]
    pub fn batch(&mut self) -> ReceiveBatch<'_, T> {
        ReceiveBatch::new(&mut self.ring)
    }

    /// Returns the memory of the receive that `completion` completes, or `None` for a completion of
    /// another queue. If the receive succeeded, the first [`len`](WorkCompletion::len) bytes of the
    /// memory are the message.
    #[inline]
    pub fn complete(&mut self, completion: &WorkCompletion) -> Option<T> {
        // The most common case has a code path of its own, which is faster.
        if completion.invalidated_key().is_none() && self.ring.is_oldest(completion.id()) {
            return self.ring.complete_oldest();
        }
        // This variable is declared only here, so that the common case can return its result in
        // registers.
        let mut memory = None;
        self.complete_other(completion, &mut memory);
        memory
    }

    #[inline(never)]
    fn complete_other(&mut self, completion: &WorkCompletion, memory: &mut Option<T>) {
        *memory = self.ring.complete(completion.id());
        if let (Some(key), Some(_)) = (completion.invalidated_key(), memory) {
            self.ring.queue_pair().domain().ended_by_peer(key);
        }
    }

    /// Returns the number of receives in flight: posted receives whose completion was not passed to
    /// [`Self::complete`].
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns the maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns the number of the queue pair to which this receive queue belongs.
    pub fn queue_pair(&self) -> u32 {
        self.ring.queue_pair().number()
    }
}
