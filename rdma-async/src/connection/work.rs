//! The operations of a connection, their arguments, and the memory that a request holds.

use rdma_core::memory::{Claim, WriteClaim};
use rdma_core::{RemoteMemory, SendRequest};

/// Memory that a request holds until it completes, in two parts. The first part is memory that this
/// crate has allocated, for a message header or the result of an atomic operation. The second part
/// is memory of the application. A part is `None` if the request has no such memory.
pub(crate) type Memory = (Option<WriteClaim>, Option<Claim>);

/// An operation that transfers local data to the peer: a send or an RDMA write.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Push {
    Send {
        immediate: Option<u32>,
        /// Set if the request must start only after all earlier reads and atomic operations have
        /// completed.
        fence: bool,
    },
    Write {
        remote: RemoteMemory,
        immediate: Option<u32>,
    },
}

impl Push {
    /// Returns a work request for this operation. `memory` is the local data of the request:
    /// registered memory, or bytes to be copied. The request is signaled, so the device reports its
    /// completion.
    #[inline(always)]
    pub(super) fn request<T>(self, memory: T) -> SendRequest<T> {
        match self {
            Self::Send { immediate, fence } => {
                let request = match immediate {
                    None => SendRequest::send(memory),
                    Some(immediate) => SendRequest::send_with_immediate(memory, immediate),
                };
                if fence { request.fence() } else { request }
            }
            Self::Write {
                remote,
                immediate: None,
            } => SendRequest::write(memory, remote),
            Self::Write {
                remote,
                immediate: Some(immediate),
            } => SendRequest::write_with_immediate(memory, remote, immediate),
        }
    }
}

/// An operation that a request of the send queue performs, with its arguments except local memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Push(Push),
    Read {
        remote: RemoteMemory,
    },
    CompareAndSwap {
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    },
    FetchAndAdd {
        remote: RemoteMemory,
        add: u64,
    },
}

impl Work {
    /// Returns a work request for this operation, with its memory. The request is signaled, so the
    /// device reports its completion.
    #[inline(always)]
    pub(super) fn request(self, memory: Memory) -> SendRequest<Memory> {
        match self {
            Self::Push(push) => push.request(memory),
            Self::Read { remote } => SendRequest::read(memory, remote),
            Self::CompareAndSwap {
                remote,
                expected,
                desired,
            } => SendRequest::compare_and_swap(memory, remote, expected, desired),
            Self::FetchAndAdd { remote, add } => SendRequest::fetch_and_add(memory, remote, add),
        }
    }
}
