//! Send requests.

use std::mem;
use std::sync::Arc;

use ibverbs_sys::ibv_send_flags;

use super::{KeepAlive, Operation, Outcome, Placement, Segmented};
use crate::address::Destination;
use crate::ffi::WindowChange;
use crate::memory::{RemoteMemory, Scatter};

bitflags::bitflags! {
    /// Flags of a send request, such as signaled or inline (`ibv_send_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        const SOLICITED = ibv_send_flags::IBV_SEND_SOLICITED.0;
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// The destination of a send request. The transport of the queue pair determines the valid variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The queue pair of the connected peer.
    Peer,
    /// The queue pair with this number, at the address of the request's address handle.
    Datagram { queue_pair: u32, qkey: u32 },
    /// A shared receive queue of the connected peer (XRC).
    SharedQueue { number: u32 },
}

const NOWHERE: RemoteMemory = RemoteMemory {
    address: 0,
    len: 0,
    rkey: 0,
};

/// A request to post to a send queue: an operation, such as an RDMA write, and the memory that the
/// operation uses.
///
/// Every request is signaled, which means that the request produces a completion, unless
/// [`Self::unsignaled`] is called. Immediate data is a 32-bit number that is delivered to the peer
/// unchanged ([`WorkCompletion::immediate`](crate::WorkCompletion::immediate)). On the wire the
/// number is in network byte order.
///
/// The memory is either registered memory or [inline data](super::InlineData). The queue keeps
/// registered memory until the request has completed.
/// [`SendQueue::post_inline`](super::SendQueue::post_inline) copies inline data.
///
/// | request | queue pairs that support it |
/// |---|---|
/// | [`send`](Self::send), [`send_with_immediate`](Self::send_with_immediate) | all; raw packet without immediate |
/// | [`send_with_invalidate`](Self::send_with_invalidate), [`write`](Self::write), [`write_with_immediate`](Self::write_with_immediate), [`invalidate`](SendRequest::invalidate) | RC, UC, XRC |
/// | requests of a [`WindowLease`](crate::memory::WindowLease) | RC, UC, XRC |
/// | [`read`](Self::read), [`compare_and_swap`](Self::compare_and_swap), [`fetch_and_add`](Self::fetch_and_add) | RC, XRC |
/// | [`atomic_write`](SendRequest::atomic_write), [`flush`](SendRequest::flush) | RC, XRC created with these operations |
/// | [`segmented`](Self::segmented) | UD, raw packet |
///
/// On queue pairs with [extended posting](super::QueuePairBuilder::extended_posting), requests are
/// posted by the functions `ibv_wr_*`. Requests with several scatter/gather elements are an
/// exception: `ibv_post_send` posts these requests, because some drivers handle element lists of
/// `ibv_wr_*` wrongly.
///
/// A request is `Send` and `Sync` if its memory is `Send` and `Sync`.
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

