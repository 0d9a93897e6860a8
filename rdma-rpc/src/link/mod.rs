//! [`Link`]: the common interface of the transports RDMA, TCP, TLS and memory.
//!
//! The outbox of a connection passes batches to a link. A transport passes received messages to
//! [`Core::handle`]. [`Link::try_send`] never waits. Only the flusher waits, in [`Link::send`].

mod memory;
mod rdma;
mod tcp;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;

use rdma_async::{RdmaBuilder, RdmaListener};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use self::memory::MemoryLink;
pub(crate) use self::memory::{MemoryListener, MemoryPort};
use self::rdma::RdmaLink;
use self::tcp::TcpLink;
use crate::address::{Address, AddressKind, Peer, Transport};
use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;
use crate::payload::Buffer;

/// One end of the transport of a connection: RDMA, TCP, TLS, or channels within the process. Sends
/// batches (messages with one or more frames) and receives messages.
#[derive(Debug)]
pub(crate) enum Link {
    Rdma(RdmaLink),
    Tcp(TcpLink),
    #[cfg(feature = "tls")]
    Tls(tls::TlsLink),
    Memory(MemoryLink),
}

/// TLS settings for TCP connections. Empty without the feature `tls`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Encryption {
    #[cfg(feature = "tls")]
    pub(crate) server: Option<Arc<tokio_rustls::rustls::ServerConfig>>,
    #[cfg(feature = "tls")]
    pub(crate) client: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
}

impl Link {
    /// Creates a link over an established RDMA connection. Returns the link and the description of
    /// its peer.
    pub(crate) fn over_rdma(rdma: rdma_async::Rdma) -> (Self, Peer) {
        let peer = Peer {
            transport: Transport::Rdma,
            address: Some(rdma.peer_address()),
            certificate: None,
        };
        (Self::Rdma(RdmaLink::new(rdma)), peer)
    }

    /// Creates a link over an established TCP connection without TLS. Returns the link and the
    /// description of its peer.
    fn over_tcp(stream: TcpStream) -> Result<(Self, Peer), Error> {
        let peer = peer_of(&stream)?;
        Ok((Self::Tcp(TcpLink::new(stream)?), peer))
    }

    /// Creates a link over `link`, one end of a connection within this process. Returns the link
    /// and the description of its peer.
    fn over_memory(link: MemoryLink) -> (Self, Peer) {
        let peer = Peer {
            transport: Transport::Memory,
            address: None,
            certificate: None,
        };
        (Self::Memory(link), peer)
    }

    /// Connects to the server at `address`. Returns the transport of the connection, and a
    /// description of the server, such as its address. `transport` contains the settings of an RDMA
    /// connection, and `encryption` the TLS settings of a TCP connection.
    pub(crate) async fn connect(
        address: &Address,
        transport: RdmaBuilder,
        encryption: &Encryption,
    ) -> Result<(Self, Peer), Error> {
        match &address.0 {
            AddressKind::Rdma(address) => Ok(Self::over_rdma(transport.connect(address).await?)),
            AddressKind::Tcp(address) => {
                let stream = TcpStream::connect(address);
                let stream = stream
                    .await
                    .map_err(|cause| Error::tcp("connecting", cause))?;
                encryption.connect(stream, address).await
            }
            AddressKind::Memory(port) => Ok(Self::over_memory(port.connect()?)),
        }
    }

    /// Returns the RDMA connection, for one-sided operations on memory of the peer. Returns `None`
    /// if the transport is TCP, TLS or in memory.
    pub(crate) fn rdma(&self) -> Option<&rdma_async::Rdma> {
        match self {
            Self::Rdma(link) => Some(link.rdma()),
            _ => None,
        }
    }

    /// Returns the number of bytes of the prefix of each message. The prefix has 4 bytes over TCP
    /// and TLS, which contain the length of the message, and 0 bytes over other transports.
    pub(crate) fn prefix(&self) -> usize {
        match self {
            Self::Tcp(_) => tcp::PREFIX_LEN,
            #[cfg(feature = "tls")]
            Self::Tls(_) => tcp::PREFIX_LEN,
            Self::Rdma(_) | Self::Memory(_) => 0,
        }
    }

