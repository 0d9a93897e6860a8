//! Send requests.

use std::mem;
use std::sync::Arc;

use ibverbs_sys::ibv_send_flags;

use super::{KeepAlive, Operation, Outcome, Placement, Segmented};
use crate::address::Destination;
use crate::ffi::WindowChange;
use crate::memory::{RemoteMemory, Scatter};

bitflags::bitflags! {
    /// Flags of a send request (`ibv_send_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        const SOLICITED = ibv_send_flags::IBV_SEND_SOLICITED.0;
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// Where a request goes, as the kind of the queue pair demands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// To the peer.
    Peer,
    /// To a queue pair, by the address handle that the request keeps.
    Datagram { queue_pair: u32, qkey: u32 },
    /// To a shared receive queue of the peer.
    SharedQueue { number: u32 },
}

const NOWHERE: RemoteMemory = RemoteMemory {
    address: 0,
    len: 0,
    rkey: 0,
};

/// A request for a send queue: what to do, with which memory.
///
/// Immediate data is a number of 32 bits that the peer gets as the same number
/// ([`WorkCompletion::immediate`](crate::WorkCompletion::immediate)); it goes over the wire in
/// network byte order. Every request is signaled unless [`Self::unsignaled`].
///
/// The memory is registered memory, which the queue keeps until the request has completed, or
/// [data that is copied](super::InlineData) when it is posted with
/// [`SendQueue::post_inline`](super::SendQueue::post_inline).
///
/// | request | queue pairs that have it |
/// |---|---|
/// | [`send`](Self::send), [`send_with_immediate`](Self::send_with_immediate) | all; raw packet without immediate |
/// | [`send_with_invalidate`](Self::send_with_invalidate), [`write`](Self::write), [`write_with_immediate`](Self::write_with_immediate), [`invalidate`](SendRequest::invalidate) | RC, UC, XRC |
/// | requests of a [`WindowLease`](crate::WindowLease) | RC, UC, XRC |
/// | [`read`](Self::read), [`compare_and_swap`](Self::compare_and_swap), [`fetch_and_add`](Self::fetch_and_add) | RC, XRC |
/// | [`atomic_write`](SendRequest::atomic_write), [`flush`](SendRequest::flush) | RC, XRC made for them |
/// | [`segmented`](Self::segmented) | UD, raw packet |
///
/// On queue pairs [made for them](super::QueuePairBuilder::extended_posting) the functions
/// `ibv_wr_*` post the request, unless it has several elements: their lists are wrong in some
/// drivers, so `ibv_post_send`, which such queue pairs have too, posts requests with lists.
///
/// A request is `Send` and `Sync` if its memory is.
#[doc(alias = "ibv_send_wr")]
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<T> {
    memory: T,
    remote: RemoteMemory,
    operation: Operation,
    flags: SendFlags,
    target: Target,
    keep: KeepAlive,
}

/// The parts of a request other than its memory and the objects that it keeps alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Description {
    pub(crate) operation: Operation,
    pub(crate) remote: RemoteMemory,
    pub(crate) flags: SendFlags,
    pub(crate) target: Target,
}

impl<T> SendRequest<T> {
    #[inline]
    fn new(operation: Operation, memory: T, remote: RemoteMemory) -> Self {
        Self {
            memory,
            remote,
            operation,
            flags: SendFlags::SIGNALED,
            target: Target::Peer,
            keep: KeepAlive::Nothing,
        }
    }

