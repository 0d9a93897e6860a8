use std::mem;
use std::net::Ipv4Addr;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sockaddr_in, sockaddr_in6};

/// A socket address in the form of the C ABI: `sockaddr_in` or `sockaddr_in6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union RawSocketAddress {
    pub(super) v4: sockaddr_in,
    pub(super) v6: sockaddr_in6,
}

impl RawSocketAddress {
    // SAFETY: all fields are integers, for which zero is valid.
    pub(super) const NONE: Self = unsafe { mem::zeroed() };

    /// Stores the socket address `address` in its C form, for a system call. Returns the length of
    /// this form in bytes.
    pub(super) fn set(&mut self, address: SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                // SAFETY: all fields are integers, for which zero is valid.
                let mut name: sockaddr_in = unsafe { mem::zeroed() };
                name.sin_family = libc::AF_INET as _;
                name.sin_port = address.port().to_be();
                name.sin_addr.s_addr = u32::from(*address.ip()).to_be();
                self.v4 = name;
                size_of::<sockaddr_in>() as _
            }
            SocketAddr::V6(address) => {
                // SAFETY: all fields are integers, for which zero is valid.
                let mut name: sockaddr_in6 = unsafe { mem::zeroed() };
                name.sin6_family = libc::AF_INET6 as _;
                name.sin6_port = address.port().to_be();
                name.sin6_addr.s6_addr = address.ip().octets();
                name.sin6_scope_id = address.scope_id();
                self.v6 = name;
                size_of::<sockaddr_in6>() as _
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        // SAFETY: both variants begin with the family, and all bytes were initialized.
        let family = unsafe { self.v4.sin_family };
        if c_int::from(family) == libc::AF_INET6 {
            // SAFETY: the family is that of this variant. Integers have no invalid values.
            let name = unsafe { self.v6 };
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            SocketAddrV6::new(address, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into()
        } else {
            // SAFETY: integers have no invalid values.
            let name = unsafe { self.v4 };
            let address = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            SocketAddrV4::new(address, u16::from_be(name.sin_port)).into()
        }
    }
}
