use std::net::Ipv6Addr;

use super::Attributes;
use crate::number;

/// Path of packets to a peer: the contents of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Index of the local GID that packets are sent from.
    pub source: u8,
    /// GID of the peer. An IPv4-mapped GID stands for an IPv4 address.
    pub destination: Ipv6Addr,
    /// Traffic class of the GRH, or TOS of IPv4.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Addressing information about a received packet, from the layers below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the local GID that the packet was sent to.
    pub local: u8,
    /// GID of the sender, IPv4-mapped for an IPv4 address.
    pub source: Ipv6Addr,
    /// GID that the packet was sent to: a local GID, or the GID of a multicast group.
    pub destination: Ipv6Addr,
    /// GRH for the first 40 bytes of a datagram's receive: the IPv6 header, or 20 unspecified bytes and the IPv4 header (IBTA
    /// annex A17.4.5.1).
    pub route: [u8; 40],
    /// Slot that all queue pair numbers of the sender contain. Known for senders on this host, by their source port. `None` if
    /// the sender may use any queue pair numbers.
    pub slot: Option<u8>,
    /// Set if the packet came through memory that is shared only with the process that owns the sender's address, so that no
    /// other process can have sent it.
    pub private: bool,
}

impl Arrival {
    /// Returns whether the packet came from the peer of a connection with these attributes, on the connection's path.
    #[inline]
    pub(crate) fn is_of(&self, attributes: &Attributes) -> bool {
        let path = attributes.path.as_ref();
        path.is_some_and(|path| path.destination == self.source && path.source == self.local)
            && self.may_be_of(attributes.destination)
    }

    /// Returns whether the sender may have a queue pair with this number.
    #[inline]
    pub(crate) fn may_be_of(&self, queue_pair: u32) -> bool {
        self.slot
            .is_none_or(|slot| slot == number::slot(queue_pair))
    }
}