    /// Completes without a completion of its own, unless it fails: a later signaled request of the
    /// queue completes it too.
    ///
    /// A queue that never signaled would fill up and never be empty again. So the last request that
    /// fits into it is signaled whatever it says, if none of those outstanding is, and the queue
    /// goes on; where a queue pair has several [`SendQueue`](super::SendQueue)s, they signal more
    /// often. Queues for any number of threads signal every request that is not in a
    /// [batch](super::ConcurrentSendBatch::push).
    #[inline]
    pub fn unsignaled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }

    #[inline]
    pub(crate) fn signaled(mut self) -> Self {
        self.flags.insert(SendFlags::SIGNALED);
        self
    }

    #[inline]
    pub(crate) fn is_signaled(&self) -> bool {
        self.flags.contains(SendFlags::SIGNALED)
    }

    /// Waits until the reads and atomics posted before it have completed.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Announces its arrival to a peer that waits for solicited ones.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    /// Copies the data into the request, up to
    /// [`QueuePair::inline_limit`](super::QueuePair::inline_limit) bytes. For sends and writes; a
    /// read or an atomic is refused with it.
    ///
    /// The memory comes back with the completion as ever. Where it is to stay at hand, post a slice
    /// with [`SendQueue::post_inline`](super::SendQueue::post_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn inline(mut self) -> Self {
        self.flags.insert(SendFlags::INLINE);
        self
    }

    /// Sends it as a datagram, which every request of a datagram queue pair must say. The request
    /// keeps the address handle until it has completed.
    #[doc(alias = "ibv_wr_set_ud_addr")]
    #[inline]
    pub fn to(mut self, destination: &Destination) -> Self {
        self.target = Target::Datagram {
            queue_pair: destination.queue_pair,
            qkey: destination.qkey,
        };
        let handle = destination.handle.clone();
        if let KeepAlive::Segmented(segmented) = &mut self.keep {
            segmented.address = Some(handle);
        } else {
            self.keep = KeepAlive::Address(handle);
        }
        self
    }

    /// Names the shared receive queue of the peer, which every request of an XRC initiator to the
    /// peer must: the number that the peer's queue has there.
    #[doc(alias = "ibv_wr_set_xrc_srqn")]
    #[inline]
    pub fn remote_shared_queue(mut self, number: u32) -> Self {
        self.target = Target::SharedQueue { number };
        self
    }

    #[inline]
    pub(crate) fn memory(&self) -> &T {
        &self.memory
    }

    /// Returns the memory of a request that was not posted.
    #[inline]
    pub(crate) fn into_memory(mut self) -> T {
        self.keep.settle(Outcome::NotPosted);
        self.memory
    }

    #[inline]
    pub(crate) fn into_parts(self) -> (T, KeepAlive) {
        (self.memory, self.keep)
    }

    #[inline]
    pub(crate) fn keep(&self) -> &KeepAlive {
        &self.keep
    }

    /// Takes the request apart, so that its parts can be read, and moved, one by one.
    #[inline]
    pub(crate) fn into_pieces(self) -> (T, Description, KeepAlive) {
        let description = self.description();
        (self.memory, description, self.keep)
    }

    /// Returns whether the request keeps nothing alive but its memory.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self.keep, KeepAlive::Nothing)
    }

    /// Takes a [usual](Self::is_usual) one apart.
    #[inline(always)]
    pub(crate) fn into_usual(self) -> (T, Description) {
        let (memory, description, keep) = self.into_pieces();
        debug_assert!(matches!(keep, KeepAlive::Nothing));
        // `Nothing` needs no drop, which the compiler does not see.
        mem::forget(keep);
        (memory, description)
    }

    /// Puts such a one together again.
    #[inline]
    pub(crate) fn from_usual(memory: T, description: Description) -> Self {
        Self::from_pieces((memory, description, KeepAlive::Nothing))
    }

    /// Puts it together again.
    #[inline]
    pub(crate) fn from_pieces((memory, it, keep): (T, Description, KeepAlive)) -> Self {
        Self {
            memory,
            remote: it.remote,
            operation: it.operation,
            flags: it.flags,
            target: it.target,
            keep,
        }
    }

    #[inline]
    pub(crate) fn description(&self) -> Description {
        Description {
            operation: self.operation,
            remote: self.remote,
            flags: self.flags,
            target: self.target,
        }
    }

    /// Sends `memory` to a receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send(memory: T) -> Self {
        Self::new(Operation::Send { immediate: None }, memory, NOWHERE)
    }

    /// Sends `memory` to a receive of the peer, with a number.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[inline]
    pub fn send_with_immediate(memory: T, immediate: u32) -> Self {
        Self::new(
            Operation::Send {
                immediate: Some(immediate),
            },
            memory,
            NOWHERE,
        )
    }

    /// Sends `memory` to a receive of the peer, and ends the access that the key of the peer, of a
    /// memory window of type 2, gives.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[inline]
    pub fn send_with_invalidate(memory: T, key: u32) -> Self {
        Self::new(Operation::SendWithInvalidate { key }, memory, NOWHERE)
    }

    /// Writes `memory` into the peer's, from its start on.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write(memory: T, remote: RemoteMemory) -> Self {
        Self::new(Operation::Write { immediate: None }, memory, remote)
    }

    /// Writes `memory` into the peer's, and a number into a receive of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline]
    pub fn write_with_immediate(memory: T, remote: RemoteMemory, immediate: u32) -> Self {
        Self::new(
            Operation::Write {
                immediate: Some(immediate),
            },
            memory,
            remote,
        )
    }

    /// Sends `memory`, part of a TCP stream, as packets of `segment` bytes at most, each behind
    /// `headers`, which the device adapts: segmentation offload, for datagram and raw packet queue
    /// pairs that were made for it.
    #[doc(alias = "IBV_WR_TSO")]
    #[doc(alias = "LSO")]
    pub fn segmented(memory: T, headers: Arc<[u8]>, segment: u16) -> Self {
        let mut request = Self::new(Operation::Segmented { segment }, memory, NOWHERE);
        request.keep = KeepAlive::Segmented(Box::new(Segmented {
            headers,
            address: None,
        }));
        request
    }
}

