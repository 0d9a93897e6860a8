//! The handshake: the exchange over TCP by which two ends connect their queue pairs.
//!
//! The connecting end sends a [`Hello`] first and the accepting end answers with one. Both then
//! connect their queue pairs and send [`READY`], after which either may send messages. The TCP
//! connection stays open without further data; its end means that the peer has closed the
//! connection.
//!
//! An accepting end with an [`Authenticator`](crate::Authenticator) answers the first hello with a
//! challenge instead, and sends its hello only after the proof of the peer: see [`authentication`].
//! An end that refuses the peer sends a [denial](denial) with the reason.

mod authentication;
mod denial;
mod hello;
mod local;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdma_core::AddressChoice;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) use self::hello::{HELLO_LEN, Hello, Terms};
pub(crate) use self::local::{Local, Room};
use crate::builder::Template;
use crate::connection::{Attached, ControlTask, Link};
use crate::error::{Error, Result};
use crate::rdma::Rdma;

/// Byte that each end sends once it can receive.
pub(crate) const READY: u8 = 0x06;

/// Performs the handshake of the connecting end.
pub(crate) async fn connect(
    place: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Rdma> {
    let failed = |source| interrupted(peer, &source);
    configure(&stream, place.settings.keep_alive).map_err(failed)?;
    let authenticator = place.settings.authenticator.clone();
    let local = prepare(place, &stream).map_err(|error| error.into_error(peer))?;
    let own = local.hello().encode();
    stream.write_all(&own).await.map_err(failed)?;
    let authenticator = authenticator.as_deref();
    let theirs = authentication::read_answer(&mut stream, peer, &own, authenticator).await?;
    let remote = Hello::decode(&theirs).map_err(|reason| refused(peer, reason))?;
    finish(local, stream, peer, remote).await
}

/// Performs the handshake of the accepting end. Creates no queue pair before the peer has sent a
/// valid [`Hello`] and, if the settings have an authenticator, a valid proof; then sets
/// `has_proved`.
pub(crate) async fn accept(
    place: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
    has_proved: &AtomicBool,
) -> Result<Rdma> {
    let failed = |source| interrupted(peer, &source);
    configure(&stream, place.settings.keep_alive).map_err(failed)?;
    let theirs = read_hello(&mut stream, peer).await?;
    let remote = match Hello::decode(&theirs) {
        Ok(remote) => remote,
        Err(reason) => {
            denial::send(&mut stream, &reason).await;
            return Err(refused(peer, reason));
        }
    };
    let authenticator = place.settings.authenticator.clone();
    let proved = match authenticator.as_deref() {
        Some(authenticator) => Some((
            authenticator,
            authentication::challenge(&mut stream, peer, &theirs, authenticator).await?,
        )),
        None => None,
    };
    has_proved.store(true, Ordering::Relaxed);
    let local = match prepare(place, &stream) {
        Ok(local) => local,
        Err(error) => {
            denial::send(&mut stream, "it could not create a queue pair").await;
            return Err(error.into_error(peer));
        }
    };
    let own = local.hello().encode();
    let answer = authentication::answer(peer, &own, proved);
    stream.write_all(&answer).await.map_err(failed)?;
    finish(local, stream, peer, remote).await
}

/// Disables Nagle's algorithm, and enables keep-alive probes, which detect that the peer's host is
/// gone.
fn configure(stream: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    /// Number of unanswered probes after which the peer is considered gone.
    const PROBES: u32 = 4;
    stream.set_nodelay(true)?;
    let quiet = keep_alive / 2;
    let probes = TcpKeepalive::new()
        .with_time(quiet)
        .with_interval((quiet / PROBES).max(Duration::from_secs(1)))
        .with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Creates the queue pair of this end, with the GID that fits the local address of the TCP
/// connection, because the peer is reached from there.
fn prepare(place: Template, stream: &TcpStream) -> Result<Local, Unprepared> {
    let tcp = stream.local_addr().map_err(Unprepared::Tcp)?;
    let choice = AddressChoice {
        source: Some(tcp.ip()),
        ..place.settings.address
    };
    Local::prepare(place, choice).map_err(Unprepared::Device)
}

/// Reason why the queue pair of this end was not created.
enum Unprepared {
    Tcp(io::Error),
    Device(Error),
}

impl Unprepared {
    fn into_error(self, peer: SocketAddr) -> Error {
        match self {
            Self::Tcp(source) => interrupted(peer, &source),
            Self::Device(error) => error,
        }
    }
}

/// Connects the queue pair, and waits until both ends are ready.
async fn finish(
    local: Local,
    mut stream: TcpStream,
    peer: SocketAddr,
    remote: Hello,
) -> Result<Rdma> {
    let failed = |source| interrupted(peer, &source);
    let (queue_pair, room) = local
        .connect(&remote.endpoint)
        .map_err(|error| connect_error(peer, error))?;
    let connection = room.occupy(queue_pair, remote.terms, peer.ip());
    // The connection stays attached to its shard until its control task ends.
    let address = stream.local_addr().map_err(failed)?;
    let attached = Attached::new(&connection);
    stream.write_all(&[READY]).await.map_err(failed)?;
    match stream.read_u8().await.map_err(failed)? {
        READY => {}
        other => {
            return Err(refused(
                peer,
                format!("it said {other:#x} when it should be ready"),
            ));
        }
    }
    let task = ControlTask::spawn(attached, Link::Tcp(stream));
    Ok(Rdma::new(connection, task, address, peer))
}

/// Returns the error of a queue pair that cannot be connected. An error with an errno comes from
/// the device: the peer's endpoint is unusable.
pub(crate) fn connect_error(peer: SocketAddr, error: rdma_core::Error) -> Error {
    match error.errno() {
        Some(_) => refused(peer, format!("its queue pair cannot be reached: {error}")),
        None => error.into(),
    }
}

/// Reads the hello of a connecting peer, without decoding it.
async fn read_hello(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; HELLO_LEN]> {
    // The magic is read first, so that garbage shorter than a hello is refused without waiting.
    let magic = read_magic(stream, peer).await?;
    if magic != hello::MAGIC {
        return Err(refused(peer, "it does not speak this protocol"));
    }
    read_rest(stream, peer, magic).await
}

async fn read_magic(stream: &mut TcpStream, peer: SocketAddr) -> Result<[u8; 8]> {
    let mut magic = [0; 8];
    let read = stream.read_exact(&mut magic).await;
    read.map_err(|source| interrupted(peer, &source))?;
    Ok(magic)
}

/// Reads the rest of a hello whose first bytes are `magic`.
async fn read_rest(
    stream: &mut TcpStream,
    peer: SocketAddr,
    magic: [u8; 8],
) -> Result<[u8; HELLO_LEN]> {
    let mut bytes = [0; HELLO_LEN];
    bytes[..magic.len()].copy_from_slice(&magic);
    let read = stream.read_exact(&mut bytes[magic.len()..]).await;
    read.map_err(|source| interrupted(peer, &source))?;
    Ok(bytes)
}

pub(crate) fn refused(peer: SocketAddr, reason: impl Into<String>) -> Error {
    Error::Handshake {
        peer,
        reason: reason.into(),
    }
}

pub(crate) fn too_slow(peer: SocketAddr, limit: Duration) -> Error {
    refused(peer, format!("it took longer than {limit:?}"))
}

fn interrupted(peer: SocketAddr, source: &io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => refused(peer, "it closed the connection before the end"),
        _ => refused(peer, source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_tests_an_idle_connection_within_the_limit() {
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
