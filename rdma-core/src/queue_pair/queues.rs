//! Queues with one owner.

use std::fmt;
use std::sync::Arc;

use super::SendRequest;
use crate::completion::WorkCompletion;
use crate::error::Error;
use crate::ffi::{QueuePairHandle, Ring};
use crate::memory::{Gather, Scatter};

/// A request that could not be posted, with its memory.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct PostError<T> {
    /// Why.
    #[source]
    pub error: Error,
    /// The request's memory.
    pub memory: T,
}

impl<T> fmt::Debug for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostError")
            .field("error", &self.error)
            .finish_non_exhaustive()
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

/// The send side of a queue pair, for one owner.
///
/// The memory of each request is kept until the request has completed. Dropping the queue with
/// requests in flight is safe: their memory is freed with the queue pair.
#[derive(Debug)]
pub struct SendQueue<T: Send + 'static> {
    ring: Ring<T>,
}

impl<T: Send + 'static> SendQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        let capacity = handle.sizes().send_requests;
        Self {
            ring: Ring::new(handle, capacity),
        }
    }

    /// Posts a request.
    ///
    /// # Errors
    ///
    /// The memory, with [`Error::QueueFull`] when as many requests are outstanding as fit,
    /// [`Error::TooManyElements`], [`Error::InvalidArgument`] for a request that no device can carry
    /// out, [`Error::NotWritable`], or the verb's error.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(&mut self, request: SendRequest<T>) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.ring.post_send(request).map_err(PostError::new)
    }

    /// Returns the memory of every request that this completion completes: the signaled one, and
    /// the unsignaled ones before it, in their order. A completion of another queue returns nothing.
    #[inline]
    pub fn complete(&mut self, completion: &WorkCompletion) -> Retired<'_, T> {
        Retired {
            last: self.ring.number(completion.id()),
            ring: &mut self.ring,
        }
    }

    /// How many requests are in flight.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// How many can be.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// The number of the queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.ring.queue_pair().number()
    }
}

/// The memory of completed requests, from [`SendQueue::complete`]. What is not taken is dropped.
#[derive(Debug)]
pub struct Retired<'a, T: Send + 'static> {
    ring: &'a mut Ring<T>,
    last: Option<u64>,
}

impl<T: Send + 'static> Iterator for Retired<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.ring.retire(self.last?)
    }
}

impl<T: Send + 'static> Drop for Retired<'_, T> {
    #[inline]
    fn drop(&mut self) {
        while self.next().is_some() {}
    }
}

/// The receive side of a queue pair, for one owner. It keeps memory as [`SendQueue`] does.
#[derive(Debug)]
pub struct ReceiveQueue<T: Send + 'static> {
    ring: Ring<T>,
}

impl<T: Send + 'static> ReceiveQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        let capacity = handle.sizes().receive_requests;
        Self {
            ring: Ring::new(handle, capacity),
        }
    }

    /// Posts memory for one message of the peer.
    ///
    /// # Errors
    ///
    /// As [`SendQueue::post`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(&mut self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.ring.post_receive(memory).map_err(PostError::new)
    }

    /// Returns the memory of the request that this completion completes; `None` for one of another
    /// queue. Its first [`len`](WorkCompletion::len) bytes are the message, if it succeeded.
    #[inline]
    pub fn complete(&mut self, completion: &WorkCompletion) -> Option<T> {
        let number = self.ring.number(completion.id())?;
        self.ring.take(number)
    }

    /// How many requests are in flight.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// How many can be.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// The number of the queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.ring.queue_pair().number()
    }
}
