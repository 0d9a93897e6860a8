#![forbid(unsafe_code)]
//! Unix sockets by which processes of a host find each other.
//!
//! A process listens on an abstract Unix name for each address of its UDP sockets. An abstract name
//! is not a file: the name disappears when the process ends, and belongs to the network namespace,
//! as the address does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use super::admission::{HANDSHAKE_TIMEOUT, MAX_PENDING_HANDSHAKES};
use crate::descriptor::Descriptor;

/// Creates the Unix socket on which this process listens for handshakes. The socket has an abstract
/// name (a name without a file) that contains `address`, the address of this process. Other
/// processes that know the address find the socket by this name.
pub(super) fn listen_at(address: SocketAddr) -> io::Result<Descriptor> {
    let socket = socket(SocketFlags::NONBLOCK)?;
    bind(&socket, &name(address)?)?;
    listen(&socket, MAX_PENDING_HANDSHAKES as i32)?;
    Ok(socket)
}

/// Accepts a connection of another process at the socket `listener`. Returns `None` if no
/// connection is waiting.
pub(super) fn accept(listener: &Descriptor) -> io::Result<Option<Descriptor>> {
    match Descriptor::open(|| accept_with(listener, SocketFlags::CLOEXEC)) {
        Ok(socket) => Ok(Some(socket)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Connects to the process that listens at the socket address `address`. If too many connections to
/// that process are pending, waits for at most [`HANDSHAKE_TIMEOUT`].
pub(super) fn connect_to(address: SocketAddr) -> io::Result<Descriptor> {
    let socket = socket(SocketFlags::empty())?;
    set_socket_timeout(&socket, Timeout::Send, Some(HANDSHAKE_TIMEOUT))?;
    connect(&socket, &name(address)?)?;
    Ok(socket)
}

/// Waits until a message can be received from the socket, or until `deadline`. Returns whether a
/// message can be received.
pub(super) fn wait_until_readable(socket: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut descriptors = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

fn socket(flags: SocketFlags) -> io::Result<Descriptor> {
    let flags = flags | SocketFlags::CLOEXEC;
    let open = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    Ok(Descriptor::open(open)?)
}

/// Returns the abstract name (a name without a file) of the Unix socket on which the process that
/// has the address `address` listens for handshakes.
fn name(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    let name = format!("softroce/{address}");
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_is_found_by_its_address_while_it_listens() {
        let id = std::process::id().to_ne_bytes();
        let port = 0x4000 | u16::from(id[2]);
        let address = SocketAddr::from(([127, 110, id[0], id[1]], port));
        assert!(connect_to(address).is_err());
        let listener = listen_at(address).unwrap();
        assert!(accept(&listener).unwrap().is_none());
        let there = connect_to(address).unwrap();
        let here = accept(&listener).unwrap().unwrap();
        assert!(accept(&listener).unwrap().is_none());
        assert!(listen_at(address).is_err(), "an address has one process");
        let soon = Instant::now() + Duration::from_millis(10);
        assert!(!wait_until_readable(here.as_fd(), soon).unwrap());
        drop((there, listener));
        let late = Instant::now() + Duration::from_secs(30);
        assert!(wait_until_readable(here.as_fd(), late).unwrap());
        assert!(connect_to(address).is_err());
    }
}
