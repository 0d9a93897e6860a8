//! Queues that any number of threads post to, without a lock.

use std::sync::Arc;

use super::queues::PostError;
use super::{ConcurrentReceiveBatch, ConcurrentSendBatch, InlineData, Outcome, SendRequest};
use crate::completion::WorkCompletion;
use crate::ffi::{CompletedRun, QueuePairHandle, Reserved, SlotGuard, Slots};
use crate::memory::{Gather, Scatter};
use crate::refused::Refused;

/// The most slots of a concurrent queue.
const MAX_SLOTS: u32 = 1 << 16;

/// A slot of a concurrent send queue, for one request. A slot that is dropped unused is free again.
///
/// ```
/// # use rdma_core::{AccessFlags, Context, ConnectOptions, SendRequest};
/// # let context = Context::open_default()?;
/// # let domain = context.protection_domain()?;
/// # let prepared = domain.queue_pair().build()?;
/// # let endpoint = prepared.endpoint();
/// # let queue_pair = prepared.connect(&endpoint, &ConnectOptions::default())?;
/// # let peer = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
/// let queue = queue_pair.concurrent_send_queue();
/// let slot = queue.reserve().expect("a free slot");
/// // An early return from here would free the slot.
/// let memory = domain.allocate(8)?;
/// queue.post(slot, SendRequest::write(memory, peer.remote()))?;
/// # Ok::<(), rdma_core::Error>(())
/// ```
///
/// A slot is for one request:
///
/// ```compile_fail,E0382
/// # use rdma_core::{Buffer, ConcurrentSendQueue, ReservedSlot, Result, SendRequest};
/// # fn example(queue: ConcurrentSendQueue<Buffer>, slot: ReservedSlot<'_>, one: Buffer, two: Buffer) -> Result<()> {
/// queue.post(slot, SendRequest::send(one))?;
/// queue.post(slot, SendRequest::send(two))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a reserved slot that is not used is free again at once"]
pub struct ReservedSlot<'q>(pub(super) SlotGuard<'q>);

impl ReservedSlot<'_> {
    /// Returns the slot's index, which is below the queue's capacity.
    #[inline]
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// Takes the slot out of the borrow of its queue, to be kept beside it.
    pub fn detach(self) -> DetachedSlot {
        DetachedSlot(self.0.into_reserved())
    }
}

/// A [`ReservedSlot`] that does not borrow its queue, for a structure that owns both.
///
/// Dropping this loses the slot to the queue: [`ConcurrentSendQueue::attach`] gives it back.
#[derive(Debug)]
#[must_use = "a detached slot is lost to its queue unless it is attached again"]
pub struct DetachedSlot(Reserved);

/// The send side of a queue pair, for any number of threads.
///
/// A request takes three steps: [`reserve`](Self::reserve) a slot, so that whatever waits for the
/// completion can be put in place under the slot's index first; [`post`](Self::post); and, on
/// completion, [`complete`](Self::complete) and [`release`](Self::release). Dropping the queue with
/// requests in flight is safe: their memory is freed with the queue pair.
///
/// A request may be [unsignaled](SendRequest::unsignaled): the completion of a later signaled
/// request completes it as well. At most half of the slots are in unsignaled requests in a row; the
/// queue signals the next request then. Threads that post unsignaled requests one by one wait for
/// each other; a [batch](Self::batch) of them does not.
///
/// The queue is `Send` and `Sync`: memory moves through it from thread to thread, and is never
/// shared.
#[derive(Debug)]
pub struct ConcurrentSendQueue<T: Send + 'static> {
    slots: Slots<T>,
}

