//! The fields of the completions of an extended queue.

use std::fmt;

use ibverbs_sys::{IBV_WC_STANDARD_FLAGS, ibv_create_cq_wc_flags as raw};

bitflags::bitflags! {
    /// Flags that select the fields of the completions of an extended completion queue, in addition
    /// to id, status and opcode (`ibv_create_cq_wc_flags`).
    ///
    /// Creating a queue with a field that the device does not support fails. Therefore the program
    /// can read every field with which a queue was created.
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// Each completion of the queue contains the number of bytes that were transferred.
        const LEN = raw::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// The completion of a receive contains the immediate data of the message, or the remote
        /// key (of a memory window of this process) that the message invalidated.
        const IMMEDIATE = raw::IBV_WC_EX_WITH_IMM.0 as u64;
        /// Each completion of the queue contains the number of the queue pair whose request
        /// completed.
        const QUEUE_PAIR = raw::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// The completion of a received datagram contains the number of the sender's queue pair.
        const SOURCE_QUEUE_PAIR = raw::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// The completion of a datagram received over InfiniBand contains the LID of the sender.
        const SOURCE_LID = raw::IBV_WC_EX_WITH_SLID.0 as u64;
        /// The completion of a received datagram contains the service level of the datagram.
        const SERVICE_LEVEL = raw::IBV_WC_EX_WITH_SL.0 as u64;
        /// The completion of a datagram received over InfiniBand contains the low bits of the
        /// destination LID.
        const PATH_BITS = raw::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// Each completion of the queue contains the time of completion, in ticks of the device's
        /// clock.
        const TIMESTAMP = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// The completion of a received raw Ethernet packet contains the customer VLAN tag (C-VLAN)
        /// of the packet.
        const VLAN = raw::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// The completion of a received raw packet contains the tag of the flow rule that the
        /// packet matched.
        const FLOW_TAG = raw::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// The completion of a message that a tag-matching receive queue received contains the tag
        /// of the message.
        const TAG_MATCHING = raw::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// Each completion of the queue contains the time of completion as wall-clock time.
        const WALL_CLOCK = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

impl CompletionFields {
    /// All fields that a plain [`WorkCompletion`](super::WorkCompletion) has, such as the number of
    /// bytes.
    #[doc(alias = "IBV_WC_STANDARD_FLAGS")]
    pub const STANDARD: Self = Self::from_bits_truncate(IBV_WC_STANDARD_FLAGS as u64);
}

impl fmt::Display for CompletionFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
