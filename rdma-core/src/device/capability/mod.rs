//! Capability masks of devices and ports.
//!
//! The types keep bits for which this crate has no name. `bits()` returns the mask exactly as the
//! device reported it.

mod device;
mod packet;
mod paging;
mod port;

pub use device::{AtomicSizes, DeviceCapabilities, QueuePairKinds};
pub use packet::{HashFields, HashFunctions, RawPacketCapabilities, TagMatchingFlags};
pub use paging::{OnDemandOperations, OnDemandPaging};
pub use port::{PortCapabilities, PortCapabilities2, PortFlags};

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
