//! The operations that send requests perform.

use super::SendOperations;

/// The operation of a send request, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Send {
        immediate: Option<u32>,
    },
    SendWithInvalidate {
        key: u32,
    },
    Write {
        immediate: Option<u32>,
    },
    Read,
    CompareAndSwap {
        expected: u64,
        desired: u64,
    },
    FetchAndAdd {
        add: u64,
    },
    Invalidate {
        key: u32,
    },
    Segmented {
        segment: u16,
    },
    AtomicWrite {
        value: [u8; 8],
    },
    Flush {
        placement: Placement,
        whole: bool,
    },
    /// A change to a memory window: the request binds the window or ends its binding. The
    /// parameters are in the request's `KeepAlive::Window`.
    Window {
        binds: bool,
    },
}

impl Operation {
    /// Returns the creation flag for this operation. A queue pair must be created with this flag to
    /// post the operation by `ibv_wr_*`.
    pub(crate) fn needs(self) -> SendOperations {
        match self {
            Self::Send { immediate: None } => SendOperations::SEND,
            Self::Send { immediate: Some(_) } => SendOperations::SEND_WITH_IMMEDIATE,
            Self::SendWithInvalidate { .. } => SendOperations::SEND_WITH_INVALIDATE,
            Self::Write { immediate: None } => SendOperations::WRITE,
            Self::Write { immediate: Some(_) } => SendOperations::WRITE_WITH_IMMEDIATE,
            Self::Read => SendOperations::READ,
            Self::CompareAndSwap { .. } => SendOperations::COMPARE_AND_SWAP,
            Self::FetchAndAdd { .. } => SendOperations::FETCH_AND_ADD,
            Self::Invalidate { .. } => SendOperations::INVALIDATE,
            Self::Segmented { .. } => SendOperations::SEGMENTATION,
            Self::AtomicWrite { .. } => SendOperations::ATOMIC_WRITE,
            Self::Flush { .. } => SendOperations::FLUSH,
            Self::Window { binds: true } => SendOperations::BIND_WINDOW,
            Self::Window { binds: false } => SendOperations::INVALIDATE,
        }
    }

    /// Returns whether the device writes to the local memory of the request. Only reads and atomics
    /// (compare-and-swap, fetch-and-add) write to local memory.
    #[inline]
    pub(crate) fn writes_memory(self) -> bool {
        matches!(
            self,
            Self::Read | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. }
        )
    }

    /// Returns the name of the operation for error messages.
    pub(crate) fn described(self) -> &'static str {
        match self {
            Self::Send { immediate: None } => "sends",
            Self::Send { immediate: Some(_) } => "sends with immediate data",
            Self::SendWithInvalidate { .. } => "sends that invalidate a key",
            Self::Write { immediate: None } => "RDMA writes",
            Self::Write { immediate: Some(_) } => "RDMA writes with immediate data",
            Self::Read => "RDMA reads",
            Self::CompareAndSwap { .. } => "compare-and-swap",
            Self::FetchAndAdd { .. } => "fetch-and-add",
            Self::Invalidate { .. } => "invalidating a key",
            Self::Segmented { .. } => "segmentation of sends",
            Self::AtomicWrite { .. } => "atomic writes",
            Self::Flush { .. } => "flushes",
            Self::Window { .. } => "memory windows",
        }
    }
}

/// The guarantee that a flush request gives about earlier RDMA writes (`ibv_placement_type`; IBTA
/// volume 1, 9.4.8).
#[doc(alias = "ibv_placement_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// Earlier writes are visible to every reader of the peer's memory.
    #[doc(alias = "IBV_FLUSH_GLOBAL")]
    Global,
    /// Earlier writes are persistent: they survive a loss of power.
    #[doc(alias = "IBV_FLUSH_PERSISTENT")]
    Persistent,
}
