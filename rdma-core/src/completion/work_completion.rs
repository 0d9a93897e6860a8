//! Work completions.

use std::fmt;

use ibverbs_sys as sys;

use super::{WorkError, WorkOpcode, WorkStatus};
use crate::ffi;

/// The completion of one work request, as returned by `ibv_poll_cq`.
///
/// The program passes the completion to the queue of the request ([`SendQueue::complete`] and
/// similar methods), which returns the request's memory. If the request failed, only the status,
/// the vendor error, the queue pair and the id are valid.
///
/// A completion is `Send`, `Sync` and `Copy`, because it contains only numbers. If the program
/// passes the same completion to a queue twice, the queue returns the memory only once.
///
/// [`SendQueue::complete`]: crate::SendQueue::complete
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(sys::ibv_wc);

impl WorkCompletion {
    /// Creates a completion from the C struct. This function is not public: for a completion with
    /// an invented id, a send or receive queue would return memory that the device still uses.
    pub(crate) fn from_raw_parts(raw: sys::ibv_wc) -> Self {
        Self(raw)
    }

    /// Returns the status of the request: success, or the kind of failure.
    #[inline]
    pub fn status(&self) -> WorkStatus {
        WorkStatus::from_raw(self.0.status)
    }

    /// Returns `Ok` if the request succeeded, else its error.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for every status except success.
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

    /// Returns the operation type of the completed request.
    #[inline]
    pub fn opcode(&self) -> WorkOpcode {
        WorkOpcode::from_raw(self.0.opcode)
    }

    /// Returns the vendor-specific error code of a failed request.
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// Returns the number of bytes that a receive, a read or an atomic operation wrote to local
    /// memory. For [`WorkOpcode::ReceiveWriteImmediate`], returns the number of bytes that the peer
    /// wrote by RDMA. These bytes are not in the memory of the receive.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// Returns whether [`Self::len`] is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.byte_len == 0
    }

    /// Returns the immediate data of a received message, as the number that the sender passed.
    /// Returns `None` if the message has no immediate data. The message contains the number in
    /// network byte order. The crate converts the number when sending and when receiving.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        self.flag(sys::ibv_wc_flags::IBV_WC_WITH_IMM)
            .then(|| u32::from_be(ffi::raw_immediate(&self.0)))
    }

    /// Returns the remote key that the received message invalidated: the key of a memory window of
    /// this process. Returns `None` if the message invalidated no key.
    #[doc(alias = "invalidated_rkey")]
    #[inline]
    pub fn invalidated_key(&self) -> Option<u32> {
        self.flag(sys::ibv_wc_flags::IBV_WC_WITH_INV)
            .then(|| ffi::raw_invalidated_key(&self.0))
    }

    /// Returns whether the received packets had a global route header (GRH). All packets of RoCE
    /// have this header. A datagram receive stores the header in the first 40 bytes of its memory.
    /// These bytes are reserved even if the packet has no header. On RoCE with IPv4, the last 20 of
    /// these bytes are the IPv4 header. Receives of other queue pairs store no header.
    #[doc(alias = "IBV_WC_GRH")]
    #[inline]
    pub fn has_global_route(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_GRH)
    }

    /// Returns whether the device verified the checksums of a raw packet as correct.
    #[doc(alias = "IBV_WC_IP_CSUM_OK")]
    #[inline]
    pub fn has_valid_checksum(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK)
    }

    #[inline]
    fn flag(&self, flag: sys::ibv_wc_flags) -> bool {
        // Drivers do not write the flags of a failed request, so the flags may be those of an
        // earlier completion.
        self.0.status == sys::ibv_wc_status::IBV_WC_SUCCESS && self.0.wc_flags & flag.0 != 0
    }

    /// Returns the number of the sender's queue pair. The number is valid only for a received
    /// datagram.
    #[doc(alias = "src_qp")]
    #[inline]
    pub fn source_queue_pair(&self) -> u32 {
        self.0.src_qp
    }

    /// Returns the index of the partition key of a received datagram. The index is valid only for a
    /// general services (GSI) queue pair.
    #[inline]
    pub fn partition_key_index(&self) -> u16 {
        self.0.pkey_index
    }

    /// Returns the local identifier (LID) of the sender, for a datagram received over InfiniBand.
    #[doc(alias = "slid")]
    #[inline]
    pub fn source_lid(&self) -> u16 {
        self.0.slid
    }

    /// Returns the service level of a received datagram.
    #[inline]
    pub fn service_level(&self) -> u8 {
        self.0.sl
    }

    /// Returns the low bits of the destination LID, for a datagram received over InfiniBand.
    #[doc(alias = "dlid_path_bits")]
    #[inline]
    pub fn path_bits(&self) -> u8 {
        self.0.dlid_path_bits
    }

    /// Returns the number of the queue pair whose request completed.
    #[inline]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// Returns the id of the completed work request (`wr_id`). By this id, the send or receive
    /// queue that posted the request finds the memory of the request.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the completion as a C struct.
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
