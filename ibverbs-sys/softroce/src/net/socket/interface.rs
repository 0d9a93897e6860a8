use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};
use std::ptr;

use libc::{c_int, sockaddr_in, sockaddr_in6};

use super::name::Name;

/// A network interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Name of the interface, such as `eth0`.
    pub(crate) name: String,
    /// Index of the interface in the kernel (`if_nametoindex(3)`).
    pub(crate) index: u32,
}

impl Interface {
    /// Returns the network interface that has an address, or `None` if no interface has it. All addresses in 127/8 belong
    /// to the interface of 127.0.0.1, the only address in 127/8 that the kernel lists.
    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        let wanted = match address {
            IpAddr::V4(address) if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            other => other,
        };
        let mut list = ptr::null_mut();
        // SAFETY: the pointer is valid for writes; the call stores the list in it.
        if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
            return None;
        }
        let mut found = None;
        let mut next = list;
        // SAFETY: the entries, and the data that they point to, are valid until the list is freed. The last entry's pointer is
        // null.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            if !entry.ifa_addr.is_null() {
                // SAFETY: the address is not null and has the size of its family's type.
                let interface_address = unsafe {
                    match c_int::from((*entry.ifa_addr).sa_family) {
                        libc::AF_INET => {
                            let v4 = entry.ifa_addr.cast::<sockaddr_in>().read_unaligned();
                            Some(Name { v4 }.address().ip())
                        }
                        libc::AF_INET6 => {
                            let v6 = entry.ifa_addr.cast::<sockaddr_in6>().read_unaligned();
                            Some(Name { v6 }.address().ip())
                        }
                        _ => None,
                    }
                };
                if interface_address == Some(wanted) {
                    // SAFETY: the name is a C string that is valid as long as the entry.
                    let (name, index) = unsafe {
                        (
                            CStr::from_ptr(entry.ifa_name),
                            libc::if_nametoindex(entry.ifa_name),
                        )
                    };
                    found = Some(Self {
                        name: name.to_string_lossy().into_owned(),
                        index,
                    });
                    break;
                }
            }
        }
        // SAFETY: the list was returned by getifaddrs, and is not used any more.
        unsafe { libc::freeifaddrs(list) };
        found
    }
}
