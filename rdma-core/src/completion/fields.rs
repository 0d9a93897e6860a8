//! What the completions of an extended queue tell.

use std::fmt;

use ibverbs_sys::{IBV_WC_STANDARD_FLAGS, ibv_create_cq_wc_flags as raw};

bitflags::bitflags! {
    /// What the completions of an extended queue tell beside their id, status and opcode
    /// (`ibv_create_cq_wc_flags`).
    ///
    /// A device refuses the creation of a queue with a field that it does not have, so what was
    /// asked for can be read.
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CompletionFields: u64 {
        /// How many bytes came.
        const LEN = raw::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// Immediate data, and the key that a peer's send invalidated.
        const IMMEDIATE = raw::IBV_WC_EX_WITH_IMM.0 as u64;
        /// The number of the queue pair.
        const QUEUE_PAIR = raw::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// Of a datagram, the number of the sender's queue pair.
        const SOURCE_QUEUE_PAIR = raw::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// Of a datagram on InfiniBand, the sender's LID.
        const SOURCE_LID = raw::IBV_WC_EX_WITH_SLID.0 as u64;
        /// Of a datagram, the service level.
        const SERVICE_LEVEL = raw::IBV_WC_EX_WITH_SL.0 as u64;
        /// Of a datagram on InfiniBand, which of this port's LIDs it was sent to.
        const PATH_BITS = raw::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// When it completed, in ticks of the device's clock.
        const TIMESTAMP = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// The VLAN that a raw packet came from.
        const VLAN = raw::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// The tag of the flow rule that matched a raw packet.
        const FLOW_TAG = raw::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// The tag of a message that a tag-matching receive queue took.
        const TAG_MATCHING = raw::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// When it completed, as the time of day.
        const WALL_CLOCK = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

impl CompletionFields {
    /// What every plain [`WorkCompletion`](super::WorkCompletion) tells.
    #[doc(alias = "IBV_WC_STANDARD_FLAGS")]
    pub const STANDARD: Self = Self::from_bits_truncate(IBV_WC_STANDARD_FLAGS as u64);
}

impl fmt::Display for CompletionFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
