//! InfiniBand, RoCE, iWARP and others told apart.

use std::fmt;

use ibverbs_sys::{ibv_node_type, ibv_transport_type};

use super::{GidType, LinkLayer};

/// Whose verbs a device speaks (`ibv_transport_type`). RoCE is InfiniBand's transport on Ethernet:
/// [`Protocol`] tells them apart.
#[doc(alias = "ibv_transport_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportType {
    /// InfiniBand's, also that of RoCE.
    InfiniBand,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC over UDP.
    UsnicUdp,
    /// One of the vendor's own, for example Amazon's EFA.
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

/// What a device is in its fabric (`ibv_node_type`).
#[doc(alias = "ibv_node_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: an end of InfiniBand or RoCE.
    ChannelAdapter,
    /// A switch of InfiniBand.
    Switch,
    /// A router of InfiniBand.
    Router,
    /// An RDMA-enabled NIC: an end of iWARP.
    Rnic,
    /// Cisco's usNIC.
    Usnic,
    /// Cisco's usNIC over UDP.
    UsnicUdp,
    /// One of the vendor's own.
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

/// What goes over the wire: of a port with one of its GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: InfiniBand's transport in Ethernet frames, within one subnet.
    RoceV1,
    /// RoCE v2: InfiniBand's transport in UDP.
    RoceV2,
    /// iWARP: RDMA over TCP.
    Iwarp,
    /// Another: the vendor's own, or one that this crate does not know.
    Other,
}

impl Protocol {
    /// What a device of this transport speaks on a link of this kind with a GID of this type;
    /// `None` stands for an address without a GID.
    pub fn of(transport: TransportType, link: LinkLayer, gid: Option<GidType>) -> Self {
        match (transport, link, gid) {
            (TransportType::Iwarp, ..) => Self::Iwarp,
            (TransportType::InfiniBand, LinkLayer::Ethernet, Some(GidType::RoceV2)) => Self::RoceV2,
            (TransportType::InfiniBand, LinkLayer::Ethernet, Some(GidType::RoceV1)) => Self::RoceV1,
            // A port that says nothing is one of InfiniBand (man page of ibv_query_port).
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
    fn protocols_are_told_apart() {
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
        // An RNIC's GID is its MAC address, and said to be one of InfiniBand.
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
    fn values_that_are_not_known_stay() {
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