impl<T: Scatter> SendRequest<T> {
    /// Reads as many bytes as `memory` has, from the start of the peer's.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read(memory: T, remote: RemoteMemory) -> Self {
        Self::new(Operation::Read, memory, remote)
    }

    /// Replaces the peer's eight bytes, at a multiple of eight, by `desired` if they are
    /// `expected`. Their value from before goes into `memory`, eight bytes, as a number in this
    /// host's byte order: [`AtomicResult`](crate::AtomicResult) returns it.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap(memory: T, remote: RemoteMemory, expected: u64, desired: u64) -> Self {
        Self::new(
            Operation::CompareAndSwap { expected, desired },
            memory,
            remote,
        )
    }

    /// Adds to the peer's eight bytes, at a multiple of eight, wrapping. Their value from before
    /// goes into `memory`, eight bytes, as a number in this host's byte order:
    /// [`AtomicResult`](crate::AtomicResult) returns it.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_and_add(memory: T, remote: RemoteMemory, add: u64) -> Self {
        Self::new(Operation::FetchAndAdd { add }, memory, remote)
    }
}

/// Requests without memory, for [`SendQueue::post_inline`](super::SendQueue::post_inline).
impl SendRequest<()> {
    /// Ends the access that a key of this end, of a memory window of type 2, gives.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[inline]
    pub fn invalidate(key: u32) -> Self {
        Self::new(Operation::Invalidate { key }, (), NOWHERE)
    }

    /// Changes a window.
    pub(crate) fn of_window(change: WindowChange) -> Self {
        let binds = !change.is_invalidation();
        let mut request = Self::new(Operation::Window { binds }, (), NOWHERE);
        request.keep = KeepAlive::Window(Box::new(change));
        request
    }

    /// Writes eight bytes of the peer, at a multiple of eight, at once: who reads them sees all the
    /// old ones or all the new ones.
    ///
    /// For queue pairs that were made for
    /// [`SendOperations::ATOMIC_WRITE`](super::SendOperations::ATOMIC_WRITE).
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline]
    pub fn atomic_write(value: [u8; 8], remote: RemoteMemory) -> Self {
        Self::new(Operation::AtomicWrite { value }, (), remote)
    }

    /// Makes sure that what was written before to the peer's memory has got there, as `placement`
    /// says.
    ///
    /// For queue pairs that were made for [`SendOperations::FLUSH`](super::SendOperations::FLUSH).
    #[doc(alias = "ibv_wr_flush")]
    #[doc(alias = "IBV_FLUSH_RANGE")]
    #[inline]
    pub fn flush(remote: RemoteMemory, placement: Placement) -> Self {
        let whole = false;
        Self::new(Operation::Flush { placement, whole }, (), remote)
    }

    /// Makes a request like [`Self::flush`], for all of the region that the memory is part of.
    #[doc(alias = "IBV_FLUSH_MR")]
    #[inline]
    pub fn flush_region(remote: RemoteMemory, placement: Placement) -> Self {
        let whole = true;
        Self::new(Operation::Flush { placement, whole }, (), remote)
    }
}
