//! What send requests do.

use super::SendOperations;

/// What a send request does.
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
    /// Binds a window, or ends its binding: what the request keeps says more.
    Window {
        binds: bool,
    },
}

impl Operation {
    /// What a queue pair that is posted to by `ibv_wr_*` must have been made for.
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

    /// Whether the device writes to the request's memory.
    #[inline]
    pub(crate) fn writes_memory(self) -> bool {
        matches!(
            self,
            Self::Read | Self::CompareAndSwap { .. } | Self::FetchAndAdd { .. }
        )
    }

    /// How errors name it.
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

/// What a flush makes sure of (`ibv_placement_type`; IBTA volume 1, 9.4.8).
#[doc(alias = "ibv_placement_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// What was written is visible to everything that reads the memory.
    #[doc(alias = "IBV_FLUSH_GLOBAL")]
    Global,
    /// What was written is kept when the power fails.
    #[doc(alias = "IBV_FLUSH_PERSISTENT")]
    Persistent,
}
