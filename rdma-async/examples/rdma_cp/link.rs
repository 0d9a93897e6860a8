//! [`Link`]: a connection over RDMA or TCP.

use std::io;

use rdma_async::{CompletionMode, RdmaBuilder, StreamChunk};
use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RdmaListener, RdmaStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Maximum length, in bytes, of a piece in which the file is read and sent. Long enough that the
/// cost of each send is small.
pub(crate) const PIECE: usize = 512 << 10;

/// A connection over RDMA or TCP.
#[derive(Debug)]
pub(crate) enum Link {
    Rdma(RdmaStream),
    Tcp(TcpStream),
}

/// A listener for connections over RDMA or TCP.
#[derive(Debug)]
pub(crate) enum Listener {
    Rdma(RdmaListener),
    Tcp(TcpListener),
}

/// A piece of the file to be sent. For RDMA its memory is registered, so that sending does not
/// copy the bytes.
#[derive(Debug)]
pub(crate) enum Piece {
    Registered(LocalMr),
    Plain(Vec<u8>),
}

/// Received bytes. For RDMA they remain in the memory in which they arrived.
#[derive(Debug)]
pub(crate) enum Arrived {
    Chunk(StreamChunk),
    Plain(Vec<u8>),
}

impl Piece {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Registered(region) => region.as_slice(),
            Self::Plain(bytes) => bytes,
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Registered(region) => region.as_mut_slice(),
            Self::Plain(bytes) => bytes,
        }
    }
}

impl Arrived {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Chunk(chunk) => chunk,
            Self::Plain(bytes) => bytes,
        }
    }
}

/// Returns the settings of connections over RDMA: tasks wait for completion events instead of
/// polling. The pieces of a file are long, so waiting for events adds little time. The processors
/// stay free for the threads that read and write files.
fn builder() -> RdmaBuilder {
    RdmaBuilder::default().completion(CompletionMode::Event)
}

impl Listener {
    pub(crate) async fn bind(address: &str, tcp: bool) -> anyhow::Result<Self> {
        Ok(match tcp {
            true => Self::Tcp(TcpListener::bind(address).await?),
            false => Self::Rdma(builder().bind(address).await?),
        })
    }

    pub(crate) fn address(&self) -> anyhow::Result<std::net::SocketAddr> {
        Ok(match self {
            Self::Rdma(listener) => listener.local_address()?,
            Self::Tcp(listener) => listener.local_addr()?,
        })
    }

    pub(crate) async fn accept(&mut self) -> anyhow::Result<Link> {
        Ok(match self {
            Self::Rdma(listener) => Link::Rdma(listener.accept_stream().await?.0),
            Self::Tcp(listener) => Link::Tcp(listener.accept().await?.0),
        })
    }
}

impl Link {
    pub(crate) async fn connect(address: &str, tcp: bool) -> anyhow::Result<Self> {
        Ok(match tcp {
            true => Self::Tcp(TcpStream::connect(address).await?),
            false => Self::Rdma(builder().connect(address).await?.into_stream()),
        })
    }

    /// Allocates a piece of `len` bytes, in registered memory if the connection uses RDMA.
    pub(crate) fn piece(&self, len: usize) -> anyhow::Result<Piece> {
        Ok(match self {
            Self::Rdma(stream) => {
                let layout = std::alloc::Layout::from_size_align(len, 1)?;
                Piece::Registered(stream.rdma().alloc_local_mr_stale(layout)?)
            }
            Self::Tcp(_) => Piece::Plain(vec![0; len]),
        })
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Rdma(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
            Self::Tcp(stream) => stream.write_all(bytes).await,
        }
    }

    pub(crate) async fn send_piece(&mut self, piece: Piece) -> io::Result<()> {
        match (self, piece) {
            (Self::Rdma(stream), Piece::Registered(region)) => stream.send_registered(region).await,
            (link, piece) => link.send(piece.bytes()).await,
        }
    }

    pub(crate) async fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Rdma(stream) => stream.read_exact(buffer).await,
            Self::Tcp(stream) => stream.read_exact(buffer).await,
        }
        .map(drop)
    }

    /// Waits for the next bytes of the file, at most `max`. Fails at the end of the connection.
    pub(crate) async fn receive_some(&mut self, max: usize) -> io::Result<Arrived> {
        match self {
            // A chunk contains only bytes of the file, because the sender waits for the checksum
            // before it sends more.
            Self::Rdma(stream) => match stream.read_chunk().await? {
                Some(chunk) => Ok(Arrived::Chunk(chunk)),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Self::Tcp(stream) => {
                let mut bytes = vec![0; max.min(PIECE)];
                let len = stream.read(&mut bytes).await?;
                bytes.truncate(len);
                match len {
                    0 => Err(io::ErrorKind::UnexpectedEof.into()),
                    _ => Ok(Arrived::Plain(bytes)),
                }
            }
        }
    }
}
