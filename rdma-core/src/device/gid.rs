//! Global identifiers (GIDs) and entries of GID tables.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ffi::interface_name;

/// A global identifier (GID): 128 bits that identify a port. On RoCE v2 the GID is an IP address of
/// the port. An IPv4 address is in IPv4-mapped form (`::ffff:a.b.c.d`).
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID as an IPv6 address.
    pub fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// Returns the IPv4 address if the GID is an IPv4-mapped IPv6 address, and `None` otherwise.
    pub fn to_ipv4(self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// Returns the IP address that RoCE v2 uses for the GID: an IPv4 address if the GID is
    /// IPv4-mapped, and an IPv6 address otherwise.
    pub fn to_ip(self) -> IpAddr {
        self.to_ipv4()
            .map_or_else(|| self.to_ipv6().into(), IpAddr::from)
    }

    /// Returns whether all bits of the GID are zero, as in an empty entry of a GID table.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns whether the GID is a link-local address, `fe80::/10`.
    pub fn is_link_local(self) -> bool {
        self.to_ipv6().is_unicast_link_local()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The protocol for which a GID can be used (`ibv_gid_type`).
#[doc(alias = "ibv_gid_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidType {
    /// The native InfiniBand protocol.
    InfiniBand,
    /// RoCE v1: the InfiniBand transport in Ethernet frames.
    RoceV1,
    /// RoCE v2: the InfiniBand transport in UDP.
    RoceV2,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl GidType {
    pub(crate) fn from_raw(value: u32) -> Self {
        use ibverbs_sys::ibv_gid_type as raw;
        match raw(value as _) {
            raw::IBV_GID_TYPE_IB => Self::InfiniBand,
            raw::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            raw::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            _ => Self::Unknown(value),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Unknown(value) => write!(f, "GID type {value}"),
        }
    }
}

/// An entry of the GID table of a port, the list of the port's network addresses.
#[doc(alias = "ibv_gid_entry")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The index of the entry in the table.
    pub index: u32,
    /// The port to which the table belongs.
    pub port: u8,
    /// The GID in the entry.
    pub gid: Gid,
    /// The protocol for which the GID can be used.
    pub kind: GidType,
    /// The index of the network interface to which the GID belongs; 0 if it belongs to no
    /// interface.
    pub interface: u32,
}

impl GidEntry {
    /// Returns the name of the network interface to which the GID belongs. Returns `None` if the
    /// GID belongs to no interface, or if the interface is not in this process's network namespace.
    #[doc(alias = "ndev_ifindex")]
    pub fn interface_name(&self) -> Option<String> {
        interface_name(self.interface)
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.index, self.gid, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_found() {
        let gid = Gid::from(IpAddr::from([10, 77, 0, 1]));
        assert_eq!(gid.to_ipv4(), Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
        let link_local = Gid::from(IpAddr::from("fe80::1".parse::<Ipv6Addr>().unwrap()));
        assert!(link_local.is_link_local() && link_local.to_ipv4().is_none());
        assert!(Gid::default().is_zero());
    }
}
