//! Names to addresses.

use std::net::SocketAddr;

use ibverbs_sys as sys;

use super::PortSpace;
use crate::error::Result;
use crate::ffi::cm::{InfoQuery, RawInfo, address_info};

/// What to find the addresses of: a name or an address, and a service or a port.
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

/// An address that was found.
#[doc(alias = "rdma_addrinfo")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressInfo {
    /// Where to connect to; `None` where only a place to listen was asked for.
    #[doc(alias = "ai_dst_addr")]
    pub destination: Option<SocketAddr>,
    /// Where to bind to.
    #[doc(alias = "ai_src_addr")]
    pub source: Option<SocketAddr>,
    /// The service.
    #[doc(alias = "ai_port_space")]
    pub port_space: PortSpace,
    /// The full name, where the resolver gave it.
    #[doc(alias = "ai_dst_canonname")]
    pub canonical_name: Option<String>,
    /// Private data that the request to connect must begin with, where the resolver gave some.
    #[doc(alias = "ai_connect")]
    pub connect_data: Vec<u8>,
}

impl<'a> AddressQuery<'a> {
    /// To connect to `service` at `node`.
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

    /// To listen for `service` at every address.
    #[doc(alias = "RAI_PASSIVE")]
    pub fn listen(service: &'a str) -> Self {
        Self {
            node: None,
            passive: true,
            ..Self::new("", service)
        }
    }

    /// Of this service. Default [`PortSpace::Tcp`].
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// For addresses to listen at.
    #[doc(alias = "RAI_PASSIVE")]
    pub fn passive(mut self) -> Self {
        self.passive = true;
        self
    }

    /// Takes the node as an address, and asks nobody for a name.
    #[doc(alias = "RAI_NUMERICHOST")]
    pub fn numeric(mut self) -> Self {
        self.numeric = true;
        self
    }

    /// Does not look for a route as well.
    #[doc(alias = "RAI_NOROUTE")]
    pub fn without_route(mut self) -> Self {
        self.route = false;
        self
    }

    /// Finds the addresses; blocks for as long as the system's resolver does.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a text with a NUL character,
    /// [`ConnectionError::UnknownName`](super::ConnectionError::UnknownName) for a name of no
    /// address, [`ConnectionError::NoManager`](super::ConnectionError::NoManager) where there is no
    /// connection manager, and the verb's.
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