impl<T: Send + 'static> ConcurrentSendQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        let capacity = handle.sizes().send_requests.min(MAX_SLOTS);
        Self {
            slots: Slots::new(handle, capacity),
        }
    }

    /// Takes a free slot; `None` when every one is in use.
    #[inline]
    pub fn reserve(&self) -> Option<ReservedSlot<'_>> {
        self.slots.reserve().map(ReservedSlot)
    }

    /// Borrows the queue again for a slot that was [detached](ReservedSlot::detach) from it.
    ///
    /// # Errors
    ///
    /// The slot, with [`Error::InvalidArgument`](crate::Error::InvalidArgument), if it is of another
    /// queue.
    #[inline]
    pub fn attach(&self, slot: DetachedSlot) -> Result<ReservedSlot<'_>, Refused<DetachedSlot>> {
        let guard = self.slots.guard(slot.0).map(ReservedSlot);
        guard.map_err(|(error, slot)| Refused::new(DetachedSlot(slot), error))
    }

    /// Posts a request. If that fails, the slot is free again.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`](super::SendQueue::post), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a slot of another queue.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post(&self, slot: ReservedSlot<'_>, request: SendRequest<T>) -> Result<(), PostError<T>>
    where
        T: Gather,
    {
        self.slots
            .post_send(slot.0, request)
            .map_err(PostError::new)
    }

    /// Posts a request whose data is copied, or that has none, as
    /// [`SendQueue::post_inline`](super::SendQueue::post_inline) does. [`Self::finish`] completes it.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::post`].
    #[inline]
    pub fn post_inline<D: InlineData>(
        &self,
        slot: ReservedSlot<'_>,
        request: SendRequest<D>,
    ) -> Result<(), PostError<D>> {
        self.slots
            .post_inline(slot.0, request)
            .map_err(PostError::new)
    }

    /// Makes a batch of at most `capacity` requests, which are handed to the device together. The
    /// batch is for one thread and can be used again and again, which allocates nothing.
    pub fn batch(&self, capacity: usize) -> ConcurrentSendBatch<'_, T> {
        ConcurrentSendBatch::new(&self.slots, capacity)
    }

    /// Returns the requests that this completion completes, each as the index of its slot and its
    /// memory: the signaled one, and the unsignaled ones that were posted before it, the latest
    /// first. A completion of another queue returns nothing. A slot stays in use until it is
    /// released.
    ///
    /// Requests without memory, of [`Self::post_inline`], are left out, and their slots released at
    /// once.
    #[inline]
    pub fn complete(&self, completion: &WorkCompletion) -> CompletedMemory<'_, T> {
        CompletedMemory(self.finish(completion))
    }

    /// Like [`Self::complete`], for requests with memory or without.
    #[inline]
    pub fn finish(&self, completion: &WorkCompletion) -> CompletedSlots<'_, T> {
        let outcome = Outcome::of(completion);
        CompletedSlots(self.slots.complete_all(completion.id(), outcome))
    }

    /// Makes a completed slot free again. An index in any other state is ignored.
    #[inline]
    pub fn release(&self, index: u32) {
        self.slots.release(index);
    }

    /// Returns the number of slots.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of the queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.slots.queue_pair().number()
    }
}

/// The slots of completed requests and their memory, from [`ConcurrentSendQueue::complete`]. Memory
/// that is not taken is dropped, and its slot released.
#[derive(Debug)]
#[must_use = "memory that is not taken is dropped"]
pub struct CompletedMemory<'q, T: Send + 'static>(CompletedSlots<'q, T>);

impl<T: Send + 'static> Iterator for CompletedMemory<'_, T> {
    type Item = (u32, T);

    #[inline]
    fn next(&mut self) -> Option<(u32, T)> {
        loop {
            match self.0.next()? {
                (index, Some(memory)) => return Some((index, memory)),
                (index, None) => self.0.0.release(index),
            }
        }
    }
}

/// The slots of completed requests, each with its memory if it has some, from
/// [`ConcurrentSendQueue::finish`]. Memory that is not taken is dropped, and its slot released.
#[derive(Debug)]
#[must_use = "memory that is not taken is dropped"]
pub struct CompletedSlots<'q, T: Send + 'static>(CompletedRun<'q, T>);

impl<T: Send + 'static> Iterator for CompletedSlots<'_, T> {
    type Item = (u32, Option<T>);

    #[inline]
    fn next(&mut self) -> Option<(u32, Option<T>)> {
        self.0.next()
    }
}

/// The receive side of a queue pair, for any number of threads.
///
/// Its slots need no waiting in place, so [`post`](Self::post) and [`complete`](Self::complete) are
/// one step each.
#[derive(Debug)]
pub struct ConcurrentReceiveQueue<T: Send + 'static> {
    slots: Slots<T>,
}

impl<T: Send + 'static> ConcurrentReceiveQueue<T> {
    pub(super) fn new(handle: Arc<QueuePairHandle>) -> Self {
        let capacity = handle.sizes().receive_requests.min(MAX_SLOTS);
        Self {
            slots: Slots::for_receives(handle, capacity),
        }
    }

    /// Posts memory for one message of the peer.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`](super::SendQueue::post).
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(&self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.slots.post_receive(memory).map_err(PostError::new)
    }

    /// Makes a batch of at most `capacity` receives, which are handed to the device together. The
    /// batch is for one thread and can be used again and again, which allocates nothing.
    pub fn batch(&self, capacity: usize) -> ConcurrentReceiveBatch<'_, T> {
        ConcurrentReceiveBatch::new(&self.slots, capacity)
    }

    /// Returns the memory of the request that this completion completes; `None` for one of another
    /// queue. Its first [`len`](WorkCompletion::len) bytes are the message, if it succeeded.
    #[inline]
    pub fn complete(&self, completion: &WorkCompletion) -> Option<T> {
        let outcome = Outcome::of(completion);
        let (index, memory) = self.slots.complete(completion.id(), outcome)?;
        self.slots.release(index);
        if let Some(key) = completion.invalidated_key() {
            self.slots.queue_pair().domain().ended_by_peer(key);
        }
        memory
    }

    /// Returns the number of requests that can be in flight.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of the queue pair.
    pub fn queue_pair(&self) -> u32 {
        self.slots.queue_pair().number()
    }
}
