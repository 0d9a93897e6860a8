//! Transports, node types and wire protocols of devices.

use std::fmt;

use ibverbs_sys::{ibv_node_type, ibv_transport_type};

use super::{GidType, LinkLayer};

/// The transport protocol that a device implements (`ibv_transport_type`). RoCE also uses the
/// InfiniBand transport; [`Protocol`] distinguishes RoCE from InfiniBand.
#[doc(alias = "ibv_transport_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportType {
    /// The InfiniBand transport, also used by RoCE.
    InfiniBand,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC over UDP.
    UsnicUdp,
    /// A vendor-specific transport, for example of Amazon's EFA.
    Unspecified,
    /// A value that this crate does not know.
    Unknown(i32),
}

impl TransportType {
    pub(crate) fn from_raw(value: ibv_transport_type) -> Self {
        match value {
            ibv_transport_type::IBV_TRANSPORT_IB => Self::InfiniBand,
            ibv_transport_type::IBV_TRANSPORT_IWARP => Self::Iwarp,
            ibv_transport_type::IBV_TRANSPORT_USNIC => Self::Usnic,
            ibv_transport_type::IBV_TRANSPORT_USNIC_UDP => Self::UsnicUdp,
            ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED => Self::Unspecified,
            ibv_transport_type(other) => Self::Unknown(other),
        }
    }

    pub(crate) fn to_raw(self) -> ibv_transport_type {
        match self {
            Self::InfiniBand => ibv_transport_type::IBV_TRANSPORT_IB,
            Self::Iwarp => ibv_transport_type::IBV_TRANSPORT_IWARP,
            Self::Usnic => ibv_transport_type::IBV_TRANSPORT_USNIC,
            Self::UsnicUdp => ibv_transport_type::IBV_TRANSPORT_USNIC_UDP,
            Self::Unspecified => ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED,
            Self::Unknown(other) => ibv_transport_type(other),
        }
    }
}

impl fmt::Display for TransportType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Iwarp => "iWARP",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
            Self::Unknown(value) => return write!(f, "transport {value}"),
        })
    }
}

/// The role that a device has in its network (`ibv_node_type`).
#[doc(alias = "ibv_node_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: an end node of InfiniBand or RoCE.
    ChannelAdapter,
    /// An InfiniBand switch.
    Switch,
    /// An InfiniBand router.
    Router,
    /// An RDMA-enabled NIC (RNIC): an end node of iWARP.
    Rnic,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC over UDP.
    UsnicUdp,
    /// A vendor-specific type.
    Unspecified,
    /// A value that this crate does not know.
    Unknown(i32),
}

impl NodeType {
    pub(crate) fn from_raw(value: ibv_node_type) -> Self {
        match value {
            ibv_node_type::IBV_NODE_CA => Self::ChannelAdapter,
            ibv_node_type::IBV_NODE_SWITCH => Self::Switch,
            ibv_node_type::IBV_NODE_ROUTER => Self::Router,
            ibv_node_type::IBV_NODE_RNIC => Self::Rnic,
            ibv_node_type::IBV_NODE_USNIC => Self::Usnic,
            ibv_node_type::IBV_NODE_USNIC_UDP => Self::UsnicUdp,
            ibv_node_type::IBV_NODE_UNSPECIFIED => Self::Unspecified,
            ibv_node_type(other) => Self::Unknown(other),
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "channel adapter",
            Self::Switch => "switch",
            Self::Router => "router",
            Self::Rnic => "RNIC",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
            Self::Unknown(value) => return write!(f, "node type {value}"),
        })
    }
}

/// The wire protocol of packets: InfiniBand, RoCE or iWARP. The device, the port and the source GID
/// determine the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: the InfiniBand transport in Ethernet frames, within one subnet.
    RoceV1,
    /// RoCE v2: the InfiniBand transport in UDP.
    RoceV2,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// A vendor-specific protocol, or a protocol that this crate does not know.
    Other,
}

impl Protocol {
    /// Returns the wire protocol that a device with this transport uses on a port with this link
    /// layer. `gid` is the type of the source GID, or `None` for an address without a GID.
    pub fn of(transport: TransportType, link: LinkLayer, gid: Option<GidType>) -> Self {
        match (transport, link, gid) {
            (TransportType::Iwarp, ..) => Self::Iwarp,
            (TransportType::InfiniBand, LinkLayer::Ethernet, Some(GidType::RoceV2)) => Self::RoceV2,
            (TransportType::InfiniBand, LinkLayer::Ethernet, Some(GidType::RoceV1)) => Self::RoceV1,
            // An unspecified link layer means InfiniBand (man page of `ibv_query_port`).
            (TransportType::InfiniBand, LinkLayer::InfiniBand | LinkLayer::Unspecified, _) => {
                Self::InfiniBand
            }
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Iwarp => "iWARP",
            Self::Other => "another protocol",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_distinguished() {
        let of = Protocol::of;
        let (infiniband, iwarp) = (TransportType::InfiniBand, TransportType::Iwarp);
        let ethernet = LinkLayer::Ethernet;
        assert_eq!(
            of(infiniband, ethernet, Some(GidType::RoceV2)),
            Protocol::RoceV2
        );
        assert_eq!(
            of(infiniband, ethernet, Some(GidType::RoceV1)),
            Protocol::RoceV1
        );
        assert_eq!(
            of(infiniband, LinkLayer::InfiniBand, None),
            Protocol::InfiniBand
        );
        assert_eq!(
            of(
                infiniband,
                LinkLayer::Unspecified,
                Some(GidType::InfiniBand)
            ),
            Protocol::InfiniBand
        );
        // The GID of an iWARP NIC (RNIC) is its MAC address, and the device reports it with the
        // type InfiniBand.
        assert_eq!(
            of(iwarp, ethernet, Some(GidType::InfiniBand)),
            Protocol::Iwarp
        );
        assert_eq!(of(infiniband, ethernet, None), Protocol::Other);
        assert_eq!(
            of(TransportType::Unspecified, ethernet, None),
            Protocol::Other
        );
    }

    #[test]
    fn unknown_values_stay() {
        let transport = TransportType::from_raw(ibv_transport_type(77));
        assert_eq!(
            (transport, transport.to_string()),
            (TransportType::Unknown(77), "transport 77".into())
        );
        assert_eq!(
            NodeType::from_raw(ibv_node_type(1)),
            NodeType::ChannelAdapter
        );
        assert_eq!(NodeType::from_raw(ibv_node_type(-1)), NodeType::Unknown(-1));
    }
}
