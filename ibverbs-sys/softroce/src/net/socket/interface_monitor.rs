#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::descriptor::Descriptor;

/// Multicast groups of netlink messages (linux/rtnetlink.h) about interfaces, IPv4 addresses and
/// IPv6 addresses.
const RTNETLINK_GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A netlink socket by which the kernel reports changes of the network interfaces and their
/// addresses (`rtnetlink(7)`).
#[derive(Debug)]
pub(crate) struct InterfaceMonitor(Descriptor);

impl InterfaceMonitor {
    /// Opens the socket. From now on, the kernel reports changes to the socket.
    pub(crate) fn watch() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The protocol 0 is `NETLINK_ROUTE`.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = Descriptor::open(|| socket_with(family, kind, flags, None))?;
        bind(&socket, &SocketAddrNetlink::new(0, RTNETLINK_GROUPS))?;
        Ok(Self(socket))
    }

    /// Discards all reports that have arrived. Returns whether there was at least one, so that the
    /// caller must list the addresses again.
    pub(crate) fn take(&self) -> bool {
        let mut any = false;
        loop {
            // The end of a longer report is discarded.
            match recv(&self.0, &mut [0_u8; 64], RecvFlags::DONTWAIT) {
                // `ENOBUFS`: the kernel has discarded reports.
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for InterfaceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
