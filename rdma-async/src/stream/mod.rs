//! [`RdmaStream`]: a connection as a stream of bytes.

mod adapters;
mod listener;
mod read;
mod split;
mod write;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::ToSocketAddrs;

#[cfg(feature = "hyper")]
pub use self::adapters::{Connecting, RdmaConnector};
pub use self::listener::Incoming;
pub use self::read::{OwnedReadHalf, StreamChunk};
pub use self::split::{NotReunited, ReadHalf, WriteHalf};
pub use self::write::OwnedWriteHalf;
use crate::builder::RdmaBuilder;
use crate::error::Result;
use crate::memory::LocalMr;
use crate::rdma::Rdma;

/// A connection as a stream of bytes, which behaves like a TCP connection.
///
/// The stream implements tokio's [`AsyncRead`] and [`AsyncWrite`], so that programs written for
/// [`TcpStream`](tokio::net::TcpStream) run on RDMA. The stream's halves for reading also implement
/// [`AsyncBufRead`](tokio::io::AsyncBufRead).
///
/// - **Writing** copies the bytes once, into registered memory. The first bytes are sent
///   immediately. Further small writes in one turn of the scheduler are collected into one message,
///   which is sent at the end of the turn or when the stream is flushed.
///   [`Self::send_registered`] does not copy.
/// - **Reading** copies the bytes once, out of the memory in which the device has stored them.
///   `AsyncBufRead` and [`Self::read_chunk`] do not copy, except bytes in the ring.
/// - **The ring** is 1 MiB of the reader's memory, into which writes of 32 KiB or more go directly,
///   in pieces of up to 64 KiB. The reader provides the ring when `AsyncRead` reads the
///   first long piece. A stream without long pieces, or that is read only by `AsyncBufRead` and
///   [`Self::read_chunk`], has no ring.
/// - **Backpressure**: while the reader does not read, the writer waits once
///   [`RdmaBuilder::stream_buffer`] bytes are in transit, or the ring is full. The writer's memory
///   is limited by this number, the reader's memory by [`RdmaBuilder::receive_depth`] messages of
///   [`RdmaBuilder::message_length`] bytes, by the long pieces of [`RdmaBuilder::read_ahead`], and
///   by the ring.
/// - **End**: [`shutdown`](tokio::io::AsyncWriteExt::shutdown) ends one direction, and the peer
///   reads the end of the stream after the last byte. Dropping the stream also ends this direction.
///   The runtime delivers the written bytes in the background, as long as the peer accepts some
///   bytes within [`RdmaBuilder::response_timeout`]. If the connection fails, reads fail with
///   [`io::ErrorKind::ConnectionReset`] and writes with [`io::ErrorKind::BrokenPipe`]. A flush
///   then fails with [`io::ErrorKind::BrokenPipe`], and a shutdown with
///   [`io::ErrorKind::NotConnected`], but only if written bytes were not posted to the device.
///
/// ```
/// use rdma_async::{RdmaBuilder, RdmaStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main]
/// # async fn main() -> std::io::Result<()> {
/// let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// let server = async {
///     let mut stream = listener.accept().await?.into_stream();
///     let (mut reader, mut writer) = stream.split();
///     tokio::io::copy(&mut reader, &mut writer).await?;
///     stream.shutdown().await
/// };
/// let client = async {
///     let mut stream = RdmaStream::connect(address).await?;
///     stream.write_all(b"Hello").await?;
///     stream.shutdown().await?;
///     let mut echo = String::new();
///     stream.read_to_string(&mut echo).await?;
///     assert_eq!(echo, "Hello");
///     Ok(())
/// };
/// tokio::try_join!(server, client)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RdmaStream {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

impl Rdma {
    /// Converts the connection to a stream of bytes. The peer must also convert its connection.
    pub fn into_stream(self) -> RdmaStream {
        self.connection().begin_stream();
        let rdma = Arc::new(self);
        RdmaStream {
            reader: OwnedReadHalf::new(Arc::clone(&rdma)),
            writer: OwnedWriteHalf::new(rdma),
        }
    }
}

impl RdmaStream {
    /// Connects to the peer that listens at a TCP address, with default settings. For other
    /// settings, use [`RdmaBuilder::connect`] and [`Rdma::into_stream`].
    ///
    /// # Errors
    ///
    /// The errors of [`RdmaBuilder::connect`].
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        let rdma = RdmaBuilder::default().connect(address).await?;
        Ok(rdma.into_stream())
    }

    /// Returns the TCP address of this end of the stream.
    pub fn local_address(&self) -> SocketAddr {
        self.rdma().local_address()
    }

    /// Returns the TCP address of the peer.
    pub fn peer_address(&self) -> SocketAddr {
        self.rdma().peer_address()
    }

    /// Returns the connection, for example to allocate memory for [`Self::send_registered`]. The
    /// messages and the immediate data of the connection belong to the stream: programs must not
    /// send or receive messages, and must not write with immediate data.
    pub fn rdma(&self) -> &Rdma {
        self.reader.rdma()
    }

    /// Waits for the next bytes of the stream, and returns the memory in which they arrived,
    /// without copying the bytes. Returns `None` at the end of the stream. Bytes in the ring are an
    /// exception, and are copied: the ring exists only after `AsyncRead` has read a long piece of
    /// this stream. Cancel-safe: dropping the future loses no bytes.
    ///
    /// # Errors
    ///
    /// The errors of `AsyncRead` on this stream.
    pub async fn read_chunk(&mut self) -> io::Result<Option<StreamChunk>> {
        self.reader.read_chunk().await
    }

    /// Writes the bytes of a region of registered memory without copying them. Waits until the
    /// stream has room for further bytes ([`RdmaBuilder::stream_buffer`]), but not until the peer
    /// has the bytes. The memory returns to the pool of the device after the transfer. If the
    /// future is dropped while it waits, the region is dropped and nothing is written.
    ///
    /// # Errors
    ///
    /// The errors of writing.
    pub async fn send_registered(&mut self, region: LocalMr) -> io::Result<()> {
        self.writer.send_registered(region).await
    }

    /// Splits the stream into a borrowed reading half and a borrowed writing half, for two futures
    /// of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(&mut self.reader), WriteHalf(&mut self.writer))
    }

    /// Splits the stream into an owned reading half and an owned writing half, for two tasks.
    /// Dropping the writing half ends its direction of the stream.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (self.reader, self.writer)
    }
}

impl AsyncRead for RdmaStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for RdmaStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}
