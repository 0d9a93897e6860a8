//! [`OwnedWriteHalf`]: the writing half of a stream.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::task::coop::poll_proceed;
use tokio_util::sync::ReusableBoxFuture;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess};
use crate::observe::ObservedPolls;
use crate::rdma::Rdma;

/// The owned writing half of an [`RdmaStream`](crate::RdmaStream), created by
/// [`RdmaStream::into_split`](crate::RdmaStream::into_split). Dropping the half ends its direction
/// of the stream: the peer then reads the end of the stream.
pub struct OwnedWriteHalf {
    /// Future that waits until the stream accepts more bytes, in progress if `is_waiting`. `None`
    /// before the first wait.
    waiting: Option<ReusableBoxFuture<'static, ()>>,
    is_waiting: bool,
    has_ended: bool,
    observed: ObservedPolls,
    rdma: Arc<Rdma>,
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedWriteHalf")
            .field("rdma", &self.rdma)
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

impl OwnedWriteHalf {
    pub(super) fn new(rdma: Arc<Rdma>) -> Self {
        Self {
            waiting: None,
            is_waiting: false,
            has_ended: false,
            observed: ObservedPolls::of_stream_writes(),
            rdma,
        }
    }

    /// Returns the connection of this stream, for example to allocate memory for
    /// [`Self::send_registered`]. The program must not send or receive messages on the connection,
    /// and must not write with immediate data.
    pub fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    pub(super) fn rdma_arc(&self) -> &Arc<Rdma> {
        &self.rdma
    }

    /// Writes the bytes of a region of registered memory to the stream without copying them. Waits
    /// until the stream has room for further bytes, but not until the peer has the bytes. See
    /// [`RdmaStream::send_registered`](crate::RdmaStream::send_registered).
    ///
    /// # Errors
    ///
    /// The errors of writing.
    pub async fn send_registered(&mut self, region: LocalMr) -> io::Result<()> {
        let len = region.length();
        let mut region = Some(region);
        let accepted = poll_fn(|cx| {
            self.poll_accepted(cx, |rdma| {
                let Some(unsent) = region.take() else {
                    unreachable!("an accepted region ends this future");
                };
                region = rdma.connection().accept_region(unsent)?;
                Ok(region.is_none().then_some(len))
            })
        });
        accepted.await.map(drop)
    }

    /// Polls until the stream has accepted bytes, and returns their number. Repeats `attempt`,
    /// which offers bytes to the stream, until the result is the number of accepted bytes. After
    /// each `None`, waits until the stream can accept more bytes.
    fn poll_accepted(
        &mut self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut(&Rdma) -> Result<Option<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "writing to a stream after its end",
            )));
        }
        let turn = ready!(poll_proceed(cx));
        self.observed.poll(self.rdma.connection());
        loop {
            if self.is_waiting
                && let Some(waiting) = &mut self.waiting
            {
                ready!(waiting.poll(cx));
                self.is_waiting = false;
            }
            if let Some(outcome) = attempt(&self.rdma).transpose() {
                let outcome = self.observed.end(self.rdma.connection(), outcome);
                let accepted = outcome.map_err(write_error)?;
                turn.made_progress();
                return Poll::Ready(Ok(accepted));
            }
            let wait = wait_for_room(Arc::clone(&self.rdma));
            match &mut self.waiting {
                Some(waiting) => waiting.set(wait),
                none => *none = Some(ReusableBoxFuture::new(wait)),
            }
            self.is_waiting = true;
        }
    }

    /// Ends this direction of the stream, unless it has ended: the peer then reads the end of the
    /// stream after the last byte.
    fn end(&mut self) {
        if !self.has_ended {
            self.has_ended = true;
            self.rdma.connection().end_stream();
        }
    }
}

/// Waits until the stream accepts more bytes. The future owns `rdma`, the handle of the connection,
/// so that the future can be stored in [`OwnedWriteHalf`].
async fn wait_for_room(rdma: Arc<Rdma>) {
    rdma.connection().wait_for_outgoing_room().await;
}

/// Converts `error`, an error of the connection, to the I/O error with which a write to the stream
/// fails. The I/O error has the kind with which a TCP stream fails in this situation.
fn write_error(error: Error) -> io::Error {
    match error {
        Error::Disconnected { .. } | Error::Work(_) | Error::Refused { .. } => {
            io::Error::new(io::ErrorKind::BrokenPipe, error)
        }
        other => other.into(),
    }
}

/// Returns an error of the kind `kind` if the connection has ended before all written bytes were
/// posted to the device. Succeeds if the bytes were posted and the peer then closed the connection,
/// as with TCP.
fn check_lost(connection: &Connection, kind: io::ErrorKind) -> io::Result<()> {
    match connection.lost_bytes() {
        Some(error) => Err(io::Error::new(kind, error.clone())),
        None => Ok(()),
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_accepted(cx, |rdma| rdma.connection().accept_bytes(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.rdma.connection();
        connection.post_staged();
        Poll::Ready(check_lost(connection, io::ErrorKind::BrokenPipe))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        // The kind with which the shutdown of a lost TCP connection fails.
        let kind = io::ErrorKind::NotConnected;
        Poll::Ready(check_lost(self.rdma.connection(), kind))
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        self.observed.give_up(self.rdma.connection());
        self.end();
    }
}
