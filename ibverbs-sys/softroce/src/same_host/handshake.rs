#![forbid(unsafe_code)]
//! The handshake by which two processes agree to share memory.
//!
//! | initiator | responder |
//! |---|---|
//! | connects, sends `Hello` with its descriptors and the link's memory | |
//! | | checks its [access](process::check_copy_permission) to the initiator's memory, sends `Welcome` with its descriptors, or `Sorry` or `Later` |
//! | checks its [access](process::check_copy_permission) to the responder's memory, sends `Ready` | |
//! | | adds the link |
//!
//! Each process checks whether the kernel permits it to copy from and to the memory of the other
//! process. If the kernel does not, data in the program's own memory is sent through the ring. If
//! the other process is of another user, or one of the two does not permit others to read its
//! memory ([`is_dumpable`](process::is_dumpable)), no memory is shared, and packets use the
//! network.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::admission::{self, HANDSHAKE_TIMEOUT, MAX_LINKS, MAX_LINKS_PER_PROCESS};
use super::copying_peer::Process;
use super::handshake_message::{HandshakeMessage, MessageType};
use super::link::Link;
use super::links::{Links, ProcessState};
use super::local::LocalProcess;
use super::pending::{Handshake, Handshakes};
use super::process;
use super::segment;
use super::sockets;
use crate::descriptor::{self, Descriptor};

/// Result of a handshake that this process has begun with [`perform`].
pub(super) enum HandshakeOutcome {
    Linked(Arc<Link>),
    Declined,
    /// The peer has refused this handshake with `Later`, because another handshake between the two
    /// processes is in progress or has just finished. For example, both processes have begun one at
    /// the same time. The other handshake creates the link (shared memory).
    Superseded,
}

/// Performs a handshake with the process at the socket address `address`, in order to share memory
/// with it. Returns the link, or the reason why no link was made. Waits for at most
/// [`HANDSHAKE_TIMEOUT`].
pub(super) fn perform(local: &LocalProcess, address: SocketAddr) -> io::Result<HandshakeOutcome> {
    // The program may have closed or replaced descriptors of the device, which must not be passed
    // to a peer then.
    if !descriptor::check_all() || !process::is_dumpable() {
        return Ok(HandshakeOutcome::Declined);
    }
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let socket = sockets::connect_to(address)?;
    let Some(process) = process::connected_process(socket.as_fd()) else {
        return Ok(HandshakeOutcome::Declined);
    };
    let handle = Process::open_handle(process);
    let (file, side) = segment::create()?;
    local.wait_for_engine(deadline);
    let Some(hello) = local.describe(MessageType::Hello) else {
        return Ok(HandshakeOutcome::Declined);
    };
    hello.send(socket.as_fd(), &local.descriptors(Some(file.as_fd())))?;
    if !sockets::wait_until_readable(socket.as_fd(), deadline)? {
        return Ok(HandshakeOutcome::Declined);
    }
    let (handshake_message, descriptors) = HandshakeMessage::receive(socket.as_fd())?;
    match handshake_message.word {
        MessageType::Welcome => {}
        MessageType::Later => return Ok(HandshakeOutcome::Superseded),
        _ => return Ok(HandshakeOutcome::Declined),
    }
    let Some((thread, copies)) =
        process::check_copy_permission(process, handshake_message.thread, handshake_message.probe)
    else {
        return Ok(HandshakeOutcome::Declined);
    };
    let peer = local.peer(handshake_message, descriptors)?;
    if !peer.addresses.contains(&address) {
        return Ok(HandshakeOutcome::Declined);
    }
    let process = Process {
        number: process,
        thread,
        copies,
        socket,
        handle,
    };
    let link = local.new_link(peer, process, side);
    local.admit(&link, &HandshakeMessage::of_type(MessageType::Ready), &[])?;
    Ok(HandshakeOutcome::Linked(link))
}

/// Continues the pending handshakes that other processes have begun: receives and answers their
/// messages, and ends handshakes that take too long. Returns `true` if a handshake has ended. The
/// caller must then notify the threads that wait for a link (shared memory) to the same process.
pub(super) fn continue_pending(
    local: &LocalProcess,
    links: &mut Links,
    handshakes: &mut Handshakes,
    now: Instant,
) -> bool {
    handshakes.advance(now, |handshakes, handshake| {
        receive(local, links, handshakes, handshake)
    })
}

