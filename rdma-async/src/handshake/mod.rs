//! The handshake: the exchange over TCP by which two ends connect their queue pairs.
//!
//! The connecting end sends a [`Hello`] first and the accepting end answers with one. Both then
//! connect their queue pairs and send [`READY`], after which either may send messages. The TCP
//! connection stays open without further data; its end means that the peer has closed the connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdma_core::{AddressChoice, Endpoint, PreparedQueuePair};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::builder::Template;
use crate::connection::{Attached, Connection, ControlTask, Depths, Parts};
use crate::error::{Error, Result};
use crate::rdma::Rdma;
use crate::shard::Reservation;

const MAGIC: [u8; 8] = *b"RDMAsync";
const VERSION: u16 = 1;
const READY: u8 = 0x06;
/// Maximum bytes, including the header of a message, that a request copies (inline data) instead of
/// referring to memory.
const INLINE: u32 = 64;

/// First message of either end of the handshake. Numbers are in network byte order.
///
/// ```text
/// byte 0..8    8..10     10..12       12..14          14..18            18..47
///      magic   version   data depth   control depth   longest payload   endpoint
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    depths: Depths,
    payload: u32,
    endpoint: Endpoint,
}

const HELLO_LEN: usize = 18 + Endpoint::ENCODED_LEN;

impl Hello {
    fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.depths.data.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.depths.control.to_be_bytes());
        bytes[14..18].copy_from_slice(&self.payload.to_be_bytes());
        bytes[18..].copy_from_slice(&self.endpoint.to_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, String> {
        let short = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err("it does not speak this protocol".to_owned());
        }
        if short(8) != VERSION {
            return Err(format!(
                "it speaks version {}, and this end {VERSION}",
                short(8)
            ));
        }
        let depths = Depths {
            data: short(10),
            control: short(12),
        };
        if depths.data < 2 || depths.control < 2 {
            return Err("it takes too few messages to talk to".to_owned());
        }
        let endpoint = bytes[18..]
            .try_into()
            .expect("the rest of a hello is an endpoint");
        Ok(Self {
            depths,
            payload: u32::from_be_bytes(bytes[14..18].try_into().expect("four bytes")),
            endpoint: Endpoint::from_bytes(endpoint).map_err(|error| error.to_string())?,
        })
    }
}

