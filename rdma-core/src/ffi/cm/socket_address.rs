//! Conversion of IP addresses to and from their C structs.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Converts an IP address and port to `sockaddr_storage`, the C struct with room for an address of
/// every family.
pub(super) fn to_raw(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    let place: *mut libc::sockaddr_storage = &mut storage;
    match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for the address of every family.
            unsafe { place.cast::<libc::sockaddr_in>().write(raw) };
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: the storage is large enough and aligned for the address of every family.
            unsafe { place.cast::<libc::sockaddr_in6>().write(raw) };
        }
    }
    storage
}

/// Converts a C socket address (`sockaddr`) to an IP address and port. Returns `None` if `raw` is
/// null, or if the address family is neither IPv4 nor IPv6.
///
/// # Safety
///
/// `raw` must be null, or point to an address with the full length of its family.
pub(super) unsafe fn from_raw(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a valid address; those of every family begin with this field.
    let family = unsafe { (*raw).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the caller guarantees a whole address of this family.
            let raw = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the caller guarantees a whole address of this family.
            let raw = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_conversion_to_c() {
        for address in [
            "10.77.0.1:7174",
            "0.0.0.0:0",
            "[fe80::1%3]:65535",
            "[::1]:1",
        ] {
            let address: SocketAddr = address.parse().unwrap();
            let raw = to_raw(address);
            // SAFETY: the storage holds an address of its family.
            let back = unsafe { from_raw((&raw as *const libc::sockaddr_storage).cast()) };
            assert_eq!(back, Some(address));
        }
    }

    #[test]
    fn no_address_and_other_families_are_none() {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut raw: libc::sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: the storage is large enough for an address of any family.
        assert_eq!(unsafe { from_raw((&raw const raw).cast()) }, None);
        raw.ss_family = libc::AF_UNIX as libc::sa_family_t;
        // SAFETY: the storage is large enough for an address of any family.
        assert_eq!(unsafe { from_raw((&raw const raw).cast()) }, None);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { from_raw(std::ptr::null()) }, None);
    }
}
