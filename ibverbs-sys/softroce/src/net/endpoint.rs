#![forbid(unsafe_code)]
//! The GIDs of the port, and the sockets that send and receive packets for them.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::socket::Socket;

/// Entry of the port's GID table, with the socket for the packets of the GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    /// The GID.
    pub(crate) address: Ipv6Addr,
    /// Encapsulation of the packets that are sent from or to this GID.
    pub(crate) kind: GidKind,
    /// Index of the first GID of the socket that sends and receives the packets of this GID.
    pub(crate) endpoint: usize,
}

/// Kind of a GID. The kind determines which headers packets of the GID have in front of the BTH
/// (base transport header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// Packets are sent over UDP and IPv4. The GID is an IPv4-mapped address.
    Mapped,
    /// Packets are sent over UDP and IPv6.
    Native,
    /// IPv6 packets are sent in a tunnel over UDP and IPv4.
    Tunnelled,
}

/// A socket that receives packets, with the indices of the GIDs at which the packets arrive. The
/// socket has one GID for normal packets, and may have another for tunnelled packets.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Socket that receives the packets.
    pub(crate) socket: Socket,
    /// Index of the GID whose address the socket is bound to. For a multicast socket, index of the
    /// GID for which the group was joined.
    pub(crate) gid: u8,
    /// Index of the GID at which tunnelled packets arrive; `None` if the socket accepts no
    /// tunnelled packets.
    pub(crate) tunnelled: Option<u8>,
}

/// All sockets that currently receive packets: the port's own sockets, and the sockets of multicast
/// groups.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(Box<[Arc<Endpoint>]>);

impl FromIterator<Arc<Endpoint>> for Endpoints {
    fn from_iter<T: IntoIterator<Item = Arc<Endpoint>>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Endpoints {
    /// Returns all sockets that currently receive packets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.0.iter().map(|endpoint| &endpoint.socket)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|endpoint| &**endpoint)
    }
}
