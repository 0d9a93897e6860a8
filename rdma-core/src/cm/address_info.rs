//! Resolution of names to RDMA addresses.

use std::net::SocketAddr;

use ibverbs_sys as sys;

use super::PortSpace;
use crate::error::Result;
use crate::ffi::cm::{InfoQuery, RawInfo, address_info};

/// A query for the addresses of a host (name or address) and a service (name or port number).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a query finds nothing until it is resolved"]
pub struct AddressQuery<'a> {
    node: Option<&'a str>,
    service: Option<&'a str>,
    space: PortSpace,
    passive: bool,
    numeric: bool,
    route: bool,
}

/// An address in the result of an [`AddressQuery`]. Also contains the parameters for connecting to
/// the address or for listening at the address.
#[doc(alias = "rdma_addrinfo")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressInfo {
    /// The address to connect to. `None` if the query was for addresses to listen at.
    #[doc(alias = "ai_dst_addr")]
    pub destination: Option<SocketAddr>,
    /// The local address to bind to before connecting or listening.
    #[doc(alias = "ai_src_addr")]
    pub source: Option<SocketAddr>,
    /// The port space of the address: the kind of service that the address is for.
    #[doc(alias = "ai_port_space")]
    pub port_space: PortSpace,
    /// The canonical name of the host, if the resolver returned one.
    #[doc(alias = "ai_dst_canonname")]
    pub canonical_name: Option<String>,
    /// Private data with which a connect request must begin. Empty if the resolver returned no such
    /// data.
    #[doc(alias = "ai_connect")]
    pub connect_data: Vec<u8>,
}

impl<'a> AddressQuery<'a> {
    /// Creates a query for addresses to connect to `service` on the host `node`. `node` is a host
    /// name or an IP address. `service` is a service name or a port number.
    pub fn new(node: &'a str, service: &'a str) -> Self {
        Self {
            node: Some(node),
            service: Some(service),
            space: PortSpace::Tcp,
            passive: false,
            numeric: false,
            route: true,
        }
    }

    /// Creates a query for a server that listens at all local addresses. `service` is a service
    /// name or a port number.
    #[doc(alias = "RAI_PASSIVE")]
    pub fn listen(service: &'a str) -> Self {
        Self {
            node: None,
            passive: true,
            ..Self::new("", service)
        }
    }

    /// Sets the kind of service, such as reliable connections or datagrams, that will use the
    /// addresses. The default is [`PortSpace::Tcp`]: reliable connections.
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// Makes the query return addresses to listen at, instead of addresses to connect to.
    #[doc(alias = "RAI_PASSIVE")]
    pub fn passive(mut self) -> Self {
        self.passive = true;
        self
    }

    /// Requires that the host in this query is a numeric address. The resolver then looks up no
    /// name.
    #[doc(alias = "RAI_NUMERICHOST")]
    pub fn numeric(mut self) -> Self {
        self.numeric = true;
        self
    }

    /// Makes the query return addresses without routes. The resolver then looks up no route.
    #[doc(alias = "RAI_NOROUTE")]
    pub fn without_route(mut self) -> Self {
        self.route = false;
        self
    }

    /// Runs this query, and returns the addresses that it finds. Blocks until the system's resolver
    /// has finished.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a string with a NUL character,
    /// [`ConnectionError::UnknownName`](super::ConnectionError::UnknownName) for a name without an
    /// address, [`ConnectionError::NoManager`](super::ConnectionError::NoManager) if the system has
    /// no connection manager, and the error of `rdma_getaddrinfo`.
    #[doc(alias = "rdma_getaddrinfo")]
    #[doc(alias = "rdma_freeaddrinfo")]
    pub fn resolve(&self) -> Result<Vec<AddressInfo>> {
        let flags = [
            (self.passive, sys::RAI_PASSIVE),
            (self.numeric, sys::RAI_NUMERICHOST),
            (!self.route, sys::RAI_NOROUTE),
        ];
        let flags = flags.into_iter().filter(|(set, _)| *set);
        let kind = if self.space.is_datagram() {
            sys::ibv_qp_type::IBV_QPT_UD
        } else {
            sys::ibv_qp_type::IBV_QPT_RC
        };
        let answers = address_info(&InfoQuery {
            node: self.node,
            service: self.service,
            flags: flags.fold(0, |all, (_, flag)| all | flag),
            space: self.space.to_raw(),
            kind,
        })?;
        Ok(answers.into_iter().map(AddressInfo::from_raw).collect())
    }
}

impl AddressInfo {
    fn from_raw(raw: RawInfo) -> Self {
        Self {
            destination: raw.destination,
            source: raw.source,
            port_space: PortSpace::from_raw(raw.space),
            canonical_name: raw.canonical_name,
            connect_data: raw.connect_data,
        }
    }
}