/// Receives and handles a message of a peer in a pending handshake. Returns whether the handshake
/// is still pending.
fn receive(
    local: &LocalProcess,
    links: &mut Links,
    handshakes: &mut Handshakes,
    handshake: &mut Handshake,
) -> bool {
    let (handshake_message, descriptors) = match HandshakeMessage::receive(handshake.socket.as_fd())
    {
        Ok(came) => came,
        Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
    };
    match (handshake_message.word, handshake.welcomed.take()) {
        (MessageType::Hello, None) => {
            match accept_hello(
                local,
                links,
                handshakes,
                handshake,
                handshake_message,
                descriptors,
            ) {
                Ok(welcomed) => {
                    handshakes.make_room_for_welcomed();
                    handshake.welcomed = Some(welcomed);
                    true
                }
                Err(word) => {
                    let _ = HandshakeMessage::of_type(word).send(handshake.socket.as_fd(), &[]);
                    false
                }
            }
        }
        (MessageType::Ready, Some(link))
            if !links.is_taken(link.addresses(), handshake.process) =>
        {
            links.add(&link, &local.resources.addresses);
            false
        }
        _ => false,
    }
}

/// Answers a `Hello` (request to share memory) with `Welcome` (acceptance), and returns the new
/// link (shared memory with the peer).
///
/// # Errors
/// The type of the message by which the caller must refuse the handshake.
fn accept_hello(
    local: &LocalProcess,
    links: &Links,
    handshakes: &Handshakes,
    handshake: &Handshake,
    handshake_message: HandshakeMessage,
    mut descriptors: Vec<Descriptor>,
) -> Result<Arc<Link>, MessageType> {
    const REFUSAL: MessageType = MessageType::Sorry;
    // The program may have closed or replaced descriptors of the device, which must not be passed
    // to a peer then.
    if !descriptor::check_all() || !process::is_dumpable() {
        return Err(REFUSAL);
    }
    let process = handshake.process;
    let first = handshake_message.addresses.first().ok_or(REFUSAL)?;
    // A link exists already: the peer sent `Hello` before it received the last message of the
    // link's handshake.
    if let Some(ProcessState::Linked(link)) = links.state(*first)
        && link.process() == process
        && link.check()
    {
        return Err(MessageType::Later);
    }
    // If two processes begin a handshake with each other at the same time, both keep the one that
    // the process with the lower address has begun.
    if handshake_message
        .addresses
        .iter()
        .any(|&address| links.is_in_handshake(address))
        && local.resources.addresses.first() < Some(first)
    {
        return Err(MessageType::Later);
    }
    if handshakes.has_welcomed(process) {
        return Err(MessageType::Later);
    }
    if local.copying_peer_count() >= MAX_LINKS
        || local.links_with(process) >= MAX_LINKS_PER_PROCESS
        || links.is_taken(&handshake_message.addresses, process)
        || admission::is_short_of_descriptors(&handshake.socket)
        || descriptors.is_empty()
    {
        return Err(REFUSAL);
    }
    let file = descriptors.remove(0);
    let side = segment::map(file.as_fd()).map_err(|_| REFUSAL)?;
    let handle = Process::open_handle(process);
    let reached =
        process::check_copy_permission(process, handshake_message.thread, handshake_message.probe);
    let (thread, copies) = reached.ok_or(REFUSAL)?;
    let process = Process {
        number: process,
        thread,
        copies,
        socket: handshake.socket.try_clone().map_err(|_| REFUSAL)?,
        handle,
    };
    let peer = local
        .peer(handshake_message, descriptors)
        .map_err(|_| REFUSAL)?;
    let answer = local.describe(MessageType::Welcome).ok_or(REFUSAL)?;
    let link = local.new_link(peer, process, side);
    local
        .admit(&link, &answer, &local.descriptors(None))
        .map_err(|_| REFUSAL)?;
    Ok(link)
}