    /// Allocates a buffer of `len` bytes from which this transport can send a message without a
    /// copy.
    pub(crate) fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        match self {
            Self::Rdma(link) => link.allocate(len),
            Self::Tcp(_) => Ok(Buffer::Heap(vec![0; len])),
            #[cfg(feature = "tls")]
            Self::Tls(_) => Ok(Buffer::Heap(vec![0; len])),
            Self::Memory(link) => Ok(Buffer::Heap(link.allocate(len))),
        }
    }

    /// Sends as much of a batch (a message with one or more frames) as the transport accepts
    /// without waiting. Returns `true` if all bytes were sent, and `false` if unsent bytes remain.
    pub(crate) fn try_send(&self, batch: &mut Batch) -> Result<bool, Error> {
        match self {
            Self::Rdma(link) => link.try_send(batch),
            Self::Tcp(link) => Ok(link.try_send(batch)),
            #[cfg(feature = "tls")]
            Self::Tls(link) => Ok(link.try_send(batch)),
            Self::Memory(link) => Ok(link.try_send(batch)),
        }
    }

    /// Sends the unsent bytes of a batch (a message with one or more frames). Waits while the
    /// transport cannot accept further bytes.
    pub(crate) async fn send(&self, batch: &mut Batch) -> Result<(), Error> {
        match self {
            Self::Rdma(link) => return link.send(batch).await,
            Self::Tcp(link) => link.send(batch).await,
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.send(batch).await,
            Self::Memory(link) => link.send(batch).await,
        }
        Ok(())
    }

    /// Closes the sending direction of the connection, so that the peer closes the connection after
    /// the last message. Over RDMA and in memory, this operation does not exist: returns `false`,
    /// and does nothing.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "TLS waits for the socket")
    )]
    pub(crate) async fn end_sending(&self) -> bool {
        match self {
            Self::Tcp(link) => link.end_sending(),
            #[cfg(feature = "tls")]
            Self::Tls(link) => link.end_sending().await,
            Self::Rdma(_) | Self::Memory(_) => return false,
        }
        true
    }

    /// Returns whether the transport can send a long message and other messages at the same time.
    /// If so, the peer can receive the messages in any order.
    pub(crate) fn sends_concurrently(&self) -> bool {
        matches!(self, Self::Rdma(_))
    }
}

/// Spawns the task that receives and handles the messages of a connection. Returns `None` if the
/// connection has already ended.
pub(crate) fn receive(core: &Arc<Core>) -> Option<JoinHandle<()>> {
    let link = core.outbox.link()?;
    let core = Arc::clone(core);
    if let Link::Rdma(rdma) = &*link {
        rdma.handle_messages(&core);
    }
    Some(tokio::spawn(async move {
        let stopped = FailOnDrop(Arc::clone(&core));
        let end = tokio::select! {
            end = async {
                match &*link {
                    Link::Rdma(link) => link.receive(&core).await,
                    Link::Tcp(link) => link.receive(&core).await,
                    #[cfg(feature = "tls")]
                    Link::Tls(link) => link.receive(&core).await,
                    Link::Memory(link) => link.receive(&core).await,
                }
            } => end,
            end = core.ended() => end,
        };
        drop(link);
        core.fail(end);
        drop(stopped);
    }))
}

/// Guard that ends the connection when its receiving task ends, also if the runtime drops the task.
struct FailOnDrop(Arc<Core>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        let reason = "the runtime of the connection has ended";
        self.0.fail(Error::disconnected(reason));
    }
}

/// Returns the description of the peer of a TCP connection: the transport and the peer's address.
/// For a connection with TLS, `with_certificate` adds the certificate later.
fn peer_of(stream: &TcpStream) -> Result<Peer, Error> {
    let address = stream
        .peer_addr()
        .map_err(|cause| Error::tcp("querying the peer's address", cause))?;
    Ok(Peer {
        transport: Transport::Tcp,
        address: Some(address),
        certificate: None,
    })
}

