//! Capabilities for raw packets, for tag matching, and for distributing received packets over
//! queues.

use bitflags::bitflags;

bitflags! {
    /// The optional features that a device supports for raw packets (`ibv_raw_packet_caps`).
    #[doc(alias = "ibv_raw_packet_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RawPacketCapabilities: u32 {
        /// The device can remove the customer VLAN tag of received packets.
        const CVLAN_STRIPPING = 1;
        /// The device can deliver received packets together with their checksum, the frame check
        /// sequence.
        const SCATTER_FCS = 1 << 1;
        /// The device can compute and check IP checksums.
        const IP_CSUM = 1 << 2;
        /// The device can delay packets for which no receive is posted, instead of dropping them.
        const DELAY_DROP = 1 << 3;

        const _ = !0;
    }
}

bitflags! {
    /// The transports that support tag matching (`ibv_tm_cap_flags`).
    #[doc(alias = "ibv_tm_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct TagMatchingFlags: u32 {
        /// Tag matching is supported on reliable connections (RC).
        const RC = 1;

        const _ = !0;
    }
}

bitflags! {
    /// The hash functions with which a device can distribute received packets over queues
    /// (`ibv_rx_hash_function_flags`).
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFunctions: u8 {
        /// The device can compute the Toeplitz hash, by which it distributes received packets over
        /// queues.
        const TOEPLITZ = 1;

        const _ = !0;
    }
}

bitflags! {
    /// The packet fields from which a device can compute the hash for distributing received packets
    /// over queues (`ibv_rx_hash_fields`).
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HashFields: u64 {
        /// The device can include the IPv4 source address in the hash that distributes received
        /// packets over queues.
        const SRC_IPV4 = 1;
        /// The device can include the IPv4 destination address in the hash that distributes
        /// received packets over queues.
        const DST_IPV4 = 1 << 1;
        /// The device can include the IPv6 source address in the hash that distributes received
        /// packets over queues.
        const SRC_IPV6 = 1 << 2;
        /// The device can include the IPv6 destination address in the hash that distributes
        /// received packets over queues.
        const DST_IPV6 = 1 << 3;
        /// The device can include the TCP source port in the hash that distributes received packets
        /// over queues.
        const SRC_PORT_TCP = 1 << 4;
        /// The device can include the TCP destination port in the hash that distributes received
        /// packets over queues.
        const DST_PORT_TCP = 1 << 5;
        /// The device can include the UDP source port in the hash that distributes received packets
        /// over queues.
        const SRC_PORT_UDP = 1 << 6;
        /// The device can include the UDP destination port in the hash that distributes received
        /// packets over queues.
        const DST_PORT_UDP = 1 << 7;
        /// The device can include the security parameters index of IPsec in the hash that
        /// distributes received packets over queues.
        const IPSEC_SPI = 1 << 8;
        /// For tunneled packets, the device can compute the hash that distributes packets over
        /// queues from the inner headers instead of the outer headers.
        const INNER = 1 << 31;

        const _ = !0;
    }
}
