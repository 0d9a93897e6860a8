#![forbid(unsafe_code)]
//! The port's GIDs, and the sockets by which packets to and from them go.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::socket::Socket;

/// A GID of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    /// The GID.
    pub(crate) address: Ipv6Addr,
    /// How packets from it travel.
    pub(crate) kind: GidKind,
    /// Which socket they go by.
    pub(crate) endpoint: usize,
}

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// Over IPv4.
    Mapped,
    /// Over IPv6.
    Native,
    /// Over IPv6, in a tunnel over IPv4.
    Tunnelled,
}

/// A socket, and whose packets come by it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The socket.
    pub(crate) socket: Socket,
    /// The GID whose address it is bound to, or that the group was joined for.
    pub(crate) gid: u8,
    /// The GID whose packets come in a tunnel.
    pub(crate) tunnelled: Option<u8>,
}

/// All sockets that packets come by.
#[derive(Debug)]
pub(crate) struct Endpoints(Box<[Arc<Endpoint>]>);

impl FromIterator<Arc<Endpoint>> for Endpoints {
    fn from_iter<T: IntoIterator<Item = Arc<Endpoint>>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Endpoints {
    /// Their sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.0.iter().map(|endpoint| &endpoint.socket)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|endpoint| &**endpoint)
    }
}
