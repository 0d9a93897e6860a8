//! Work completions.

use std::fmt;

use ibverbs_sys as sys;

use super::{WorkError, WorkStatus};
use crate::ffi;

/// What `ibv_poll_cq` tells of one finished work request.
///
/// Give it to the queue the request was posted to ([`SendQueue::complete`] and its siblings), which
/// returns the request's memory. Of a request that failed, only the status, the vendor's code, the
/// queue pair and the id mean anything.
///
/// [`SendQueue::complete`]: crate::SendQueue::complete
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(sys::ibv_wc);

/// What kind of request a successful completion is of (`ibv_wc_opcode`).
#[doc(alias = "ibv_wc_opcode")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WorkOpcode {
    /// A send, with or without immediate.
    Send,
    /// An RDMA write, with or without immediate.
    Write,
    /// An RDMA read.
    Read,
    /// A compare-and-swap.
    CompareAndSwap,
    /// A fetch-and-add.
    FetchAndAdd,
    /// A receive that took a send.
    Receive,
    /// A receive that an RDMA write with immediate used up.
    ReceiveWriteImmediate,
    /// Any other, with its raw value.
    Other(u32),
}

impl WorkCompletion {
    /// How the request ended.
    #[inline]
    pub fn status(&self) -> WorkStatus {
        WorkStatus::from_raw(self.0.status)
    }

    /// `Ok` if the request succeeded, else its error.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for every status but success.
    #[inline]
    pub fn result(&self) -> Result<(), WorkError> {
        if self.0.status == sys::ibv_wc_status::IBV_WC_SUCCESS {
            return Ok(());
        }
        Err(WorkError {
            status: self.status(),
            vendor: self.0.vendor_err,
            queue_pair: self.0.qp_num,
        })
    }

    /// The kind of request.
    #[inline]
    pub fn opcode(&self) -> WorkOpcode {
        use sys::ibv_wc_opcode as raw;
        match self.0.opcode {
            raw::IBV_WC_SEND => WorkOpcode::Send,
            raw::IBV_WC_RDMA_WRITE => WorkOpcode::Write,
            raw::IBV_WC_RDMA_READ => WorkOpcode::Read,
            raw::IBV_WC_COMP_SWAP => WorkOpcode::CompareAndSwap,
            raw::IBV_WC_FETCH_ADD => WorkOpcode::FetchAndAdd,
            raw::IBV_WC_RECV => WorkOpcode::Receive,
            raw::IBV_WC_RECV_RDMA_WITH_IMM => WorkOpcode::ReceiveWriteImmediate,
            raw(other) => WorkOpcode::Other(other),
        }
    }

    /// How many bytes a receive, a read or an atomic put into local memory. Of a
    /// [`WorkOpcode::ReceiveWriteImmediate`], how many the peer wrote, which are not in the receive's
    /// memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// Whether [`Self::len`] is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.byte_len == 0
    }

    /// The immediate data that came with a receive, as the number that the sender gave.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let with_immediate = self.0.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        with_immediate.then(|| u32::from_be(ffi::raw_immediate(&self.0)))
    }

    /// The number of the queue pair.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// The request's id.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_wc {
        &self.0
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self(ffi::empty_completion())
    }
}

impl fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WorkCompletion");
        debug
            .field("id", &format_args!("{:#x}", self.id()))
            .field("status", &self.status());
        debug.field("queue_pair", &self.queue_pair());
        if self.status().is_success() {
            debug
                .field("opcode", &self.opcode())
                .field("len", &self.len());
            debug.field("immediate", &self.immediate());
        }
        debug.finish()
    }
}
