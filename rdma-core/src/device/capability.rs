//! What a device says it can do, bit by bit.
//!
//! Bits that this crate does not name stay set: `bits()` is what the device said.

use bitflags::bitflags;

bitflags! {
    /// What a device can do beyond what every one can (`ibv_device_cap_flags`).
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCapabilities: u64 {
        /// A queue pair's capacities can be changed.
        const RESIZE_MAX_WR = 1;
        /// Its ports count wrong P_Keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Its ports count wrong Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packets can go to groups.
        const RAW_MULTI = 1 << 3;
        /// Connections can move to another path by themselves.
        const AUTO_PATH_MIG = 1 << 4;
        /// A queue pair can move to another port.
        const CHANGE_PHY_PORT = 1 << 5;
        /// A datagram's address handle must be of the queue pair's port.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A change of a queue pair's state can say the state that it is in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down.
        const SHUTDOWN_PORT = 1 << 8;
        /// A port's initialisation can be chosen.
        const INIT_TYPE = 1 << 9;
        /// It tells when a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// It has a GUID for the whole system.
        const SYS_IMAGE_GUID = 1 << 11;
        /// A receiver without receives says so to a reliable sender.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A completion queue can announce after so many completions.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Checksums of IP over UD queue pairs.
        const UD_IP_CSUM = 1 << 18;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// Send with invalidate, local invalidate and fast registration.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B, which belong to one queue pair.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Checksums of IP over RC queue pairs.
        const RC_IP_CSUM = 1 << 25;
        /// Checksums of IP in raw packets.
        const RAW_IP_CSUM = 1 << 26;
        /// Flows of packets can be steered to queue pairs.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Raw packets can be received with their frame check sequence.
        const RAW_SCATTER_FCS = 1 << 34;
        /// Writes over PCI can be padded to full cache lines.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// A flush can make data visible to everybody.
        const FLUSH_GLOBAL = 1 << 38;
        /// A flush can make data survive a loss of power.
        const FLUSH_PERSISTENT = 1 << 39;
        /// RDMA writes of 8 bytes that are atomic.
        const ATOMIC_WRITE = 1 << 40;
        /// In a confidential guest its traffic goes through buffers of the host.
        const CC_DMA_BOUNCE = 1 << 41;

        const _ = !0;
    }
}

bitflags! {
    /// What a device can do with memory that is not pinned (`ibv_odp_general_caps`).
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandPaging: u64 {
        /// It has on-demand paging.
        const SUPPORT = 1;
        /// A region can be the whole address space.
        const IMPLICIT = 1 << 1;

        const _ = !0;
    }
}

bitflags! {
    /// What a transport can do with memory that is not pinned (`ibv_odp_transport_cap_bits`).
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandOperations: u32 {
        /// Send from it.
        const SEND = 1;
        /// Receive into it.
        const RECV = 1 << 1;
        /// RDMA write.
        const WRITE = 1 << 2;
        /// RDMA read.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Receive into it from a shared receive queue.
        const SRQ = 1 << 5;
        /// Flush.
        const FLUSH = 1 << 6;
        /// Atomic write.
        const ATOMIC_WRITE = 1 << 7;

        const _ = !0;
    }
}

bitflags! {
    /// A set of kinds of queue pairs, as capabilities tell it: bit `n` is `ibv_qp_type` `n`.
    #[doc(alias = "supported_qpts")]
    #[doc(alias = "ibv_is_qpt_supported")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QueuePairKinds: u32 {
        /// Reliable connection.
        const RC = 1 << 2;
        /// Unreliable connection.
        const UC = 1 << 3;
        /// Unreliable datagram.
        const UD = 1 << 4;
        /// Raw Ethernet packets.
        const RAW_PACKET = 1 << 8;
        /// The initiator of an extended reliable connection.
        const XRC_SEND = 1 << 9;
        /// The target of an extended reliable connection.
        const XRC_RECV = 1 << 10;

        const _ = !0;
    }
}

