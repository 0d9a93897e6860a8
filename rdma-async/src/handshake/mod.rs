//! The handshake: the exchange of messages over TCP by which two ends connect their queue pairs.
//!
//! The connecting end first sends a [`Hello`], and the accepting end replies with its own. Both
//! ends then connect their queue pairs and send [`READY`]. An end that has received `READY` may
//! send messages. The TCP connection stays open without further data, and its close notifies the
//! peer of the close of the RDMA connection.
//!
//! An accepting end with an [`Authenticator`](crate::Authenticator) replies to the first hello with
//! a challenge instead, and sends its own hello only after the peer is
//! [authenticated](authentication). An end that refuses the peer sends a [rejection] with the
//! reason.

mod authentication;
mod hello;
mod local;
mod path_mtu;
mod rejection;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use rdma_core::AddressChoice;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

pub(crate) use self::hello::{EndLimits, HELLO_LEN, Hello};
pub(crate) use self::local::{LocalEnd, ReservedRoom};
use crate::builder::Template;
use crate::connection::{Attached, ControlTask, Link};
use crate::error::{Error, Result};
use crate::half_open::HandshakeState;
use crate::rdma::Rdma;

/// Byte that each end sends once its queue pair is connected and can receive messages. The value is
/// ACK in ASCII.
pub(crate) const READY: u8 = 0x06;

