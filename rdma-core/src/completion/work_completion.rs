//! Work completions.

use std::fmt;

use ibverbs_sys as sys;

use super::{WorkError, WorkOpcode, WorkStatus};
use crate::ffi;

/// What `ibv_poll_cq` tells of one finished work request.
///
/// Give it to the queue the request was posted to ([`SendQueue::complete`] and its siblings), which
/// returns the request's memory. Of a request that failed, only the status, the vendor's code, the
/// queue pair and the id mean anything.
///
/// It is `Send`, `Sync` and `Copy`, being numbers alone: a queue that is shown one twice gives the
/// memory back once.
///
/// [`SendQueue::complete`]: crate::SendQueue::complete
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(sys::ibv_wc);

impl WorkCompletion {
    /// Not public: a queue gives the memory of the request with this id back.
    pub(crate) fn from_raw_parts(raw: sys::ibv_wc) -> Self {
        Self(raw)
    }

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
        Err(self.error())
    }

    #[cold]
    fn error(&self) -> WorkError {
        WorkError {
            status: self.status(),
            vendor: self.0.vendor_err,
            queue_pair: self.0.qp_num,
        }
    }

    /// The kind of request.
    #[inline]
    pub fn opcode(&self) -> WorkOpcode {
        WorkOpcode::from_raw(self.0.opcode)
    }

    /// The vendor's own code for a failure.
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
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

    /// The immediate data that came with a receive, as the number that the sender gave: the device
    /// has it in network byte order, and both ends of this crate in the machine's.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        self.flag(sys::ibv_wc_flags::IBV_WC_WITH_IMM)
            .then(|| u32::from_be(ffi::raw_immediate(&self.0)))
    }

    /// The key of this process that the sender's message invalidated.
    #[doc(alias = "invalidated_rkey")]
    #[inline]
    pub fn invalidated_key(&self) -> Option<u32> {
        self.flag(sys::ibv_wc_flags::IBV_WC_WITH_INV)
            .then(|| ffi::raw_invalidated_key(&self.0))
    }

    /// Whether the memory of a datagram begins with 40 bytes of a global route header. (There are
    /// 40 bytes in any case; on RoCE with IPv4 their last 20 are the IPv4 header.)
    #[doc(alias = "IBV_WC_GRH")]
    #[inline]
    pub fn has_global_route(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_GRH)
    }

    /// Whether the device found the checksums of a raw packet right.
    #[doc(alias = "IBV_WC_IP_CSUM_OK")]
    #[inline]
    pub fn has_valid_checksum(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK)
    }

    #[inline]
    fn flag(&self, flag: sys::ibv_wc_flags) -> bool {
        // Of a failure drivers leave the flags as they find them, of an earlier completion perhaps.
        self.0.status == sys::ibv_wc_status::IBV_WC_SUCCESS && self.0.wc_flags & flag.0 != 0
    }

    /// Of a datagram, the number of the sender's queue pair.
    #[doc(alias = "src_qp")]
    #[inline]
    pub fn source_queue_pair(&self) -> u32 {
        self.0.src_qp
    }

    /// Of a datagram to a queue pair of the general services, the index of its partition key.
    #[inline]
    pub fn partition_key_index(&self) -> u16 {
        self.0.pkey_index
    }

    /// Of a datagram on InfiniBand, the sender's LID.
    #[doc(alias = "slid")]
    #[inline]
    pub fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// Of a datagram, the service level.
    #[inline]
    pub fn service_level(&self) -> u8 {
        self.0.sl
    }

    /// Of a datagram on InfiniBand, the low bits of the LID it was sent to.
    #[doc(alias = "dlid_path_bits")]
    #[inline]
    pub fn path_bits(&self) -> u8 {
        self.0.dlid_path_bits
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
            if let Some(key) = self.invalidated_key() {
                debug.field("invalidated_key", &key);
            }
            if self.source_queue_pair() != 0 {
                debug.field("source_queue_pair", &self.source_queue_pair());
            }
        }
        debug.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_no_flags() {
        let mut raw = ffi::empty_completion();
        raw.wc_flags = sys::ibv_wc_flags::IBV_WC_WITH_INV.0;
        assert_eq!(WorkCompletion(raw).invalidated_key(), Some(0));
        raw.status = sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
        assert_eq!(WorkCompletion(raw).invalidated_key(), None);
    }
}
