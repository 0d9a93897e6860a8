//! What ports can do.

use bitflags::bitflags;

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