/// Performs the handshake of the connecting end over the TCP connection `stream`, and returns the
/// new connection.
pub(crate) async fn connect(
    template: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Rdma> {
    let failed = |source| io_error(peer, &source);
    configure(&stream, template.settings.keep_alive).map_err(failed)?;
    let authenticator = template.settings.authenticator.clone();
    let local = prepare(template, &stream).map_err(|error| error.into_error(peer))?;
    let own = local.hello().encode();
    stream.write_all(&own).await.map_err(failed)?;
    let authenticator = authenticator.as_deref();
    let theirs = authentication::read_reply(&mut stream, peer, &own, authenticator).await?;
    let remote = Hello::decode(&theirs).map_err(|reason| refused(peer, reason))?;
    complete_handshake(local, stream, peer, remote).await
}

/// Performs the handshake of the accepting end over the TCP connection `stream`, and returns the
/// new connection. Fails if the handshake exceeds its time limit, or if the listener ends the
/// handshake. The peer then gets the reason, unless this end has already replied to the peer's
/// hello.
pub(crate) async fn accept(
    template: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
    state: &HandshakeState,
) -> Result<Rdma> {
    let limit = template.settings.connect_timeout;
    let handshakes = template.settings.half_open_limit;
    let mut end = pin!(async {
        tokio::select! {
            () = sleep(limit) => too_slow(peer, limit),
            () = state.evicted() => evicted(peer, handshakes),
        }
    });
    let (local, remote) = tokio::select! {
        // A peer whose bytes have arrived is served before its handshake can end.
        biased;
        agreed = exchange_hellos(template, &mut stream, peer, state) => agreed?,
        error = &mut end => {
            if let Error::Handshake { reason, .. } = &error {
                rejection::send_now(&stream, reason);
            }
            return Err(error);
        }
    };
    tokio::select! {
        outcome = complete_handshake(local, stream, peer, remote) => outcome,
        error = end => Err(error),
    }
}

/// Receives the hello (first message) of the connecting end, and replies with the hello of this
/// end. Returns the local end, and the hello of the peer. Calls [`HandshakeState::set_proved`] once
/// the peer has sent a valid [`Hello`] and, if the settings have an authenticator, a valid proof.
/// Only then creates the queue pair of this end.
async fn exchange_hellos(
    template: Template,
    stream: &mut TcpStream,
    peer: SocketAddr,
    state: &HandshakeState,
) -> Result<(LocalEnd, Hello)> {
    let failed = |source| io_error(peer, &source);
    configure(stream, template.settings.keep_alive).map_err(failed)?;
    let theirs = read_hello(stream, peer).await?;
    let remote = match Hello::decode(&theirs) {
        Ok(remote) => remote,
        Err(reason) => {
            rejection::send(stream, &reason).await;
            return Err(refused(peer, reason));
        }
    };
    let authenticator = template.settings.authenticator.clone();
    let proved = match authenticator.as_deref() {
        Some(authenticator) => Some((
            authenticator,
            authentication::challenge(stream, peer, &theirs, authenticator).await?,
        )),
        None => None,
    };
    state.set_proved();
    let local = match prepare(template, stream) {
        Ok(local) => local,
        Err(error) => {
            rejection::send(stream, "it could not create a queue pair").await;
            return Err(error.into_error(peer));
        }
    };
    let own = local.hello().encode();
    let reply = authentication::reply(peer, &own, proved);
    stream.write_all(&reply).await.map_err(failed)?;
    Ok((local, remote))
}

/// Sets the options of the TCP connection `stream`: disables Nagle's algorithm, and enables
/// keep-alive probes. By these probes, the kernel detects that the peer's host has failed.
fn configure(stream: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    /// Number of unacknowledged TCP keep-alive probes after which the kernel closes the connection.
    /// Several, so that a lost probe does not end the connection.
    const PROBES: u32 = 4;
    stream.set_nodelay(true)?;
    let quiet = keep_alive / 2;
    let probes = TcpKeepalive::new()
        .with_time(quiet)
        .with_interval((quiet / PROBES).max(Duration::from_secs(1)))
        .with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Creates the queue pair of this end with the device and the settings in `template`. Uses the port
/// address (GID) with the local IP address of the TCP connection. If the device has this GID, RDMA
/// packets take the route of the TCP connection, so the MTU of that route limits the path MTU.
fn prepare(template: Template, stream: &TcpStream) -> Result<LocalEnd, PrepareError> {
    let tcp = stream.local_addr().map_err(PrepareError::Tcp)?;
    let choice = AddressChoice {
        source: Some(tcp.ip()),
        ..template.settings.address
    };
    let mut local = LocalEnd::prepare(template, choice).map_err(PrepareError::Device)?;
    let gid = local.prepared.address().gid.to_ip();
    if gid == tcp.ip().to_canonical() {
        local.route_mtu = path_mtu::of_route(stream);
    }
    Ok(local)
}

/// Reason why the queue pair of this end could not be created: the local address of the TCP
/// connection could not be determined, or the device has failed.
enum PrepareError {
    Tcp(io::Error),
    Device(Error),
}

impl PrepareError {
    /// Converts the reason why no queue pair was created to an [`Error`]. An error of the TCP
    /// connection becomes the error of a failed handshake with `peer`. An error of the device is
    /// unchanged.
    fn into_error(self, peer: SocketAddr) -> Error {
        match self {
            Self::Tcp(source) => io_error(peer, &source),
            Self::Device(error) => error,
        }
    }
}

/// Completes the handshake after the exchange of hellos: connects the queue pair to the peer with
/// the hello `remote`, and waits until the peer's queue pair is connected.
async fn complete_handshake(
    local: LocalEnd,
    mut stream: TcpStream,
    peer: SocketAddr,
    remote: Hello,
) -> Result<Rdma> {
    let failed = |source| io_error(peer, &source);
    let (queue_pair, room) = local
        .connect(&remote.endpoint)
        .map_err(|error| connect_error(peer, error))?;
    let connection = room.into_connection(queue_pair, remote.limits, peer.ip());
    // Attached before `READY` is sent, so that the first message of the peer reaches the
    // connection.
    let address = stream.local_addr().map_err(failed)?;
    let attached = Attached::new(&connection);
    stream.write_all(&[READY]).await.map_err(failed)?;
    match stream.read_u8().await.map_err(failed)? {
        READY => {}
        other => {
            return Err(refused(
                peer,
                format!("it sent {other:#x} instead of the byte {READY:#x} (ready)"),
            ));
        }
    }
    let task = ControlTask::spawn(attached, Link::Tcp(stream));
    Ok(Rdma::new(connection, task, address, peer))
}

/// Converts an error that occurred while connecting the queue pair. An error with an errno comes
/// from the device: the endpoint of the peer is not valid or not reachable.
pub(crate) fn connect_error(peer: SocketAddr, error: rdma_core::Error) -> Error {
    match error.errno() {
        Some(_) => refused(peer, format!("its queue pair cannot be reached: {error}")),
        None => error.into(),
    }
}

/// Reads the hello (first message) of the connecting peer from its TCP connection, and returns the
/// bytes, which the caller decodes. Fails if the magic number is wrong.
async fn read_hello(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; HELLO_LEN]> {
    // The magic number is read first, so that invalid data shorter than a hello is refused without
    // waiting for more.
    let magic = read_magic(stream, peer).await?;
    if magic != hello::MAGIC {
        return Err(refused(peer, "it does not use this protocol"));
    }
    read_rest(stream, peer, magic).await
}

/// Reads the magic number, the first 8 bytes of a message of the handshake, which identifies the
/// kind of the message.
async fn read_magic(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; 8]> {
    let mut magic = [0; 8];
    let read = stream.read_exact(&mut magic).await;
    read.map_err(|source| io_error(peer, &source))?;
    Ok(magic)
}

/// Reads the remaining bytes of a hello, the first message of the peer. The caller has already read
/// the first bytes, `magic`, to identify the kind of the message. Returns the complete hello.
async fn read_rest(
    stream: &mut TcpStream,
    peer: SocketAddr,
    magic: [u8; 8],
) -> Result<[u8; HELLO_LEN]> {
    let mut bytes = [0; HELLO_LEN];
    bytes[..magic.len()].copy_from_slice(&magic);
    let read = stream.read_exact(&mut bytes[magic.len()..]).await;
    read.map_err(|source| io_error(peer, &source))?;
    Ok(bytes)
}

/// Returns the error of a failed handshake with `peer`, with the reason for the failure.
pub(crate) fn refused(peer: SocketAddr, reason: impl Into<String>) -> Error {
    Error::Handshake {
        peer,
        reason: reason.into(),
    }
}

/// Returns the error of a handshake with `peer` that has exceeded its time limit `limit`.
pub(crate) fn too_slow(peer: SocketAddr, limit: Duration) -> Error {
    refused(peer, format!("the handshake took longer than {limit:?}"))
}

/// Returns the error of a handshake that the listener has ended in favor of a waiting peer. The
/// listener does so at its limit of concurrent handshakes, `handshakes`.
pub(crate) fn evicted(peer: SocketAddr, handshakes: usize) -> Error {
    let reason = format!("another peer waits, and the limit of {handshakes} handshakes is reached");
    refused(peer, reason)
}

/// Returns the error of a failed handshake with `peer`. `source` is the error of the TCP
/// connection.
fn io_error(peer: SocketAddr, source: &io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => refused(peer, "it closed the connection early"),
        _ => refused(peer, source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_probes_an_idle_connection_within_the_limit() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let limit = Duration::from_secs(20);
        configure(&stream, limit).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        let quiet = socket.tcp_keepalive_time().unwrap();
        let interval = socket.tcp_keepalive_interval().unwrap();
        let probes = socket.tcp_keepalive_retries().unwrap();
        assert_eq!(quiet, limit / 2);
        let noticed = quiet + interval * probes;
        assert!(noticed > limit / 2 && noticed <= limit, "{noticed:?}");
    }
}
