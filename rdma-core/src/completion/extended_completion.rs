//! A completion of an extended queue.

use std::fmt;
use std::time::{Duration, SystemTime};

use ibverbs_sys as sys;

use super::{WorkCompletion, WorkError, WorkOpcode, WorkStatus};
use crate::ffi::Session;

/// The completion that an [`ExtendedCompletionQueue::poll`](super::ExtendedCompletionQueue::poll) is
/// at. Each method reads one field from the device's own entry.
///
/// A field that the queue was not made to tell is `None`. Of a request that failed, only the id,
/// the status, the vendor's code and the queue pair mean anything.
pub struct ExtendedCompletion<'a> {
    session: &'a Session<'a>,
}

/// What a tag-matching receive queue tells of a message (`ibv_wc_tm_info`).
#[doc(alias = "ibv_wc_tm_info")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionTag {
    /// The tag of the message.
    pub tag: u64,
    /// What the sender put beside the tag.
    pub private: u32,
}

impl<'a> ExtendedCompletion<'a> {
    pub(super) fn new(session: &'a Session<'_>) -> Self {
        Self { session }
    }

    /// The request's id.
    #[inline]
    pub fn id(&self) -> u64 {
        self.session.id()
    }

    /// How the request ended.
    #[inline]
    pub fn status(&self) -> WorkStatus {
        WorkStatus::from_raw(self.session.status())
    }

    /// `Ok` if the request succeeded, else its error.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for every status but success; its queue pair is 0 if the queue was not made to
    /// tell it.
    #[inline]
    pub fn result(&self) -> Result<(), WorkError> {
        if self.session.status() == sys::ibv_wc_status::IBV_WC_SUCCESS {
            return Ok(());
        }
        Err(WorkError {
            status: self.status(),
            vendor: self.vendor_error(),
            queue_pair: self.queue_pair().unwrap_or(0),
        })
    }

    /// The vendor's own code for a failure.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.session.vendor_error()
    }

    /// The kind of request.
    #[doc(alias = "ibv_wc_read_opcode")]
    #[inline]
    pub fn opcode(&self) -> WorkOpcode {
        WorkOpcode::from_raw(self.session.opcode())
    }

    /// As [`WorkCompletion::len`].
    #[doc(alias = "ibv_wc_read_byte_len")]
    #[allow(clippy::len_without_is_empty, reason = "not of every completion")]
    #[inline]
    pub fn len(&self) -> Option<usize> {
        self.session.byte_len().map(|len| len as usize)
    }

    /// The immediate data that came with a receive, as the number that the sender gave.
    #[doc(alias = "ibv_wc_read_imm_data")]
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        if !self.flag(sys::ibv_wc_flags::IBV_WC_WITH_IMM) {
            return None;
        }
        self.session.immediate().map(u32::from_be)
    }

    /// The key of this process that the sender's message invalidated.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    #[inline]
    pub fn invalidated_key(&self) -> Option<u32> {
        if !self.flag(sys::ibv_wc_flags::IBV_WC_WITH_INV) {
            return None;
        }
        self.session.immediate()
    }

    /// The number of the queue pair.
    #[doc(alias = "ibv_wc_read_qp_num")]
    #[inline]
    pub fn queue_pair(&self) -> Option<u32> {
        self.session.queue_pair()
    }

    /// Of a datagram, the number of the sender's queue pair.
    #[doc(alias = "ibv_wc_read_src_qp")]
    #[inline]
    pub fn source_queue_pair(&self) -> Option<u32> {
        self.session.source_queue_pair()
    }

    /// Whether the memory of a datagram begins with 40 bytes of a global route header.
    #[doc(alias = "ibv_wc_read_wc_flags")]
    #[inline]
    pub fn has_global_route(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_GRH)
    }

    /// Whether the device found the checksums of a raw packet right.
    #[inline]
    pub fn has_valid_checksum(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK)
    }

    /// Of a datagram on InfiniBand, the sender's LID.
    #[doc(alias = "ibv_wc_read_slid")]
    #[inline]
    pub fn source_lid(&self) -> Option<u32> {
        self.session.source_lid()
    }

    /// Of a datagram, the service level.
    #[doc(alias = "ibv_wc_read_sl")]
    #[inline]
    pub fn service_level(&self) -> Option<u8> {
        self.session.service_level()
    }

    /// Of a datagram on InfiniBand, the low bits of the LID it was sent to.
    #[doc(alias = "ibv_wc_read_dlid_path_bits")]
    #[inline]
    pub fn path_bits(&self) -> Option<u8> {
        self.session.path_bits()
    }

    /// When the request completed, in ticks of the device's clock.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        self.session.timestamp()
    }

    /// When the request completed, as the time of day.
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    #[inline]
    pub fn wall_clock(&self) -> Option<SystemTime> {
        let nanoseconds = Duration::from_nanos(self.session.wall_clock()?);
        SystemTime::UNIX_EPOCH.checked_add(nanoseconds)
    }

    /// The VLAN that a raw packet came from.
    #[doc(alias = "ibv_wc_read_cvlan")]
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.session.vlan()
    }

    /// The tag of the flow rule that matched a raw packet.
    #[doc(alias = "ibv_wc_read_flow_tag")]
    #[inline]
    pub fn flow_tag(&self) -> Option<u32> {
        self.session.flow_tag()
    }

    /// The tag of a message that a tag-matching receive queue took.
    #[doc(alias = "ibv_wc_read_tm_info")]
    #[inline]
    pub fn tag(&self) -> Option<CompletionTag> {
        self.session.tag()
    }

    /// A plain completion of the same request, to keep, or to give to the queue that the request
    /// was posted to, which returns its memory. It costs one read for each field that the queue was
    /// made to tell; the other fields are 0 or `None`. Without [`CompletionFields::IMMEDIATE`] a
    /// [lease](crate::WindowLease) that the peer gave back stays bound, as nobody knows its key.
    ///
    /// [`CompletionFields::IMMEDIATE`]: super::CompletionFields::IMMEDIATE
    #[inline]
    pub fn completion(&self) -> WorkCompletion {
        self.session.record().completion
    }

    #[inline]
    fn flag(&self, flag: sys::ibv_wc_flags) -> bool {
        self.session.flags() & flag.0 != 0
    }
}

impl fmt::Debug for ExtendedCompletion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.session.record();
        f.debug_struct("ExtendedCompletion")
            .field("completion", &record.completion)
            .field("details", &record.details)
            .finish()
    }
}
