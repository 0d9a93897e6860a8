//! A completion of an extended completion queue.

use std::fmt;
use std::time::{Duration, SystemTime};

use ibverbs_sys as sys;

use super::{WorkCompletion, WorkError, WorkOpcode, WorkStatus};
use crate::ffi::Session;

/// A completion of an extended completion queue, valid until the program reads the next completion.
/// [`PolledCompletions::next`](super::PolledCompletions::next) returns this type. Each method reads
/// one field of the completion from the queue entry that the device wrote.
///
/// A method that returns an `Option` returns `None` if the queue was created without the field. If
/// the request failed, only the id, the status, the vendor error and the queue pair are valid.
pub struct ExtendedCompletion<'a> {
    session: &'a Session<'a>,
}

/// The tag of a message in a tag-matching receive queue, and the data that the sender added to the
/// tag (`ibv_wc_tm_info`).
#[doc(alias = "ibv_wc_tm_info")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionTag {
    /// The tag of the message.
    pub tag: u64,
    /// The private data that the sender added to the tag.
    pub private: u32,
}

impl<'a> ExtendedCompletion<'a> {
    pub(super) fn new(session: &'a Session<'_>) -> Self {
        Self { session }
    }

    /// Returns the id of the completed work request (`wr_id`). By this id, the send or receive
    /// queue that posted the request finds the memory of the request.
    #[inline]
    pub fn id(&self) -> u64 {
        self.session.id()
    }

    /// Returns the status of the request: success, or the kind of failure.
    #[inline]
    pub fn status(&self) -> WorkStatus {
        WorkStatus::from_raw(self.session.status())
    }

    /// Returns `Ok` if the request succeeded, else its error.
    ///
    /// # Errors
    ///
    /// [`WorkError`] for every status except success. The queue pair number in the error is 0 if
    /// the queue was not created with
    /// [`CompletionFields::QUEUE_PAIR`](super::CompletionFields::QUEUE_PAIR).
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

    /// Returns the vendor-specific error code of a failed request.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    #[inline]
    pub fn vendor_error(&self) -> u32 {
        self.session.vendor_error()
    }

    /// Returns the operation type of the completed request.
    #[doc(alias = "ibv_wc_read_opcode")]
    #[inline]
    pub fn opcode(&self) -> WorkOpcode {
        WorkOpcode::from_raw(self.session.opcode())
    }

    /// Returns the number of bytes that were transferred, like [`WorkCompletion::len`]; `None` if
    /// the completion queue was created without this field.
    #[doc(alias = "ibv_wc_read_byte_len")]
    #[allow(clippy::len_without_is_empty, reason = "not of every completion")]
    #[inline]
    pub fn len(&self) -> Option<usize> {
        self.session.byte_len().map(|len| len as usize)
    }

    /// Returns the immediate data of a received message, as the number that the sender passed.
    /// Returns `None` if the message has no immediate data, or if the completion queue was created
    /// without this field.
    #[doc(alias = "ibv_wc_read_imm_data")]
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        if !self.flag(sys::ibv_wc_flags::IBV_WC_WITH_IMM) {
            return None;
        }
        self.session.immediate().map(u32::from_be)
    }

    /// Returns the remote key that the received message invalidated: the key of a memory window of
    /// this process. Returns `None` if the message invalidated no key, or if the completion queue
    /// was created without this field.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    #[inline]
    pub fn invalidated_key(&self) -> Option<u32> {
        if !self.flag(sys::ibv_wc_flags::IBV_WC_WITH_INV) {
            return None;
        }
        self.session.immediate()
    }

    /// Returns the number of the queue pair whose request completed; `None` if the completion queue
    /// was created without this field.
    #[doc(alias = "ibv_wc_read_qp_num")]
    #[inline]
    pub fn queue_pair(&self) -> Option<u32> {
        self.session.queue_pair()
    }

    /// Returns the number of the sender's queue pair, for a received datagram; `None` if the
    /// completion queue was created without this field.
    #[doc(alias = "ibv_wc_read_src_qp")]
    #[inline]
    pub fn source_queue_pair(&self) -> Option<u32> {
        self.session.source_queue_pair()
    }

    /// Returns whether the received packets had a global route header (GRH).
    /// [`WorkCompletion::has_global_route`](super::WorkCompletion::has_global_route) describes
    /// where a receive stores the header.
    #[doc(alias = "ibv_wc_read_wc_flags")]
    #[inline]
    pub fn has_global_route(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_GRH)
    }

    /// Returns whether the device verified the checksums of a raw packet as correct.
    #[inline]
    pub fn has_valid_checksum(&self) -> bool {
        self.flag(sys::ibv_wc_flags::IBV_WC_IP_CSUM_OK)
    }

    /// Returns the local identifier (LID) of the sender, for a datagram received over InfiniBand;
    /// `None` if the completion queue was created without this field.
    #[doc(alias = "ibv_wc_read_slid")]
    #[inline]
    pub fn source_lid(&self) -> Option<u32> {
        self.session.source_lid()
    }

    /// Returns the service level of a received datagram; `None` if the completion queue was created
    /// without this field.
    #[doc(alias = "ibv_wc_read_sl")]
    #[inline]
    pub fn service_level(&self) -> Option<u8> {
        self.session.service_level()
    }

    /// Returns the path bits of a datagram received over InfiniBand: the low bits (at most 7) of
    /// the destination LID. Returns `None` if the completion queue was created without this field.
    #[doc(alias = "ibv_wc_read_dlid_path_bits")]
    #[inline]
    pub fn path_bits(&self) -> Option<u8> {
        self.session.path_bits()
    }

    /// Returns the time of completion in ticks of the device's clock; `None` if the completion
    /// queue was created without this field.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    #[inline]
    pub fn timestamp(&self) -> Option<u64> {
        self.session.timestamp()
    }

    /// Returns the time of completion as wall-clock time; `None` if the completion queue was
    /// created without this field.
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    #[inline]
    pub fn wall_clock(&self) -> Option<SystemTime> {
        let nanoseconds = Duration::from_nanos(self.session.wall_clock()?);
        SystemTime::UNIX_EPOCH.checked_add(nanoseconds)
    }

    /// Returns the customer VLAN tag (C-VLAN) of a received raw packet; `None` if the completion
    /// queue was created without this field.
    #[doc(alias = "ibv_wc_read_cvlan")]
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.session.vlan()
    }

    /// Returns the tag of the flow rule that matched a raw packet; `None` if the completion queue
    /// was created without this field.
    #[doc(alias = "ibv_wc_read_flow_tag")]
    #[inline]
    pub fn flow_tag(&self) -> Option<u32> {
        self.session.flow_tag()
    }

    /// Returns the tag of a message that a tag-matching receive queue received; `None` if the
    /// completion queue was created without this field.
    #[doc(alias = "ibv_wc_read_tm_info")]
    #[inline]
    pub fn tag(&self) -> Option<CompletionTag> {
        self.session.tag()
    }

    /// Returns a copy of the completion. A program can store the copy, or pass the copy to the
    /// queue of the request to get the request's memory back. A field that the completion queue was
    /// created without is 0 or `None` in the copy.
    ///
    /// Without [`CompletionFields::IMMEDIATE`], the copy does not contain the key that the peer has
    /// invalidated. A [`WindowLease`](crate::memory::WindowLease) with this key then stays in the
    /// state `Bound`.
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
