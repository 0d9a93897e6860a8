//! Send requests.

use ibverbs_sys::ibv_send_flags;

use crate::memory::{Gather, RemoteMemory, Scatter};

bitflags::bitflags! {
    /// How a send request is treated (`ibv_send_flags`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct SendFlags: u32 {
        const FENCE = ibv_send_flags::IBV_SEND_FENCE.0;
        const SIGNALED = ibv_send_flags::IBV_SEND_SIGNALED.0;
        const SOLICITED = ibv_send_flags::IBV_SEND_SOLICITED.0;
        const INLINE = ibv_send_flags::IBV_SEND_INLINE.0;
    }
}

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Send { immediate: Option<u32> },
    Write { immediate: Option<u32> },
    Read,
    CompareAndSwap { expected: u64, desired: u64 },
    FetchAndAdd { add: u64 },
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
#[doc(alias = "ibv_send_wr")]
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<T> {
    memory: T,
    remote: RemoteMemory,
    operation: Operation,
    flags: SendFlags,
}

impl<T> SendRequest<T> {
    #[inline]
    fn new(operation: Operation, memory: T, remote: RemoteMemory) -> Self {
        Self {
            memory,
            remote,
            operation,
            flags: SendFlags::SIGNALED,
        }
    }

    /// Completes without a completion of its own, unless it fails: a later signaled request of the
    /// queue completes it too. At least one request in each queue's length must be signaled.
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
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline]
    pub fn inline(mut self) -> Self {
        self.flags.insert(SendFlags::INLINE);
        self
    }

    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }

    #[inline]
    pub(crate) fn memory(&self) -> &T {
        &self.memory
    }

    #[inline]
    pub(crate) fn into_memory(self) -> T {
        self.memory
    }

    #[inline]
    pub(crate) fn remote(&self) -> RemoteMemory {
        self.remote
    }

    #[inline]
    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    #[inline]
    pub(crate) fn flags(&self) -> SendFlags {
        self.flags
    }
}

impl<T: Gather> SendRequest<T> {
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
}

impl<T: Scatter> SendRequest<T> {
    /// Reads as many bytes as `memory` has, from the start of the peer's.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline]
    pub fn read(memory: T, remote: RemoteMemory) -> Self {
        Self::new(Operation::Read, memory, remote)
    }

    /// Replaces the peer's eight bytes, at a multiple of eight, by `desired` if they are `expected`.
    /// What they were goes into `memory`, eight bytes, as a number in this host's byte order.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline]
    pub fn compare_and_swap(memory: T, remote: RemoteMemory, expected: u64, desired: u64) -> Self {
        Self::new(
            Operation::CompareAndSwap { expected, desired },
            memory,
            remote,
        )
    }

    /// Adds to the peer's eight bytes, at a multiple of eight, wrapping. What they were goes into
    /// `memory`, eight bytes, as a number in this host's byte order.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline]
    pub fn fetch_and_add(memory: T, remote: RemoteMemory, add: u64) -> Self {
        Self::new(Operation::FetchAndAdd { add }, memory, remote)
    }
}
