//! Capabilities of ports.

use bitflags::bitflags;

bitflags! {
    /// The optional capabilities of a port (`ibv_port_cap_flags`; IBTA 14.2.5.6, `CapabilityMask`).
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortCapabilities: u32 {
        /// The port hosts a subnet manager.
        const SM = 1 << 1;
        /// The port supports notices: management messages that report events.
        const NOTICE_SUP = 1 << 2;
        /// The port can report events to the subnet manager by management messages (traps).
        const TRAP_SUP = 1 << 3;
        /// The port supports the optional inter-packet delays: pauses between packets that limit
        /// the rate.
        const OPT_IPD_SUP = 1 << 4;
        /// The port supports automatic path migration: a connection moves to an alternate path
        /// after a failure.
        const AUTO_MIGR_SUP = 1 << 5;
        /// The port supports a table that maps service levels to virtual lanes.
        const SL_MAP_SUP = 1 << 6;
        /// The port stores its M_Key (management key) in nonvolatile memory.
        const MKEY_NVRAM = 1 << 7;
        /// The port stores its P_Keys (partition keys) in nonvolatile memory.
        const PKEY_NVRAM = 1 << 8;
        /// The port supports the management attribute `LedInfo`, which describes the LED of the
        /// port.
        const LED_INFO_SUP = 1 << 9;
        /// The port reports a system image GUID, which identifies the system that contains the
        /// device.
        const SYS_IMAGE_GUID_SUP = 1 << 11;
        /// The switch can report a wrong partition key at an external port by a management message
        /// (trap).
        const PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12;
        /// The port supports link speeds of FDR (14 Gbit/s per lane) and above.
        const EXTENDED_SPEEDS_SUP = 1 << 14;
        /// The port has a second capability mask: [`PortCapabilities2`].
        const CAP_MASK2_SUP = 1 << 15;
        /// The port has a communication manager, which establishes connections.
        const CM_SUP = 1 << 16;
        /// The port supports SNMP messages inside management packets ("SNMP tunneling").
        const SNMP_TUNNEL_SUP = 1 << 17;
        /// The port can be reinitialised.
        const REINIT_SUP = 1 << 18;
        /// The port supports the management class for I/O devices ("device management").
        const DEVICE_MGMT_SUP = 1 << 19;
        /// The port supports management packets of a vendor-specific class.
        const VENDOR_CLASS_SUP = 1 << 20;
        /// The port supports management messages about events (notices) that contain the path on
        /// which they travel ("directed route").
        const DR_NOTICE_SUP = 1 << 21;
        /// The port can report changes of this capability mask by a management notice.
        const CAP_MASK_NOTICE_SUP = 1 << 22;
        /// The port supports the management packets that control booting over the network ("boot
        /// management").
        const BOOT_MGMT_SUP = 1 << 23;
        /// The port can measure the latency of its link.
        const LINK_LATENCY_SUP = 1 << 24;
        /// The subnet manager can request that the clients of the port register again with the
        /// subnet manager.
        const CLIENT_REG_SUP = 1 << 25;
        /// The GIDs of the port are IP addresses.
        const IP_BASED_GIDS = 1 << 26;

        const _ = !0;
    }
}

bitflags! {
    /// Further capabilities of a port, in addition to [`PortCapabilities`] (`ibv_port_cap_flags2`;
    /// IBTA 14.2.5.6, `CapabilityMask2`).
    #[doc(alias = "ibv_port_cap_flags2")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortCapabilities2: u16 {
        /// The node description of the device can be set.
        const SET_NODE_DESC_SUP = 1;
        /// The port supports the management attribute `PortInfoExtended`, which describes further
        /// properties of the port.
        const INFO_EXT_SUP = 1 << 1;
        /// The port supports virtual ports, by which several virtual machines can share one
        /// physical port.
        const VIRT_SUP = 1 << 2;
        /// The switch provides a table of the states of its ports.
        const SWITCH_PORT_STATE_TABLE_SUP = 1 << 3;
        /// The port supports links with two lanes.
        const LINK_WIDTH_2X_SUP = 1 << 4;
        /// The port supports HDR (high data rate): 50 Gbit/s per lane.
        const LINK_SPEED_HDR_SUP = 1 << 5;
        /// The port supports NDR (next data rate): 100 Gbit/s per lane.
        const LINK_SPEED_NDR_SUP = 1 << 10;
        /// The port supports XDR (extreme data rate): 200 Gbit/s per lane.
        const LINK_SPEED_XDR_SUP = 1 << 12;

        const _ = !0;
    }
}

bitflags! {
    /// The port's requirements on the headers of packets (`ib_uverbs_query_port_flags`).
    #[doc(alias = "ib_uverbs_query_port_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PortFlags: u8 {
        /// Every packet to or from the port needs a global route header. Always set on RoCE.
        const GRH_REQUIRED = 1;

        const _ = !0;
    }
}
