//! The borrowed halves of a stream, and the reunion of owned halves.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{OwnedReadHalf, OwnedWriteHalf, RdmaStream};

/// The borrowed reading half of an [`RdmaStream`], created by [`RdmaStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(pub(super) &'a mut OwnedReadHalf);

/// The borrowed writing half of an [`RdmaStream`], created by [`RdmaStream::split`].
#[derive(Debug)]
pub struct WriteHalf<'a>(pub(super) &'a mut OwnedWriteHalf);

impl AsyncRead for ReadHalf<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncBufRead for ReadHalf<'_> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        Pin::new(&mut *self.get_mut().0).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut *self.0).consume(amount);
    }
}

impl AsyncWrite for WriteHalf<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}

impl OwnedReadHalf {
    /// Joins this half and the writing half of the stream to the whole stream.
    ///
    /// # Errors
    ///
    /// [`NotReunited`] if the halves belong to different streams. The error contains both halves.
    #[allow(
        clippy::result_large_err,
        reason = "the error returns the halves as they were"
    )]
    pub fn reunite(self, writer: OwnedWriteHalf) -> Result<RdmaStream, NotReunited> {
        if self.is_half_of(writer.rdma_arc()) {
            Ok(RdmaStream {
                reader: self,
                writer,
            })
        } else {
            Err(NotReunited(self, writer))
        }
    }
}

/// Error of [`OwnedReadHalf::reunite`]: the halves belong to different streams. Contains the two
/// halves.
#[derive(Debug)]
pub struct NotReunited(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for NotReunited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("joining the halves of a stream: the halves belong to different streams")
    }
}

impl std::error::Error for NotReunited {}
