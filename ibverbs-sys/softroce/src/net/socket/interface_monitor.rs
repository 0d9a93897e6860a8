#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::descriptor::Descriptor;

/// Multicast groups of netlink messages (linux/rtnetlink.h) about interfaces, IPv4 addresses, IPv4
/// routes and IPv6 addresses.
const RTNETLINK_GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100;
/// Types of netlink messages about new and removed routes (linux/rtnetlink.h).
const ROUTE_MESSAGES: [u16; 2] = [24, 25];

/// A netlink socket by which the kernel reports changes of the network interfaces, their addresses
/// and the IPv4 routes (`rtnetlink(7)`).
#[derive(Debug)]
pub(crate) struct InterfaceMonitor(Descriptor);

impl InterfaceMonitor {
    /// Opens the netlink socket of the monitor. From now on, the kernel reports changes of the
    /// host's interfaces, addresses and routes to the socket.
    pub(crate) fn watch() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The protocol 0 is `NETLINK_ROUTE`.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = Descriptor::open(|| socket_with(family, kind, flags, None))?;
        bind(&socket, &SocketAddrNetlink::new(0, RTNETLINK_GROUPS))?;
        Ok(Self(socket))
    }

    /// Reads all reports of changes that the kernel has sent since the last call, without waiting.
    /// Returns the kinds of the reported changes. If the kernel has discarded reports, returns all
    /// kinds, because the discarded reports can be of any kind.
    pub(crate) fn take(&self) -> HostChanges {
        let mut changes = HostChanges::default();
        loop {
            let mut report = [0; 64];
            // The end of a longer report is discarded.
            match recv(&self.0, &mut report, RecvFlags::DONTWAIT) {
                // Each report is one message, whose type follows the length of four bytes.
                Ok(_) if ROUTE_MESSAGES.contains(&u16::from_ne_bytes([report[4], report[5]])) => {
                    changes.routes = true;
                }
                // `ENOBUFS`: the kernel has discarded reports.
                Ok(_) | Err(Errno::NOBUFS) => {
                    changes = HostChanges {
                        addresses: true,
                        routes: true,
                    };
                }
                Err(Errno::INTR) => {}
                Err(_) => return changes,
            }
        }
    }
}

/// Kinds of changes of this host's network that the kernel has reported.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostChanges {
    /// Set if interfaces or addresses may have changed, so that the caller must list the addresses
    /// again.
    pub(crate) addresses: bool,
    /// Set if routes may have changed.
    pub(crate) routes: bool,
}

impl AsFd for InterfaceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
