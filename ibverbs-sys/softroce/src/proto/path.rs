use std::net::Ipv6Addr;

use super::Attributes;
use crate::number;

/// Path of packets to a peer: the local GID, the GID of the peer, and further fields of the network
/// header, as in an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Index of the local GID from which packets are sent.
    pub source: u8,
    /// GID of the peer. An IPv4-mapped GID stands for an IPv4 address.
    pub destination: Ipv6Addr,
    /// Traffic class of the GRH, or TOS of IPv4.
    pub traffic_class: u8,
    /// Hop limit of the GRH, or time to live of IPv4.
    pub hop_limit: u8,
    /// Flow label (20 bits).
    pub flow_label: u32,
}

/// Network addresses and network header of a received packet. The network layer passes them to the
/// transport together with the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the local GID at which the packet arrived.
    pub local: u8,
    /// GID of the sender, IPv4-mapped for an IPv4 address.
    pub source: Ipv6Addr,
    /// Destination GID of the packet: a local GID, or the GID of a multicast group.
    pub destination: Ipv6Addr,
    /// GRH, which is stored in the first 40 bytes of a datagram's receive: the IPv6 header, or 20
    /// unspecified bytes and the IPv4 header (IBTA annex A17.4.5.1).
    pub route: [u8; 40],
    /// The eight high bits that all queue pair numbers of the sending NIC share (its slot). The UDP
    /// source port of the packet determines them. `None` if the sender is on another host or is not
    /// a softroce device. Such a sender may use any queue pair number.
    pub slot: Option<u8>,
    /// Set if the packet came through memory that is shared with the owner of the sender's address.
    /// No other process can then have forged the packet.
    pub private: bool,
}

impl Arrival {
    /// Returns whether the packet came from the connected peer that `attributes` describe, along
    /// the path of the connection.
    #[inline]
    pub(crate) fn is_from_peer(&self, attributes: &Attributes) -> bool {
        let path = attributes.path.as_ref();
        path.is_some_and(|path| path.destination == self.source && path.source == self.local)
            && self.may_own(attributes.destination)
    }

    /// Returns whether the sender of the packet can be the owner of the queue pair number
    /// `queue_pair`. Returns `false` if the number belongs to another NIC, and `true` if the NIC of
    /// the sender is not known.
    #[inline]
    pub(crate) fn may_own(&self, queue_pair: u32) -> bool {
        self.slot
            .is_none_or(|slot| slot == number::slot(queue_pair))
    }
}
