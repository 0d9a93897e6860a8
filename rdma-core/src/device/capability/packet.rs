//! Raw packets, tags, and packets spread over queues.

use bitflags::bitflags;

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
