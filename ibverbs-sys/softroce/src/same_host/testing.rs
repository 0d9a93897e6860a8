//! Two simulated processes of a host within one process, for tests and fuzz targets: their
//! directories of peers, and both sides of a link (shared memory) between them.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;

use super::copying_peer::Process;
use super::link::{Link, LinkFailures, Peer};
use super::local::ProcessResources;
use super::process::KernelCopies;
use super::regions::{Publication, Tables};
use super::segment::{self, LinkMemory};
use crate::completion::WakeEventfds;
use crate::counters::Counters;
use crate::descriptor::{Descriptor, Opening};
use crate::memory::Arena;

/// Returns the resources that a simulated process with the address `address` passes to peers in a
/// handshake: its addresses, tables, memory and eventfds.
pub(super) fn own_resources(address: SocketAddr) -> io::Result<ProcessResources> {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Ok(ProcessResources {
        base_port: 4791,
        addresses: vec![address],
        open: 1,
        gids: vec![ip],
        publication: Arc::new(Publication::new(0)?),
        arena: Arena::new()?,
        wake_eventfd: Arc::new(wake_eventfd()?),
        channels: WakeEventfds::new()?,
        counters: Arc::<Counters>::default(),
        is_peer: false,
    })
}

/// Creates a link (shared memory) for a test, with both ends in this process. Returns the two ends,
/// and the file of the shared memory. The first end has the role of the process that created the
/// file.
pub(super) fn links() -> io::Result<(Arc<Link>, Arc<Link>, Descriptor)> {
    let addresses: [SocketAddr; 2] = [([127, 0, 0, 1], 4791).into(), ([127, 0, 0, 2], 4791).into()];
    let (first, second) = connection()?;
    let (file, made) = segment::create()?;
    let taken = segment::map(file.as_fd())?;
    let this = rustix::process::getpid();
    let there = link(peer(addresses[0])?, process(this, second), taken)?;
    let here = link(peer(addresses[1])?, process(this, first), made)?;
    Ok((here, there, file))
}

/// Creates a link (shared memory) to a simulated process that has the process ID `number`. `tables`
/// is the file in which the simulated process publishes its memory regions, and `arena` is the file
/// that contains the memory of the regions. Returns the link, and the simulated process's end of
/// the connection.
pub(super) fn link_to(
    tables: &Descriptor,
    arena: Descriptor,
    number: Pid,
) -> io::Result<(Arc<Link>, Descriptor)> {
    let (socket, end) = connection()?;
    let peer = Peer {
        tables: Tables::map(tables.as_fd())?,
        arena,
        ..peer(([127, 0, 0, 1], 4791).into())?
    };
    let link = link(peer, process(number, socket), segment::create()?.1)?;
    Ok((link, end))
}

fn link(peer: Peer, process: Process, side: LinkMemory) -> io::Result<Arc<Link>> {
    let failures = LinkFailures::new(Arc::new(wake_eventfd()?));
    Ok(Link::new(peer, process, side, Arc::default(), failures))
}

/// Creates a connected pair of Unix sockets (`SOCK_SEQPACKET`) within this process.
pub(super) fn connection() -> io::Result<(Descriptor, Descriptor)> {
    let opening = Opening::begin();
    let flags = SocketFlags::CLOEXEC;
    let (first, second) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok((opening.adopt(first), opening.adopt(second)))
}

fn process(number: Pid, socket: Descriptor) -> Process {
    Process {
        number,
        thread: number,
        copies: KernelCopies::Allowed,
        socket,
        handle: None,
    }
}

/// Returns the description of a simulated peer that has the address `address`. The tables, memory
/// and eventfds of the peer are created in this process.
fn peer(address: SocketAddr) -> io::Result<Peer> {
    let own = own_resources(address)?;
    let channels = (0..WakeEventfds::COUNT).map(|_| wake_eventfd());
    Ok(Peer {
        slot: None,
        addresses: own.addresses,
        gids: own.gids,
        key_base: 0,
        tables: Tables::map(own.publication.as_fd())?,
        arena: Descriptor::open(|| own.arena.as_fd().try_clone_to_owned())?,
        wake_eventfd: wake_eventfd()?,
        channels: channels.collect::<io::Result<_>>()?,
    })
}

fn wake_eventfd() -> io::Result<Descriptor> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(Descriptor::open(|| eventfd(0, flags))?)
}
