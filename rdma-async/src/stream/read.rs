//! [`OwnedReadHalf`]: the reading half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};
use tokio_util::sync::ReusableBoxFuture;

use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess};
use crate::observe::observed_arrival;
use crate::rdma::Rdma;

/// The owned reading half of an [`RdmaStream`](crate::RdmaStream), created by
/// [`RdmaStream::into_split`](crate::RdmaStream::into_split).
pub struct OwnedReadHalf {
    /// Received bytes that are not yet read.
    chunk: Option<StreamChunk>,
    /// Future that receives the next chunk, in progress if `is_receiving`.
    receiving: Receiving,
    is_receiving: bool,
    has_ended: bool,
    /// Error of a failed receive. All later reads repeat the error, because bytes are missing after
    /// it.
    failure: Option<Error>,
    rdma: Arc<Rdma>,
}

type Receiving = ReusableBoxFuture<'static, Result<LocalMr>>;

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedReadHalf")
            .field("rdma", &self.rdma)
            .field("unread", &self.chunk.as_deref().map_or(0, <[u8]>::len))
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

impl OwnedReadHalf {
    pub(super) fn new(rdma: Arc<Rdma>) -> Self {
        Self {
            chunk: None,
            receiving: ReusableBoxFuture::new(receive(Arc::clone(&rdma))),
            is_receiving: true,
            has_ended: false,
            failure: None,
            rdma,
        }
    }

    /// Returns the connection of the stream.
    pub fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// Returns whether this is a half of the stream over the connection `rdma`.
    pub(super) fn is_half_of(&self, rdma: &Arc<Rdma>) -> bool {
        Arc::ptr_eq(&self.rdma, rdma)
    }

    /// Waits for the next bytes, like [`RdmaStream::read_chunk`](crate::RdmaStream::read_chunk).
    ///
    /// # Errors
    ///
    /// The errors of reading.
    pub async fn read_chunk(&mut self) -> io::Result<Option<StreamChunk>> {
        poll_fn(|cx| self.poll_fill(cx)).await?;
        Ok(self.chunk.take())
    }

    /// Polls until `chunk` has unread bytes or the stream has ended. Receives the next message if
    /// necessary.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.chunk.is_none() && !self.has_ended {
            if let Some(error) = &self.failure {
                return Poll::Ready(Err(read_error(error.clone())));
            }
            if !self.is_receiving {
                self.receiving.set(receive(Arc::clone(&self.rdma)));
                self.is_receiving = true;
            }
            let received = ready!(self.receiving.poll(cx));
            self.is_receiving = false;
            match received {
                Err(error) => self.failure = Some(error),
                Ok(region) if region.length() == 0 => self.has_ended = true,
                Ok(region) => self.chunk = Some(StreamChunk { region, start: 0 }),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the received bytes that are not yet read.
    fn unread(&self) -> &[u8] {
        self.chunk.as_deref().unwrap_or_default()
    }

    /// Marks the first `amount` unread bytes as read. Panics if there are fewer.
    fn skip(&mut self, amount: usize) {
        let Some(chunk) = &mut self.chunk else {
            assert_eq!(amount, 0, "more bytes consumed than filled");
            return;
        };
        assert!(amount <= chunk.len(), "more bytes consumed than filled");
        chunk.start += amount;
        if chunk.is_empty() {
            self.chunk = None;
        }
    }
}

/// Receives the next message of the connection, which contains the next bytes of the stream.
async fn receive(rdma: Arc<Rdma>) -> Result<LocalMr> {
    let connection = rdma.connection();
    observed_arrival!(connection, StreamRead, LocalMrReadAccess::length, {
        connection.receive().await.map(|(piece, _)| piece)
    })
}

/// Converts an error of the connection to the error that a TCP reader would get.
fn read_error(error: Error) -> io::Error {
    match error {
        Error::Disconnected { .. } | Error::Work(_) | Error::Refused { .. } => {
            io::Error::new(io::ErrorKind::ConnectionReset, error)
        }
        other => other.into(),
    }
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_fill(cx))?;
        let len = self.unread().len().min(buf.remaining());
        buf.put_slice(&self.unread()[..len]);
        self.skip(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for OwnedReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_fill(cx))?;
        Poll::Ready(Ok(this.unread()))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.skip(amount);
    }
}

/// Received bytes of a stream, in the registered memory in which they arrived. Dropping the chunk
/// returns the memory to the device's pool.
pub struct StreamChunk {
    region: LocalMr,
    /// Number of bytes at the beginning of `region` that are already read.
    start: usize,
}

impl fmt::Debug for StreamChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamChunk")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Deref for StreamChunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region.as_slice()[self.start..]
    }
}

impl AsRef<[u8]> for StreamChunk {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
