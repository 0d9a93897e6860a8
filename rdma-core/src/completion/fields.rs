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
        /// Flag that makes each completion of the queue contain the number of bytes that were
        /// transferred.
        const LEN = raw::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// Flag that makes the completion of a receive contain the immediate data of the message.
        /// If the message invalidated a memory window of this process, the completion contains the
        /// window's remote key instead.
        const IMMEDIATE = raw::IBV_WC_EX_WITH_IMM.0 as u64;
        /// Flag that makes each completion of the queue contain the number of the queue pair whose
        /// request completed.
        const QUEUE_PAIR = raw::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// Flag that makes the completion of a received datagram contain the number of the sender's
        /// queue pair.
        const SOURCE_QUEUE_PAIR = raw::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// Flag that makes the completion of a datagram received over InfiniBand contain the LID of
        /// the sender.
        const SOURCE_LID = raw::IBV_WC_EX_WITH_SLID.0 as u64;
        /// Flag that makes the completion of a received datagram contain the service level of the
        /// datagram.
        const SERVICE_LEVEL = raw::IBV_WC_EX_WITH_SL.0 as u64;
        /// Flag that makes the completion of a datagram received over InfiniBand contain the low
        /// bits of the destination LID.
        const PATH_BITS = raw::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// Flag that makes each completion of the queue contain the time of completion, in ticks of
        /// the device's clock.
        const TIMESTAMP = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// Flag that makes the completion of a received raw Ethernet packet contain the customer
        /// VLAN tag (C-VLAN) of the packet.
        const VLAN = raw::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// Flag that makes the completion of a received raw packet contain the tag of the flow rule
        /// that the packet matched.
        const FLOW_TAG = raw::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// Flag that makes the completions of a tag-matching receive queue contain the tag of the
        /// received message.
        const TAG_MATCHING = raw::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// Flag that makes each completion of the queue contain the time of completion as
        /// wall-clock time.
        const WALL_CLOCK = raw::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
    }
}

impl CompletionFields {
    /// The flags of all fields that a plain [`WorkCompletion`](super::WorkCompletion) has, such as
    /// the number of bytes.
    #[doc(alias = "IBV_WC_STANDARD_FLAGS")]
    pub const STANDARD: Self = Self::from_bits_truncate(IBV_WC_STANDARD_FLAGS as u64);
}

impl fmt::Display for CompletionFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
