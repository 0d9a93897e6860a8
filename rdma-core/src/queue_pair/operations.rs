//! What is asked for when a queue pair is made: operations of the posting functions `ibv_wr_*`, and
//! flags.

use ibverbs_sys::{ibv_qp_create_flags as create, ibv_qp_create_send_ops_flags as raw};

use super::Transport;
use crate::context::Context;
use crate::device::{DeviceCapabilities, ExtendedDeviceAttributes};
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// What a queue pair is to be able to post by the functions `ibv_wr_*`
    /// (`ibv_qp_create_send_ops_flags`).
    #[doc(alias = "ibv_qp_create_send_ops_flags")]
    #[doc(alias = "send_ops_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendOperations: u64 {
        /// RDMA writes.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE")]
        const WRITE = raw::IBV_QP_EX_WITH_RDMA_WRITE.0 as u64;
        /// RDMA writes with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM")]
        const WRITE_WITH_IMMEDIATE = raw::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0 as u64;
        /// Sends.
        #[doc(alias = "IBV_QP_EX_WITH_SEND")]
        const SEND = raw::IBV_QP_EX_WITH_SEND.0 as u64;
        /// Sends with immediate data.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_IMM")]
        const SEND_WITH_IMMEDIATE = raw::IBV_QP_EX_WITH_SEND_WITH_IMM.0 as u64;
        /// RDMA reads.
        #[doc(alias = "IBV_QP_EX_WITH_RDMA_READ")]
        const READ = raw::IBV_QP_EX_WITH_RDMA_READ.0 as u64;
        /// Atomic compare-and-swap.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP")]
        const COMPARE_AND_SWAP = raw::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0 as u64;
        /// Atomic fetch-and-add.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD")]
        const FETCH_AND_ADD = raw::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0 as u64;
        /// Invalidating a key of this end.
        #[doc(alias = "IBV_QP_EX_WITH_LOCAL_INV")]
        const INVALIDATE = raw::IBV_QP_EX_WITH_LOCAL_INV.0 as u64;
        /// Binding a memory window.
        #[doc(alias = "IBV_QP_EX_WITH_BIND_MW")]
        const BIND_WINDOW = raw::IBV_QP_EX_WITH_BIND_MW.0 as u64;
        /// Sends that invalidate a key of the peer.
        #[doc(alias = "IBV_QP_EX_WITH_SEND_WITH_INV")]
        const SEND_WITH_INVALIDATE = raw::IBV_QP_EX_WITH_SEND_WITH_INV.0 as u64;
        /// Sends of a large TCP segment in pieces, by the device.
        #[doc(alias = "IBV_QP_EX_WITH_TSO")]
        const SEGMENTATION = raw::IBV_QP_EX_WITH_TSO.0 as u64;
        /// Making the peer's memory persistent or visible.
        #[doc(alias = "IBV_QP_EX_WITH_FLUSH")]
        const FLUSH = 1 << 11;
        /// Writes of eight bytes at once.
        #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
        const ATOMIC_WRITE = raw::IBV_QP_EX_WITH_ATOMIC_WRITE.0 as u64;
        // What later headers add.
        const _ = !0;
    }
}

impl SendOperations {
    /// Checks that the device has what not every one does: the driver of Linux's Soft-RoCE lets
    /// queue pairs be made for what its kernel then does not know.
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
            // A device that does not know the question has none of the answers.
            if !context.extended_attributes().is_ok_and(has) {
                let device = context.name().to_owned();
                return Err(Error::Unsupported { what, device });
            }
        }
        Ok(())
    }

    /// What queue pairs of this kind have by the specification, without what came after its
    /// version 1.3 and few devices have: segmentation, flush and atomic write.
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
    /// What is special about a queue pair (`ibv_qp_create_flags`).
    #[doc(alias = "ibv_qp_create_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct QueuePairCreateFlags: u32 {
        /// What it sends to a multicast group does not come back to it.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        const BLOCK_MULTICAST_LOOPBACK = create::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;
        /// Frames come with their checksum.
        #[doc(alias = "IBV_QP_CREATE_SCATTER_FCS")]
        const FRAME_CHECKSUM = create::IBV_QP_CREATE_SCATTER_FCS.0;
        /// Frames come without their VLAN tag.
        #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
        const STRIP_VLAN = create::IBV_QP_CREATE_CVLAN_STRIPPING.0;
        /// Writes into memory are padded to whole cache lines.
        #[doc(alias = "IBV_QP_CREATE_PCI_WRITE_END_PADDING")]
        const PAD_WRITES = create::IBV_QP_CREATE_PCI_WRITE_END_PADDING.0;
        // What later headers add.
        const _ = !0;
    }
}