impl Encryption {
    /// Creates the client's link over a TCP connection to the server at `address`, with TLS if the
    /// client has TLS settings.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "TLS waits for the server")
    )]
    async fn connect(&self, stream: TcpStream, address: &str) -> Result<(Link, Peer), Error> {
        #[cfg(feature = "tls")]
        if let Some(config) = &self.client {
            let peer = peer_of(&stream)?;
            let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
            let name = name.trim_start_matches('[').trim_end_matches(']');
            let link = tls::TlsLink::connect(stream, config, name).await?;
            return Ok(with_certificate(link, peer));
        }
        let _ = address;
        Link::over_tcp(stream)
    }
}

#[cfg(feature = "tls")]
/// Converts a connected TLS link to a [`Link`]. Returns the link, and `peer` with the certificate
/// of the peer added.
fn with_certificate(link: tls::TlsLink, peer: Peer) -> (Link, Peer) {
    let peer = Peer {
        certificate: link.certificate(),
        ..peer
    };
    (Link::Tls(link), peer)
}

/// Connection of a client that a listener has accepted. A TCP connection needs a TLS handshake if
/// the server has TLS settings.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// A connection that is ready.
    Link((Link, Peer)),
    /// A TCP connection, which may need a TLS handshake.
    Tcp(TcpStream),
}

impl Accepted {
    /// Completes the TLS handshake, if the server has TLS settings, and returns the server's link.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "TLS waits for the client")
    )]
    pub(crate) async fn into_link(self, encryption: &Encryption) -> Result<(Link, Peer), Error> {
        let stream = match self {
            Self::Link(link) => return Ok(link),
            Self::Tcp(stream) => stream,
        };
        #[cfg(feature = "tls")]
        if let Some(config) = &encryption.server {
            let peer = peer_of(&stream)?;
            let link = tls::TlsLink::accept(stream, config).await?;
            return Ok(with_certificate(link, peer));
        }
        let _ = encryption;
        Link::over_tcp(stream)
    }
}

/// Listener of a server, which accepts clients over one transport: RDMA, TCP or memory.
#[derive(Debug)]
pub(crate) enum Listener {
    Rdma(RdmaListener),
    Tcp(TcpListener),
    Memory(MemoryListener),
}

impl Listener {
    /// Creates a listener at an address. `transport` contains the settings for RDMA addresses.
    pub(crate) async fn bind(address: &Address, transport: RdmaBuilder) -> Result<Self, Error> {
        Ok(match &address.0 {
            AddressKind::Rdma(address) => Self::Rdma(transport.bind(address).await?),
            AddressKind::Tcp(address) => {
                let listener = TcpListener::bind(address).await;
                Self::Tcp(listener.map_err(|cause| Error::tcp("listening", cause))?)
            }
            AddressKind::Memory(port) => Self::Memory(port.listen()?),
        })
    }

    /// Returns the address at which clients connect, with the port that the operating system chose.
    pub(crate) fn address(&self) -> Result<Address, Error> {
        Ok(Address(match self {
            Self::Rdma(listener) => AddressKind::Rdma(listener.local_address()?.to_string()),
            Self::Tcp(listener) => {
                let address = listener.local_addr();
                let address =
                    address.map_err(|cause| Error::tcp("querying the listening address", cause))?;
                AddressKind::Tcp(address.to_string())
            }
            Self::Memory(listener) => AddressKind::Memory(listener.port().clone()),
        }))
    }

    /// Waits for the next client, and returns its connection. This function is cancel-safe.
    pub(crate) async fn accept(&mut self) -> Result<Accepted, Error> {
        Ok(match self {
            Self::Rdma(listener) => Accepted::Link(Link::over_rdma(listener.accept().await?)),
            Self::Tcp(listener) => {
                let accepted = listener.accept().await;
                let (stream, _) = accepted.map_err(|cause| Error::tcp("accepting", cause))?;
                Accepted::Tcp(stream)
            }
            Self::Memory(listener) => Accepted::Link(Link::over_memory(listener.accept().await?)),
        })
    }
}
