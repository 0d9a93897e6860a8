//! The fields of the completions of an extended queue.

use std::fmt;

use ibverbs_sys::{IBV_WC_STANDARD_FLAGS, ibv_create_cq_wc_flags as raw};

bitflags::bitflags! {
    /// The fields that completions of an extended queue have in addition to id, status and opcode
    /// (`ibv_create_cq_wc_flags`).
    ///
    /// Creating a queue with a field that the device does not support fails. Therefore the program
    /// can read every field with which a queue was created.
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// Selects the number of bytes that were transferred.
        const LEN = raw::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// Selects the immediate data of a received message, or the local key that the message
        /// invalidated.
        const IMMEDIATE = raw::IBV_WC_EX_WITH_IMM.0 as u64;
        /// Selects the number of the queue pair whose request completed.
        const QUEUE_PAIR = raw::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// Selects the number of the sender's queue pair, for a datagram.
        const SOURCE_QUEUE_PAIR = raw::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// Selects the LID of the sender, for a datagram on InfiniBand.
        const SOURCE_LID = raw::IBV_WC_EX_WITH_SLID.0 as u64;
        /// Selects the service level of a datagram.
        const SERVICE_LEVEL = raw::IBV_WC_EX_WITH_SL.0 as u64;
        /// Selects the low bits of the destination LID, for a datagram on InfiniBand.
        const PATH_BITS = raw::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// Selects the time of completion in ticks of the device's clock.
        const TIMESTAMP = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// Selects the customer VLAN tag (C-VLAN) of a received raw Ethernet packet.
        const VLAN = raw::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// Selects the tag that the matching flow rule adds to a received raw packet.
        const FLOW_TAG = raw::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// Selects the tag of a message that a tag-matching receive queue received.
        const TAG_MATCHING = raw::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// Selects the time of completion as wall-clock time.
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