/// The operation, flags and destination of a send request, without the memory of the request and
/// the objects that the request keeps alive.
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

    /// Makes the request unsignaled: a successful request then has no completion of its own. The
    /// completion of a later signaled request of the queue completes the unsignaled request as
    /// well. A failed request always has a completion.
    ///
    /// The queue makes some unsignaled requests signaled nevertheless, because a full queue without
    /// any completion would never have room again. If a [`SendQueue`](super::SendQueue) is the only
    /// send queue of its queue pair, this happens rarely: only if the request fills the last free
    /// entry of the queue and no outstanding request is signaled. In other queues this happens more
    /// often: in a [`ConcurrentSendQueue`](super::ConcurrentSendQueue), for example, at the end of
    /// each batch.
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

    /// Delays the request until the RDMA reads and atomics that were posted before this request
    /// have completed.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline]
    pub fn fence(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Marks the request as solicited. The message then produces a completion event at the peer
    /// even if the peer waits for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    /// Makes posting copy the data into the request, up to
    /// [`QueuePair::inline_limit`](super::QueuePair::inline_limit) bytes. The flag is for sends and
    /// writes. Posting a read or an atomic with the flag fails.
    ///
    /// The queue still keeps the memory until the request has completed. To keep access to the data
    /// during that time, post a slice with
    /// [`SendQueue::post_inline`](super::SendQueue::post_inline).
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn inline(mut self) -> Self {
        self.flags.insert(SendFlags::INLINE);
        self
    }

    /// Sets the destination of a datagram: the address handle, queue pair number and queue key of a
    /// peer. Every request of a datagram queue pair needs a destination. The request keeps the
    /// address handle alive until the request has completed.
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

    /// Sets the number of the peer's shared receive queue that receives the message. Every request
    /// of an XRC initiator needs this number, which the program must get from the peer.
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

    /// Returns the memory of a request that was not posted, and drops the rest of the request.
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

    /// Splits the request into three values: the memory, a description of the operation, flags and
    /// target, and the objects that the request keeps alive. The caller can then read and move
    /// these values separately.
    #[inline]
    pub(crate) fn into_pieces(self) -> (T, Description, KeepAlive) {
        let description = self.description();
        (self.memory, description, self.keep)
    }

    /// Returns whether the request keeps no object other than its memory alive. Requests with an
    /// address handle, for example, keep another object alive. The faster code for posting handles
    /// only requests without such objects.
    #[inline(always)]
    pub(crate) fn is_fast_path(&self) -> bool {
        matches!(self.keep, KeepAlive::Nothing)
    }

    /// Splits the request into its memory, and a description of its operation, flags and target.
    /// The request must not keep another object alive, such as an address handle, because the
    /// result does not contain such an object.
    #[inline(always)]
    pub(crate) fn into_described(self) -> (T, Description) {
        let (memory, description, keep) = self.into_pieces();
        debug_assert!(matches!(keep, KeepAlive::Nothing));
        // Dropping `Nothing` has no effect, but the compiler does not know that.
        mem::forget(keep);
        (memory, description)
    }

    /// Creates a request from its memory, and a description of its operation, flags and target. The
    /// request keeps only the memory alive until it completes.
    #[inline]
    pub(crate) fn from_described(memory: T, description: Description) -> Self {
        Self::from_pieces((memory, description, KeepAlive::Nothing))
    }

    /// Creates a request from its memory, a description of its operation, flags and target, and the
    /// objects that the request keeps alive.
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

    /// Creates a request that sends the data in `memory` to a receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline]
    pub fn send(memory: T) -> Self {
        Self::new(Operation::Send { immediate: None }, memory, NOWHERE)
    }

    /// Creates a request that sends the data in `memory` and the 32-bit number `immediate` to a
    /// receive of the peer.
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

    /// Creates a request that sends the data in `memory` to a receive of the peer, and invalidates
    /// the key `key`. `key` is the remote key of one of the peer's type 2 memory windows.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[inline]
    pub fn send_with_invalidate(memory: T, key: u32) -> Self {
        Self::new(Operation::SendWithInvalidate { key }, memory, NOWHERE)
    }

    /// Creates a request that writes the data in `memory` to the start of the peer's memory
    /// `remote`.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline]
    pub fn write(memory: T, remote: RemoteMemory) -> Self {
        Self::new(Operation::Write { immediate: None }, memory, remote)
    }

    /// Creates a request that writes the data in `memory` to the start of the peer's memory
    /// `remote`, and delivers the 32-bit number `immediate` to a receive of the peer.
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

    /// Creates a request that sends the data in `memory`, a part of a TCP stream, in several
    /// packets (TSO). Each packet has at most `segment` bytes of payload. Each packet begins with
    /// `headers`, in which the device adapts fields such as lengths and sequence numbers.
    ///
    /// The request is for datagram and raw packet queue pairs that were created with the operation
    /// [`SendOperations::SEGMENTATION`](super::SendOperations::SEGMENTATION).
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
    /// Creates a request that reads data from the start of the peer's memory `remote` into
    /// `memory`. The length of `memory` is the number of bytes to read.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read(memory: T, remote: RemoteMemory) -> Self {
        Self::new(Operation::Read, memory, remote)
    }

    /// Creates a request that atomically compares eight aligned bytes of the peer's memory with
    /// `expected`. If both are equal, the request replaces the bytes by `desired`.
    ///
    /// The device stores the previous value in `memory`, which must have eight bytes. The byte
    /// order of the value is that of this host. Use [`AtomicResult`](crate::memory::AtomicResult)
    /// as `memory` to read the value.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap(memory: T, remote: RemoteMemory, expected: u64, desired: u64) -> Self {
        Self::new(
            Operation::CompareAndSwap { expected, desired },
            memory,
            remote,
        )
    }

    /// Creates a request that atomically adds `add` to an aligned 64-bit number in the peer's
    /// memory, wrapping on overflow.
    ///
    /// The device stores the previous value in `memory`, which must have eight bytes. The byte
    /// order of the value is that of this host. Use [`AtomicResult`](crate::memory::AtomicResult)
    /// as `memory` to read the value.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_and_add(memory: T, remote: RemoteMemory, add: u64) -> Self {
        Self::new(Operation::FetchAndAdd { add }, memory, remote)
    }
}

/// Requests without memory, for [`SendQueue::post_inline`](super::SendQueue::post_inline).
impl SendRequest<()> {
    /// Creates a request that invalidates `key`, the key of a type 2 memory window of this process.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[inline]
    pub fn invalidate(key: u32) -> Self {
        Self::new(Operation::Invalidate { key }, (), NOWHERE)
    }

    /// Creates a request that binds a memory window or ends its binding, as `change` describes.
    pub(crate) fn of_window(change: WindowChange) -> Self {
        let binds = !change.is_invalidation();
        let mut request = Self::new(Operation::Window { binds }, (), NOWHERE);
        request.keep = KeepAlive::Window(Box::new(change));
        request
    }

    /// Creates a request that atomically writes eight bytes to the peer's memory: a reader gets
    /// either all old bytes or all new bytes. The address must be a multiple of eight.
    ///
    /// The request is for queue pairs that were created with
    /// [`SendOperations::ATOMIC_WRITE`](super::SendOperations::ATOMIC_WRITE).
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline]
    pub fn atomic_write(value: [u8; 8], remote: RemoteMemory) -> Self {
        Self::new(Operation::AtomicWrite { value }, (), remote)
    }

    /// Creates a request that flushes earlier writes to the peer's memory `remote`. When the
    /// request has completed, these writes are visible or persistent, as `placement` states.
    ///
    /// The request is for queue pairs that were created with
    /// [`SendOperations::FLUSH`](super::SendOperations::FLUSH).
    #[doc(alias = "ibv_wr_flush")]
    #[doc(alias = "IBV_FLUSH_RANGE")]
    #[inline]
    pub fn flush(remote: RemoteMemory, placement: Placement) -> Self {
        let whole = false;
        Self::new(Operation::Flush { placement, whole }, (), remote)
    }

    /// Creates a request that flushes earlier writes to a whole memory region of the peer, the
    /// region to which `remote` belongs. When the request has completed, these writes are visible
    /// or persistent, as `placement` states.
    #[doc(alias = "IBV_FLUSH_MR")]
    #[inline]
    pub fn flush_region(remote: RemoteMemory, placement: Placement) -> Self {
        let whole = true;
        Self::new(Operation::Flush { placement, whole }, (), remote)
    }
}