bitflags! {
    /// What a device can do with raw packets (`ibv_raw_packet_caps`).
    #[doc(alias = "ibv_raw_packet_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RawPacketCapabilities: u32 {
        /// Takes the customer's VLAN tag off what it receives.
        const CVLAN_STRIPPING = 1;
        /// Gives the frame check sequence with what it receives.
        const SCATTER_FCS = 1 << 1;
        /// Computes and checks checksums of IP.
        const IP_CSUM = 1 << 2;
        /// Lets a packet wait for a receive for a while.
        const DELAY_DROP = 1 << 3;

        const _ = !0;
    }
}

bitflags! {
    /// What a device's tag matching works with (`ibv_tm_cap_flags`).
    #[doc(alias = "ibv_tm_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct TagMatchingFlags: u32 {
        /// Reliable connections.
        const RC = 1;

        const _ = !0;
    }
}

bitflags! {
    /// By which functions a device can spread packets (`ibv_rx_hash_function_flags`).
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFunctions: u8 {
        /// Toeplitz.
        const TOEPLITZ = 1;

        const _ = !0;
    }
}

bitflags! {
    /// By which of a packet's fields a device can spread packets (`ibv_rx_hash_fields`).
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFields: u64 {
        /// IPv4 source address.
        const SRC_IPV4 = 1;
        /// IPv4 destination address.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source address.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination address.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
        /// The security parameters index of IPsec.
        const IPSEC_SPI = 1 << 8;
        /// The packet inside of a tunnel.
        const INNER = 1 << 31;

        const _ = !0;
    }
}

bitflags! {
    /// Sizes of atomics over PCI (`ibv_pci_atomic_op_size`).
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AtomicSizes: u16 {
        /// 4 bytes.
        const BYTES_4 = 1;
        /// 8 bytes.
        const BYTES_8 = 1 << 1;
        /// 16 bytes.
        const BYTES_16 = 1 << 2;

        const _ = !0;
    }
}

bitflags! {
    /// What a port can do (`ibv_port_cap_flags`; IBTA 14.2.5.6, `CapabilityMask`).
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortCapabilities: u32 {
        /// A subnet manager is behind it.
        const SM = 1 << 1;
        /// Notices.
        const NOTICE_SUP = 1 << 2;
        /// Traps.
        const TRAP_SUP = 1 << 3;
        /// Optional inter-packet delays.
        const OPT_IPD_SUP = 1 << 4;
        /// Automatic migration of paths.
        const AUTO_MIGR_SUP = 1 << 5;
        /// Service levels mapped to virtual lanes.
        const SL_MAP_SUP = 1 << 6;
        /// The M_Key survives a loss of power.
        const MKEY_NVRAM = 1 << 7;
        /// The P_Keys survive a loss of power.
        const PKEY_NVRAM = 1 << 8;
        /// Tells of its LEDs.
        const LED_INFO_SUP = 1 << 9;
        /// A GUID for the whole system.
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// Traps of a switch's external ports about P_Keys.
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// Speeds of FDR and above.
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// There is a second mask: [`PortCapabilities2`].
        const CAP_MASK2_SUP = 1 << 15;
        /// A communication manager.
        const CM_SUP = 1 << 16;
        /// SNMP through a tunnel.
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// Can be initialised anew.
        const REINIT_SUP = 1 << 18;
        /// Device management.
        const DEVICE_MGMT_SUP = 1 << 19;
        /// A class of the vendor's.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// Notices about its node's own fabric.
        const DR_NOTICE_SUP = 1 << 21;
        /// Notices when this mask changes.
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// Management of booting.
        const BOOT_MGMT_SUP = 1 << 23;
        /// Measures its link's latency.
        const LINK_LATENCY_SUP = 1 << 24;
        /// Clients can be asked to register again.
        const CLIENT_REG_SUP = 1 << 25;
        /// Its GIDs are IP addresses.
        const IP_BASED_GIDS = 1 << 26;

        const _ = !0;
    }
}

