//! Lock-free send and receive queues for any number of threads.

use std::sync::Arc;

use super::queues::PostError;
use super::{ConcurrentReceiveBatch, ConcurrentSendBatch, InlineData, Outcome, SendRequest};
use crate::completion::WorkCompletion;
use crate::ffi::{CompletedRun, QueuePairHandle, Reserved, SlotGuard, Slots};
use crate::memory::{Gather, Scatter};
use crate::refused::Refused;

/// Maximum number of slots of a concurrent queue. A slot is the storage for one request in flight.
/// A work request id stores the index of the slot in 16 bits, which limits the number of slots.
const MAX_SLOTS: u32 = 1 << 16;

/// A reserved slot of a concurrent send queue. A slot is the storage for one request in flight.
/// Dropping an unused `ReservedSlot` releases the slot for other requests.
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
/// Posting a request consumes the `ReservedSlot`, so a second request needs another slot:
///
/// ```compile_fail,E0382
/// # use rdma_core::{Buffer, Result, SendRequest};
/// # use rdma_core::queue_pair::{ConcurrentSendQueue, ReservedSlot};
/// # fn example(queue: ConcurrentSendQueue<Buffer>, slot: ReservedSlot<'_>, one: Buffer, two: Buffer) -> Result<()> {
/// queue.post(slot, SendRequest::send(one))?;
/// queue.post(slot, SendRequest::send(two))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a reserved slot that is not used is free again immediately"]
pub struct ReservedSlot<'q>(pub(super) SlotGuard<'q>);

impl ReservedSlot<'_> {
    /// Returns the index of the slot in its queue, from 0 to the capacity of the queue minus 1.
    #[inline]
    pub fn index(&self) -> u32 {
        self.0.index()
    }

    /// Converts the reserved slot to a value that does not borrow the queue. A program can then
    /// store the slot and the queue in the same struct.
    pub fn detach(self) -> DetachedSlot {
        DetachedSlot(self.0.into_reserved())
    }
}

/// A reserved slot of a concurrent send queue, without a borrow of the queue. A slot is the storage
/// for one request in flight. A struct can contain both a `DetachedSlot` and the queue to which the
/// slot belongs.
///
/// [`ConcurrentSendQueue::attach`] converts the value back to a [`ReservedSlot`]. If a detached
/// slot is dropped, the queue cannot use the slot any more.
#[derive(Debug)]
#[must_use = "a detached slot is lost to its queue unless it is attached again"]
pub struct DetachedSlot(Reserved);

