use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_int, c_uint, sockaddr_in, sockaddr_in6, sockaddr_ll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use super::raw_socket_address::RawSocketAddress;
use crate::descriptor::Descriptor;

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Name of the interface, such as `eth0`.
    pub(crate) name: String,
    /// Index of the interface in the kernel (`if_nametoindex(3)`).
    pub(crate) index: u32,
}

/// An IP address of this host, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    /// The IP address, of IPv4 or IPv6.
    pub(crate) ip: IpAddr,
    /// Network interface that has the address.
    pub(crate) interface: Interface,
    /// Set if the interface is up. By default, the device uses only addresses of such interfaces.
    pub(crate) is_up: bool,
}

impl Interface {
    /// Returns the network interface that has the IP address `address`, or `None` if no interface
    /// has the address. The kernel lists only one address in 127/8, which is 127.0.0.1. All
    /// addresses in 127/8 belong to the interface of 127.0.0.1.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        Self::find(&HostAddress::list(), address)
    }

    /// Returns the network interface that has the IP address `address` according to `list`, the
    /// list of all addresses. See also [`of`](Self::of).
    pub(crate) fn find(list: &[HostAddress], address: IpAddr) -> Option<Self> {
        let wanted = match address {
            IpAddr::V4(address) if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            other => other,
        };
        let found = list.iter().find(|found| found.ip == wanted)?;
        Some(found.interface.clone())
    }

    /// Returns whether this host has a network interface with the name `name`.
    pub(crate) fn exists(name: &str) -> bool {
        socket().is_some_and(|socket| netdevice::name_to_index(&socket, name).is_ok())
    }

    /// Returns the MTU of the interface in bytes, or `None` if the interface does not exist any
    /// more.
    pub(crate) fn mtu(&self) -> Option<usize> {
        let socket = socket()?;
        // SAFETY: the structure is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        let name = self.name.as_bytes();
        // The last byte of the name stays 0.
        let room = request.ifr_name.len() - 1;
        for (place, byte) in request.ifr_name[..room].iter_mut().zip(name) {
            *place = byte.cast_signed();
        }
        // SAFETY: the request is a valid `ifreq` for the call, in which the kernel stores the MTU.
        let mtu = unsafe {
            let result = libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request);
            (result == 0).then_some(request.ifr_ifru.ifru_mtu)
        };
        usize::try_from(mtu?).ok()
    }
}

impl HostAddress {
    /// Returns the IP addresses of all network interfaces of the host, as the kernel lists them. On
    /// an error, returns no address.
    pub(crate) fn list() -> Vec<Self> {
        Self::try_list().unwrap_or_default()
    }

    /// Returns the IP addresses of all network interfaces of the host, as the kernel lists them.
    /// Fails if the kernel refuses, for example because the process has too many descriptors.
    pub(crate) fn try_list() -> io::Result<Vec<Self>> {
        let mut list = ptr::null_mut();
        // SAFETY: the pointer is valid for writes; the call stores the list in it.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (mut all, mut indices) = (Vec::<Self>::new(), HashMap::new());
        let mut next = list;
        // SAFETY: the entries, and the data that they point to, are valid until the list is freed.
        // The last entry's pointer is null.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            if entry.ifa_addr.is_null() {
                continue;
            }
            // SAFETY: the name is a C string that is valid as long as the entry.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            let name = name.to_string_lossy().into_owned();
            // SAFETY: the address is not null and has the size of its family's type.
            let address = unsafe {
                match c_int::from((*entry.ifa_addr).sa_family) {
                    libc::AF_INET => RawSocketAddress {
                        v4: entry.ifa_addr.cast::<sockaddr_in>().read_unaligned(),
                    },
                    libc::AF_INET6 => RawSocketAddress {
                        v6: entry.ifa_addr.cast::<sockaddr_in6>().read_unaligned(),
                    },
                    libc::AF_PACKET => {
                        let link = entry.ifa_addr.cast::<sockaddr_ll>().read_unaligned();
                        indices.insert(name, link.sll_ifindex.cast_unsigned());
                        continue;
                    }
                    _ => continue,
                }
            };
            all.push(Self {
                ip: address.address().ip(),
                interface: Interface { name, index: 0 },
                is_up: entry.ifa_flags & libc::IFF_UP as c_uint != 0,
            });
        }
        // SAFETY: the list was returned by getifaddrs, and is not used any more.
        unsafe { libc::freeifaddrs(list) };
        for found in &mut all {
            // The label of an IPv4 address may have a suffix, as in `eth0:1`.
            let name = found.interface.name.split(':').next().unwrap_or_default();
            found.interface.index = indices.get(name).copied().unwrap_or(0);
            found.interface.name = name.to_owned();
        }
        Ok(all)
    }

    /// Returns the socket address of this IP address and the port `port`. For a link-local IPv6
    /// address, the result contains the index of the interface.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => {
                let scope = ip.is_unicast_link_local().then_some(self.interface.index);
                SocketAddrV6::new(ip, port, 0, scope.unwrap_or(0)).into()
            }
        }
    }
}

/// Opens a socket on which system calls (`ioctl`) query interfaces. Returns `None` if the kernel
/// refuses.
fn socket() -> Option<Descriptor> {
    let flags = SocketFlags::CLOEXEC;
    let open = || socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    Descriptor::open(open).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let interface = Interface::of(IpAddr::from([127, 7, 7, 7])).unwrap();
        assert!(Interface::exists(&interface.name) && !Interface::exists("no-such-one"));
        assert!(interface.mtu().unwrap() >= 1500);
        let all = HostAddress::list();
        let local = |found: &&HostAddress| found.ip == Ipv4Addr::LOCALHOST;
        let found = all.iter().find(local).unwrap();
        assert_eq!((&found.interface, found.is_up), (&interface, true));
    }
}
