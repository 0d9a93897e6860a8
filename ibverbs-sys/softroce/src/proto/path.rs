use std::net::Ipv6Addr;

use super::Attributes;
use crate::number;

/// The path of packets to a peer: the contents of an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Index of the local GID.
    pub source: u8,
    /// The peer's GID; an IPv4-mapped one is an IPv4 address.
    pub destination: Ipv6Addr,
    /// The GRH's traffic class, IPv4's TOS.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Facts about a packet that come from the layers below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the local GID that it was sent to.
    pub local: u8,
    /// The sender's GID; an IPv4 address is mapped.
    pub source: Ipv6Addr,
    /// The GID that it was sent to: the local one, or that of a multicast group.
    pub destination: Ipv6Addr,
    /// The GRH that a datagram's receiver finds in the first 40 bytes of its buffer: of IPv6 the header, of IPv4
    /// 20 bytes of which nothing is said and then the header (IBTA annex A17.4.5.1).
    pub route: [u8; 40],
    /// Slot in the numbers of all queue pairs of the sender. It is known for senders of this host, by the port that
    /// they send from. `None`: the sender's queue pairs may have any numbers.
    pub slot: Option<u8>,
    /// Set if the packet came through memory that is shared with only the process that has the sender's address, so
    /// that no other process can have sent it.
    pub private: bool,
}

impl Arrival {
    /// Returns whether the packet came from the peer of a connection with these attributes, by the connection's path.
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
