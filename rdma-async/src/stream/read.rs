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

use crate::connection::{LONG_LEN, RingPiece, StreamPiece};
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess};
use crate::observe::observed_arrival;
use crate::rdma::Rdma;

/// The owned reading half of an [`RdmaStream`](crate::RdmaStream), created by
/// [`RdmaStream::into_split`](crate::RdmaStream::into_split).
pub struct OwnedReadHalf {
    /// Received bytes that are not yet read.
    unread: Option<Unread>,
    /// Set if `unread` is a piece of at least [`LONG_LEN`] bytes that did not arrive in the ring of
    /// this end.
    is_long: bool,
    /// Future that receives the next chunk, in progress if `is_receiving`.
    receiving: Receiving,
    is_receiving: bool,
    has_ended: bool,
    /// Error of a failed receive. All later reads repeat the error, because bytes are missing after
    /// it.
    failure: Option<Error>,
    rdma: Arc<Rdma>,
}

type Receiving = ReusableBoxFuture<'static, Result<StreamPiece>>;

/// Received bytes of the stream that the program has not yet read: in a region that only this end
/// can access, or in this end's ring.
enum Unread {
    Chunk(StreamChunk),
    /// Piece in the ring of this end, to whose memory the peer may write at any moment, and the
    /// number of its bytes that are already read.
    InRing(RingPiece, usize),
}

impl Unread {
    fn len(&self) -> usize {
        match self {
            Self::Chunk(chunk) => chunk.len(),
            Self::InRing(piece, start) => piece.len() - start,
        }
    }
}

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedReadHalf")
            .field("rdma", &self.rdma)
            .field("unread", &self.unread.as_ref().map_or(0, Unread::len))
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

impl OwnedReadHalf {
    pub(super) fn new(rdma: Arc<Rdma>) -> Self {
        Self {
            unread: None,
            is_long: false,
            receiving: ReusableBoxFuture::new(receive(Arc::clone(&rdma))),
            is_receiving: true,
            has_ended: false,
            failure: None,
            rdma,
        }
    }

    /// Returns the connection of the stream, for example for its addresses. The program must not
    /// send or receive messages or immediate data on this connection, see
    /// [`RdmaStream::rdma`](crate::RdmaStream::rdma).
    pub fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// Returns whether this half belongs to the stream over the connection `rdma`. Only two halves
    /// of the same stream can be joined.
    pub(super) fn is_half_of(&self, rdma: &Arc<Rdma>) -> bool {
        Arc::ptr_eq(&self.rdma, rdma)
    }

    /// Waits for the next bytes of the stream, and returns the memory in which they arrived. Copies
    /// the bytes only if they arrived in the ring of the stream. Returns `None` at the end of the
    /// stream. See [`RdmaStream::read_chunk`](crate::RdmaStream::read_chunk).
    ///
    /// # Errors
    ///
    /// The errors of `AsyncRead` on this stream.
    pub async fn read_chunk(&mut self) -> io::Result<Option<StreamChunk>> {
        poll_fn(|cx| self.poll_fill_chunk(cx)).await?;
        match self.unread.take() {
            Some(Unread::Chunk(chunk)) => Ok(Some(chunk)),
            _ => Ok(None),
        }
    }

    /// Polls until there are received bytes that the program has not read, or until the stream has
    /// ended. If the bytes are in the ring, to which the peer may write at any moment, copies them
    /// to a region that only this end can access.
    fn poll_fill_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        if let Some(Unread::InRing(piece, start)) = &self.unread {
            let connection = self.rdma.connection();
            let region = connection.region_from_ring(piece, *start)?;
            let chunk = Unread::Chunk(StreamChunk { region, start: 0 });
            if let Some(Unread::InRing(piece, _)) = self.unread.replace(chunk) {
                self.rdma.connection().free_slot(piece);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Polls until there are received bytes that the program has not read (in `unread`), or until
    /// the stream has ended. Receives the next message if all earlier bytes are read.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unread.is_none() && !self.has_ended {
            if let Some(error) = &self.failure {
                return Poll::Ready(Err(read_error(error.clone())));
            }
            if !self.is_receiving {
                self.receiving.set(receive(Arc::clone(&self.rdma)));
                self.is_receiving = true;
            }
            let received = ready!(self.receiving.poll(cx));
            self.is_receiving = false;
            let piece = match received {
                Err(error) => {
                    self.failure = Some(error);
                    continue;
                }
                Ok(piece) if piece.len() == 0 => {
                    self.has_ended = true;
                    break;
                }
                Ok(piece) => piece,
            };
            self.is_long =
                matches!(&piece, StreamPiece::Long(region) if region.length() >= LONG_LEN);
            self.unread = Some(match piece {
                StreamPiece::Message(region) | StreamPiece::Long(region) => {
                    Unread::Chunk(StreamChunk { region, start: 0 })
                }
                StreamPiece::InRing(piece) => Unread::InRing(piece, 0),
            });
        }
        Poll::Ready(Ok(()))
    }

    /// Marks the first `amount` unread bytes as read. If no unread byte remains in a slot of the
    /// receive ring, frees the slot, so that the peer can write to it again. Panics if there are
    /// fewer than `amount` unread bytes.
    fn skip(&mut self, amount: usize) {
        let len = self.unread.as_ref().map_or(0, Unread::len);
        assert!(amount <= len, "more bytes consumed than filled");
        match &mut self.unread {
            Some(Unread::Chunk(chunk)) => chunk.start += amount,
            Some(Unread::InRing(_, start)) => *start += amount,
            None => return,
        }
        if amount == len
            && let Some(Unread::InRing(piece, _)) = self.unread.take()
        {
            self.rdma.connection().free_slot(piece);
        }
    }
}

/// Waits for the next piece (contiguous bytes) of the stream over the connection `rdma`, and
/// returns the piece. The future owns the handle `rdma`, so that the future can be stored.
async fn receive(rdma: Arc<Rdma>) -> Result<StreamPiece> {
    let connection = rdma.connection();
    observed_arrival!(connection, StreamRead, StreamPiece::len, {
        connection.receive_piece().await
    })
}

/// Converts `error`, an error of the connection, to the I/O error with which a read from the stream
/// fails. The I/O error has the kind with which a TCP stream fails in this situation.
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
        let this = self.get_mut();
        let Some(unread) = &this.unread else {
            return Poll::Ready(Ok(()));
        };
        let len = unread.len().min(buf.remaining());
        let connection = this.rdma.connection();
        match unread {
            Unread::Chunk(chunk) => buf.put_slice(&chunk[..len]),
            Unread::InRing(piece, start) => {
                connection.copy_from_ring(piece, *start, buf.initialize_unfilled_to(len));
                buf.advance(len);
            }
        }
        if std::mem::take(&mut this.is_long) {
            // This reader copies the bytes, so later long pieces can arrive in a ring.
            connection.advertise_ring();
        }
        this.skip(len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncBufRead for OwnedReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_fill_chunk(cx))?;
        Poll::Ready(Ok(match &this.unread {
            Some(Unread::Chunk(chunk)) => chunk,
            _ => &[],
        }))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.skip(amount);
    }
}

/// Received bytes of a stream, in registered memory that only this program can access. Dropping the
/// chunk returns the memory to the device's pool.
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