/// Performs the handshake of the connecting end.
pub(crate) async fn connect(
    place: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Rdma> {
    let failed = |source| interrupted(peer, &source);
    let local = Local::prepare(&place, stream.local_addr().map_err(failed)?)?;
    configure(&stream, place.settings.keep_alive).map_err(failed)?;
    stream
        .write_all(&local.hello(&place).encode())
        .await
        .map_err(failed)?;
    let remote = read_hello(&mut stream, peer).await?;
    local.finish(place, stream, peer, remote).await
}

/// Performs the handshake of the accepting end. Creates no queue pair before a valid [`Hello`] has
/// arrived.
pub(crate) async fn accept(
    place: Template,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Result<Rdma> {
    let failed = |source| interrupted(peer, &source);
    configure(&stream, place.settings.keep_alive).map_err(failed)?;
    let remote = read_hello(&mut stream, peer).await?;
    let local = Local::prepare(&place, stream.local_addr().map_err(failed)?)?;
    stream
        .write_all(&local.hello(&place).encode())
        .await
        .map_err(failed)?;
    local.finish(place, stream, peer, remote).await
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

/// Unconnected queue pair of this end, with reserved room for its completions and messages.
struct Local {
    prepared: PreparedQueuePair,
    reservation: Reservation,
}

impl Local {
    /// Creates the queue pair. It uses the GID that fits `tcp`, the local address of the TCP
    /// connection, because the peer is reached from there.
    fn prepare(place: &Template, tcp: SocketAddr) -> Result<Self> {
        let settings = &place.settings;
        let address = AddressChoice {
            source: Some(tcp.ip()),
            ..settings.address
        };
        let shard = place.device.shard(settings.profile())?;
        let Depths { data, control } = settings.depths();
        let messages = usize::from(data) + usize::from(control);
        let reservation = Reservation::new(shard, settings.send_depth as usize, messages)?;
        let make = |inline| {
            let builder = place
                .device
                .protection_domain()
                .queue_pair()
                .send_requests(settings.send_depth)
                .elements(2)
                .inline_data(inline)
                .address(address);
            reservation.shard().prepare(builder).build()
        };
        // Devices do not report their inline limit; most accept this many bytes.
        let prepared = make(INLINE).or_else(|_| make(0))?;
        Ok(Self {
            prepared,
            reservation,
        })
    }

    fn hello(&self, place: &Template) -> Hello {
        Hello {
            depths: place.settings.depths(),
            payload: u32::try_from(place.settings.payload).unwrap_or(u32::MAX),
            endpoint: self.prepared.endpoint(),
        }
    }

    async fn finish(
        self,
        place: Template,
        mut stream: TcpStream,
        peer: SocketAddr,
        remote: Hello,
    ) -> Result<Rdma> {
        let failed = |source| interrupted(peer, &source);
        let queue_pair = self
            .prepared
            .connect(&remote.endpoint, &place.settings.options)
            .map_err(|error| match error {
                // An error with an errno comes from the device: the peer's endpoint is unusable.
                error if error.errno().is_some() => {
                    refused(peer, format!("its queue pair cannot be reached: {error}"))
                }
                error => error.into(),
            })?;
        let Template { device, settings } = place;
        let connection = Connection::new(Parts {
            queue_pair,
            device,
            reservation: self.reservation,
            settings,
            peer: remote.depths,
            peer_payload: remote.payload as usize,
        });
        // The connection stays attached to its shard until its control task ends.
        let local = stream.local_addr().map_err(failed)?;
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
        let task = ControlTask::spawn(attached, stream);
        Ok(Rdma::new(connection, task, local, peer))
    }
}

async fn read_hello(stream: &mut TcpStream, peer: SocketAddr) -> Result<Hello> {
    let mut bytes = [0; HELLO_LEN];
    // The magic is read first, so that garbage shorter than a hello is refused without waiting.
    let (magic, rest) = bytes.split_at_mut(MAGIC.len());
    stream
        .read_exact(magic)
        .await
        .map_err(|source| interrupted(peer, &source))?;
    if *magic != MAGIC {
        return Err(refused(peer, "it does not speak this protocol"));
    }
    stream
        .read_exact(rest)
        .await
        .map_err(|source| interrupted(peer, &source))?;
    Hello::decode(&bytes).map_err(|reason| refused(peer, reason))
}

fn refused(peer: SocketAddr, reason: impl Into<String>) -> Error {
    Error::Handshake {
        peer,
        reason: reason.into(),
    }
}

fn interrupted(peer: SocketAddr, source: &io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => refused(peer, "it closed the connection before the end"),
        _ => refused(peer, source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use rdma_core::{Gid, Mtu};

    use super::*;

    fn hello() -> Hello {
        Hello {
            depths: Depths {
                data: 64,
                control: 32,
            },
            payload: 4096,
            endpoint: Endpoint {
                queue_pair: 17,
                packet_sequence: 0xabcdef,
                gid: Gid([9; 16]),
                lid: 0,
                mtu: Mtu::Mtu1024,
                incoming_reads: 16,
                outgoing_reads: 16,
            },
        }
    }

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

    #[test]
    fn hellos_round_trip() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn wrong_hellos_are_refused_with_the_reason() {
        let spoiled = |at: usize, value: u8| {
            let mut bytes = hello().encode();
            bytes[at] = value;
            Hello::decode(&bytes).unwrap_err()
        };
        assert_eq!(spoiled(0, b'x'), "it does not speak this protocol");
        assert_eq!(spoiled(9, 2), "it speaks version 2, and this end 1");
        assert_eq!(spoiled(11, 0), "it takes too few messages to talk to");
        assert!(spoiled(18 + 26, 0).contains("no such path MTU"));
    }
}