bitflags! {
    /// What else a port can do (`ibv_port_cap_flags2`; IBTA 14.2.5.6, `CapabilityMask2`).
    #[doc(alias = "ibv_port_cap_flags2")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortCapabilities2: u16 {
        /// The node's description can be set.
        const SET_NODE_DESC_SUP = 1;
        /// Extended information of the port.
        const INFO_EXT_SUP = 1 << 1;
        /// Virtual ports.
        const VIRT_SUP = 1 << 2;
        /// A table of the states of a switch's ports.
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// Links of two lanes.
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// HDR: 50 Gbit/s a lane.
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// NDR: 100 Gbit/s a lane.
        const LINK_SPEED_NDR_SUP = 1 << 10;
        /// XDR: 200 Gbit/s a lane.
        const LINK_SPEED_XDR_SUP = 1 << 12;

        const _ = !0;
    }
}

bitflags! {
    /// What a port asks of its users (`ib_uverbs_query_port_flags`).
    #[doc(alias = "ib_uverbs_query_port_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortFlags: u8 {
        /// Every address needs a global route: always so on RoCE.
        const GRH_REQUIRED = 1;

        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use ibverbs_sys as sys;

    use super::*;

    #[test]
    fn flags_have_the_headers_values() {
        use sys::ibv_device_cap_flags as device;
        let flags = [
            (
                DeviceCapabilities::RESIZE_MAX_WR,
                device::IBV_DEVICE_RESIZE_MAX_WR,
            ),
            (
                DeviceCapabilities::BAD_PKEY_CNTR,
                device::IBV_DEVICE_BAD_PKEY_CNTR,
            ),
            (
                DeviceCapabilities::BAD_QKEY_CNTR,
                device::IBV_DEVICE_BAD_QKEY_CNTR,
            ),
            (DeviceCapabilities::RAW_MULTI, device::IBV_DEVICE_RAW_MULTI),
            (
                DeviceCapabilities::AUTO_PATH_MIG,
                device::IBV_DEVICE_AUTO_PATH_MIG,
            ),
            (
                DeviceCapabilities::CHANGE_PHY_PORT,
                device::IBV_DEVICE_CHANGE_PHY_PORT,
            ),
            (
                DeviceCapabilities::UD_AV_PORT_ENFORCE,
                device::IBV_DEVICE_UD_AV_PORT_ENFORCE,
            ),
            (
                DeviceCapabilities::CURR_QP_STATE_MOD,
                device::IBV_DEVICE_CURR_QP_STATE_MOD,
            ),
            (
                DeviceCapabilities::SHUTDOWN_PORT,
                device::IBV_DEVICE_SHUTDOWN_PORT,
            ),
            (DeviceCapabilities::INIT_TYPE, device::IBV_DEVICE_INIT_TYPE),
            (
                DeviceCapabilities::PORT_ACTIVE_EVENT,
                device::IBV_DEVICE_PORT_ACTIVE_EVENT,
            ),
            (
                DeviceCapabilities::SYS_IMAGE_GUID,
                device::IBV_DEVICE_SYS_IMAGE_GUID,
            ),
            (
                DeviceCapabilities::RC_RNR_NAK_GEN,
                device::IBV_DEVICE_RC_RNR_NAK_GEN,
            ),
            (
                DeviceCapabilities::SRQ_RESIZE,
                device::IBV_DEVICE_SRQ_RESIZE,
            ),
            (
                DeviceCapabilities::N_NOTIFY_CQ,
                device::IBV_DEVICE_N_NOTIFY_CQ,
            ),
            (
                DeviceCapabilities::MEM_WINDOW,
                device::IBV_DEVICE_MEM_WINDOW,
            ),
            (
                DeviceCapabilities::UD_IP_CSUM,
                device::IBV_DEVICE_UD_IP_CSUM,
            ),
            (DeviceCapabilities::XRC, device::IBV_DEVICE_XRC),
            (
                DeviceCapabilities::MEM_MGT_EXTENSIONS,
                device::IBV_DEVICE_MEM_MGT_EXTENSIONS,
            ),
            (
                DeviceCapabilities::MEM_WINDOW_TYPE_2A,
                device::IBV_DEVICE_MEM_WINDOW_TYPE_2A,
            ),
            (
                DeviceCapabilities::MEM_WINDOW_TYPE_2B,
                device::IBV_DEVICE_MEM_WINDOW_TYPE_2B,
            ),
            (
                DeviceCapabilities::RC_IP_CSUM,
                device::IBV_DEVICE_RC_IP_CSUM,
            ),
            (
                DeviceCapabilities::RAW_IP_CSUM,
                device::IBV_DEVICE_RAW_IP_CSUM,
            ),
            (
                DeviceCapabilities::MANAGED_FLOW_STEERING,
                device::IBV_DEVICE_MANAGED_FLOW_STEERING,
            ),
        ];
        for (ours, theirs) in flags {
            assert_eq!(ours.bits(), u64::from(theirs.0), "{ours:?}");
        }
        assert_eq!(
            DeviceCapabilities::RAW_SCATTER_FCS.bits(),
            sys::IBV_DEVICE_RAW_SCATTER_FCS
        );
        assert_eq!(
            DeviceCapabilities::PCI_WRITE_END_PADDING.bits(),
            sys::IBV_DEVICE_PCI_WRITE_END_PADDING
        );
    }

    #[test]
    fn smaller_sets_have_the_headers_values() {
        use sys::ibv_odp_transport_cap_bits as odp;
        assert_eq!(OnDemandOperations::SEND.bits(), odp::IBV_ODP_SUPPORT_SEND.0);
        assert_eq!(
            OnDemandOperations::SRQ.bits(),
            odp::IBV_ODP_SUPPORT_SRQ_RECV.0
        );
        assert_eq!(
            OnDemandOperations::ATOMIC.bits(),
            odp::IBV_ODP_SUPPORT_ATOMIC.0
        );
        use sys::ibv_qp_type as qpt;
        for (ours, theirs) in [
            (QueuePairKinds::RC, qpt::IBV_QPT_RC),
            (QueuePairKinds::UC, qpt::IBV_QPT_UC),
            (QueuePairKinds::UD, qpt::IBV_QPT_UD),
            (QueuePairKinds::RAW_PACKET, qpt::IBV_QPT_RAW_PACKET),
            (QueuePairKinds::XRC_SEND, qpt::IBV_QPT_XRC_SEND),
            (QueuePairKinds::XRC_RECV, qpt::IBV_QPT_XRC_RECV),
        ] {
            assert_eq!(ours.bits(), 1 << theirs.0, "{ours:?}");
        }
        use sys::ibv_raw_packet_caps as raw;
        assert_eq!(
            RawPacketCapabilities::DELAY_DROP.bits(),
            raw::IBV_RAW_PACKET_CAP_DELAY_DROP.0
        );
        assert_eq!(
            HashFields::INNER.bits(),
            u64::from(sys::ibv_rx_hash_fields::IBV_RX_HASH_INNER.0)
        );
        assert_eq!(
            u32::from(AtomicSizes::BYTES_16.bits()),
            sys::ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP.0
        );
        assert_eq!(
            PortCapabilities::IP_BASED_GIDS.bits(),
            sys::ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0
        );
        assert_eq!(
            PortCapabilities::LED_INFO_SUP.bits(),
            sys::ibv_port_cap_flags::IBV_PORT_LED_INFO_SUP.0
        );
        assert_eq!(
            u32::from(PortCapabilities2::LINK_SPEED_NDR_SUP.bits()),
            sys::ibv_port_cap_flags2::IBV_PORT_LINK_SPEED_NDR_SUP.0
        );
    }

    #[test]
    fn bits_without_a_name_stay() {
        let flags = DeviceCapabilities::from_bits_retain(1 << 63 | 1);
        assert_eq!(flags.bits(), 1 << 63 | 1);
        assert!(flags.contains(DeviceCapabilities::RESIZE_MAX_WR));
    }
}
