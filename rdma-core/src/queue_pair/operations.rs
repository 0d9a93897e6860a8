//! Creation parameters of a queue pair: the operations that the queue pair can post by `ibv_wr_*`,
//! and the creation flags.

use ibverbs_sys::{ibv_qp_create_flags as create, ibv_qp_create_send_ops_flags as raw};

use super::Transport;
use crate::context::Context;
use crate::device::{DeviceCapabilities, ExtendedDeviceAttributes};
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// The set of operations that a queue pair can post by the functions `ibv_wr_*`
    /// (`ibv_qp_create_send_ops_flags`).
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[doc(alias = "send_ops_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendOperations: u64 {
        /// The queue pair can post RDMA writes.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE")]
        const WRITE = raw::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// The queue pair can post RDMA writes with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM")]
        const WRITE_WITH_IMMEDIATE = raw::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// The queue pair can post sends.
        #[doc(alias = "IBV_QP_EX_WITH_SEND")]
        const SEND = raw::IBV_QP_EX_WITH_SEND.0 as u64;
        /// The queue pair can post sends with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_IMM")]
        const SEND_WITH_IMMEDIATE = raw::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// The queue pair can post RDMA reads.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_READ")]
        const READ = raw::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// The queue pair can post atomic compare-and-swap operations.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP")]
        const COMPARE_AND_SWAP = raw::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// The queue pair can post atomic fetch-and-add operations.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD")]
        const FETCH_AND_ADD = raw::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// The queue pair can post local invalidations: requests that invalidate a remote key of
        /// this process.
        #[doc(alias = "IBV_QP_EX_WITH_LOCAL_INV")]
        const INVALIDATE = raw::IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
        /// The queue pair can post requests that bind memory windows.
        #[doc(alias = "IBV_QP_EX_WITH_BIND_MW")]
        const BIND_WINDOW = raw::IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// The queue pair can post sends that invalidate a key of the peer.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_INV")]
        const SEND_WITH_INVALIDATE = raw::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
        /// The queue pair can post segmented sends (TSO). The device splits the large TCP segment
        /// of such a send into packets.
        #[doc(alias = "IBV_QP_EX_WITH_TSO")]
        const SEGMENTATION = raw::IBV_QP_EX_WITH_TSO.0 as u64;
        /// The queue pair can post flushes, which make earlier writes to the peer's memory
        /// persistent or visible.
        #[doc(alias = "IBV_QP_EX_WITH_FLUSH")]
        const FLUSH = 1 << 11;
        /// The queue pair can post atomic writes of eight bytes.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
        const ATOMIC_WRITE = raw::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;
        // Permits bits that only later versions of the header define.
        const _ = !0;
    }
}

impl SendOperations {
    /// Returns an error if the set contains an operation that the device does not support. Only
    /// atomic writes and flushes are checked. The check is needed because the Soft-RoCE driver of
    /// Linux also creates queue pairs for operations that its kernel module does not support.
    pub(super) fn check_capabilities(self, context: &Context) -> Result<()> {
        let flushes = DeviceCapabilities::FLUSH_GLOBAL | DeviceCapabilities::FLUSH_PERSISTENT;
        let rare = [
            (
                Self::ATOMIC_WRITE,
                DeviceCapabilities::ATOMIC_WRITE,
                "atomic writes",
            ),
            (Self::FLUSH, flushes, "flushes"),
        ];
        for (operation, capability, what) in rare {
            if !self.intersects(operation) {
                continue;
            }
            let has = |attributes: ExtendedDeviceAttributes| {
                attributes.capabilities().intersects(capability)
            };
            // If a device does not support the extended query, it supports none of these
            // operations.
            if !context.extended_attributes().is_ok_and(has) {
                let device = context.name().to_owned();
                return Err(Error::Unsupported { what, device });
            }
        }
        Ok(())
    }

    /// Returns the set of operations that the specification defines for queue pairs of type
    /// `transport`. The set excludes segmentation, flush and atomic write: version 1.3 of the
    /// specification does not define them, and few devices support them.
    pub fn of(transport: Transport) -> Self {
        let sends = Self::SEND | Self::SEND_WITH_IMMEDIATE;
        let writes = Self::WRITE | Self::WRITE_WITH_IMMEDIATE;
        let windows = Self::BIND_WINDOW | Self::SEND_WITH_INVALIDATE;
        match transport {
            Transport::ReliableConnected | Transport::XrcInitiator => {
                let atomics = Self::COMPARE_AND_SWAP | Self::FETCH_AND_ADD;
                sends | writes | windows | atomics | Self::READ | Self::INVALIDATE
            }
            Transport::UnreliableConnected => sends | writes | windows,
            Transport::Datagram => sends,
            Transport::RawPacket => Self::SEND,
            _ => Self::empty(),
        }
    }
}

bitflags::bitflags! {
    /// Flags for optional properties of a new queue pair (`ibv_qp_create_flags`).
    #[doc(alias = "ibv_qp_create_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct QueuePairCreateFlags: u32 {
        /// The queue pair does not receive the multicast packets that it sends itself.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        const BLOCK_MULTICAST_LOOPBACK = create::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;
        /// Received Ethernet frames include their frame check sequence.
        #[doc(alias = "IBV_QP_CREATE_SCATTER_FCS")]
        const FRAME_CHECKSUM = create::IBV_QP_CREATE_SCATTER_FCS.0;
        /// The device removes the VLAN tag from received frames.
        #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
        const STRIP_VLAN = create::IBV_QP_CREATE_CVLAN_STRIPPING.0;
        /// The device pads its writes to memory to whole cache lines.
        #[doc(alias = "IBV_QP_CREATE_PCI_WRITE_END_PADDING")]
        const PAD_WRITES = create::IBV_QP_CREATE_PCI_WRITE_END_PADDING.0;
        // Permits bits that only later versions of the header define.
        const _ = !0;
    }
}