/// A send queue of a queue pair that several threads can use at the same time.
///
/// A request takes four calls. [`reserve`](Self::reserve) returns a slot, which is the storage for
/// one request in flight. The program can use the index of the slot to prepare the handling of the
/// completion. [`post`](Self::post) posts the request. On completion, [`complete`](Self::complete)
/// returns the memory and [`release`](Self::release) frees the slot. Dropping the queue with
/// requests in flight is safe: their memory is freed with the queue pair.
///
/// A request may be [unsignaled](SendRequest::unsignaled), which means without a completion of its
/// own. The completion of a later signaled request then completes the unsignaled request as well.
/// When unsignaled requests in a row fill half of the slots, the queue makes the next request
/// signaled. Threads that post single unsignaled requests wait for each other. Threads that post
/// unsignaled requests in a [batch](Self::batch) do not wait for each other.
///
/// The queue is `Send` and `Sync`. The queue moves the memory of a request from one thread to
/// another, but never gives two threads access to the memory at the same time.
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

    /// Reserves a free slot, which is the storage for one request in flight. Returns `None` if all
    /// slots are in use.
    #[inline]
    pub fn reserve(&self) -> Option<ReservedSlot<'_>> {
        self.slots.reserve().map(ReservedSlot)
    }

    /// Converts a slot that [`ReservedSlot::detach`] has detached from this queue back to a
    /// [`ReservedSlot`], which borrows the queue.
    ///
    /// # Errors
    ///
    /// Returns the slot, with [`Error::InvalidArgument`](crate::Error::InvalidArgument), if the
    /// slot belongs to another queue.
    #[inline]
    pub fn attach(&self, slot: DetachedSlot) -> Result<ReservedSlot<'_>, Refused<DetachedSlot>> {
        let guard = self.slots.guard(slot.0).map(ReservedSlot);
        guard.map_err(|(error, slot)| Refused::new(DetachedSlot(slot), error))
    }

    /// Posts a send request. The reserved slot `slot` keeps the memory of the request until
    /// [`Self::complete`] returns the memory. If posting fails, the slot is released.
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

    /// Posts a request with inline data, which the call copies. The request occupies the reserved
    /// slot `slot` until the request completes. [`Self::finish`] then returns the index of the
    /// slot; [`Self::complete`] instead releases the slot.
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

    /// Creates an empty batch for at most `capacity` requests. One call posts all requests of the
    /// batch to the device. Only one thread at a time can use the batch. The program can reuse the
    /// batch without further allocations.
    pub fn batch(&self, capacity: usize) -> ConcurrentSendBatch<'_, T> {
        ConcurrentSendBatch::new(&self.slots, capacity)
    }

    /// Returns an iterator over the requests that `completion` completes: the signaled request, and
    /// the unsignaled requests that were posted before it, the latest first. Each item contains the
    /// index of the request's slot and the request's memory. The slot stays in use until the
    /// program [releases](Self::release) the slot. A completion of another queue completes no
    /// request.
    ///
    /// Inline requests, posted by [`Self::post_inline`], have no memory: the iterator skips them
    /// and releases their slots.
    #[inline]
    pub fn complete(&self, completion: &WorkCompletion) -> CompletedMemory<'_, T> {
        CompletedMemory(self.finish(completion))
    }

    /// Returns an iterator over the requests that `completion` completes, including inline
    /// requests, which [`Self::complete`] skips. Each item contains the index of the request's slot
    /// and the request's memory, or `None` for an inline request. The program must
    /// [release](Self::release) each slot.
    #[inline]
    pub fn finish(&self, completion: &WorkCompletion) -> CompletedSlots<'_, T> {
        let outcome = Outcome::of(completion);
        CompletedSlots(self.slots.complete_all(completion.id(), outcome))
    }

    /// Releases the slot with the index `index`, so that another request can use the slot. The
    /// slot's request must have completed. Releasing a slot in any other state has no effect.
    #[inline]
    pub fn release(&self, index: u32) {
        self.slots.release(index);
    }

    /// Returns the number of slots of the queue. Each request occupies one slot from the
    /// reservation to the release of the slot, so this number limits the requests in flight.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of the queue pair to which this send queue belongs.
    pub fn queue_pair(&self) -> u32 {
        self.slots.queue_pair().number()
    }
}

/// An iterator over completed requests, without inline requests. Created by
/// [`ConcurrentSendQueue::complete`]. Each item contains the index of the request's slot and the
/// request's memory. Dropping the iterator drops the memory of the remaining requests and releases
/// their slots.
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

/// An iterator over completed requests, including inline requests. Created by
/// [`ConcurrentSendQueue::finish`]. Each item contains the index of the request's slot and the
/// request's memory, or `None` for an inline request. Dropping the iterator drops the memory of the
/// remaining requests and releases their slots.
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

/// A receive queue of a queue pair that several threads can use at the same time.
///
/// [`post`](Self::post) reserves a slot, which is the storage for one receive in flight.
/// [`complete`](Self::complete) releases the slot. Unlike a send, a receive needs no separate
/// reservation by the program.
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

    /// Posts a receive: the device will write one message of the peer to `memory`.
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

    /// Creates an empty batch for at most `capacity` receives. One call posts all receives of the
    /// batch to the device. Only one thread at a time can use the batch. The program can reuse the
    /// batch without further allocations.
    pub fn batch(&self, capacity: usize) -> ConcurrentReceiveBatch<'_, T> {
        ConcurrentReceiveBatch::new(&self.slots, capacity)
    }

    /// Returns the memory of the receive that `completion` completes, or `None` for a completion of
    /// another queue. If the receive succeeded, the first [`len`](WorkCompletion::len) bytes of the
    /// memory are the message.
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

    /// Returns the maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of the queue pair to which this receive queue belongs.
    pub fn queue_pair(&self) -> u32 {
        self.slots.queue_pair().number()
    }
}
