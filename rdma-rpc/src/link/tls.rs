//! [`TlsLink`]: TLS over TCP, behind the feature `tls`. Messages have the format of
//! [`tcp`](super::tcp).

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWrite, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::tcp::{MessageSource, configure, read_messages};
use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;

/// One end of a TLS connection over TCP, which sends batches (messages with one or more frames) and
/// receives messages.
pub(crate) struct TlsLink {
    writer: Mutex<WriteHalf<TlsStream<TcpStream>>>,
    /// Read half; `None` once the receiving task has taken the half.
    reader: Mutex<Option<ReadHalf<TlsStream<TcpStream>>>>,
    certificate: Option<Arc<[u8]>>,
}

impl fmt::Debug for TlsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLink").finish_non_exhaustive()
    }
}

impl TlsLink {
    /// Performs the TLS handshake as a client. `name` is the host name that the server's
    /// certificate must contain.
    pub(super) async fn connect(
        stream: TcpStream,
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> Result<Self, Error> {
        configure(&stream)?;
        let failed = |cause| Error::tcp("performing the TLS handshake", cause);
        let name = ServerName::try_from(name.to_owned());
        let name = name.map_err(|cause| failed(io::Error::other(cause)))?;
        let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        Ok(Self::new(connecting.await.map_err(failed)?.into()))
    }

    /// Performs the server's side of the TLS handshake on `stream`, an accepted TCP connection.
    /// `config` contains the TLS settings of the server.
    pub(super) async fn accept(
        stream: TcpStream,
        config: &Arc<ServerConfig>,
    ) -> Result<Self, Error> {
        configure(&stream)?;
        let accepting = TlsAcceptor::from(Arc::clone(config)).accept(stream);
        let failed = |cause| Error::tcp("performing the TLS handshake", cause);
        Ok(Self::new(accepting.await.map_err(failed)?.into()))
    }

    fn new(stream: TlsStream<TcpStream>) -> Self {
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|all| all.first());
        let certificate = certificate.map(|certificate| Arc::from(&**certificate));
        let (reader, writer) = split(stream);
        Self {
            writer: Mutex::new(writer),
            reader: Mutex::new(Some(reader)),
            certificate,
        }
    }

    /// Returns the DER encoding of the peer's certificate; `None` if the peer has sent none.
    pub(super) fn certificate(&self) -> Option<Arc<[u8]>> {
        self.certificate.clone()
    }

    /// Writes as much of `batch` to the TLS stream as possible without waiting. Returns `false` if
    /// unsent bytes remain in the batch or in the stream, and `true` otherwise. If the peer has
    /// closed the connection, drops the bytes and returns `true`.
    pub(super) fn try_send(&self, batch: &mut Batch) -> bool {
        let written = self.poll_send(batch, &mut Context::from_waker(Waker::noop()));
        written.is_ready()
    }

    /// Writes the bytes of `batch` that were not written yet, and waits until TLS has passed all
    /// encrypted bytes to the socket. Errors are only logged, because the receiving task reports
    /// the end of the connection.
    pub(super) async fn send(&self, batch: &mut Batch) {
        poll_fn(|cx| self.poll_send(batch, cx)).await;
    }

    /// Polls the sending of a batch (a message with one or more frames). Returns `Ready` when all
    /// bytes were sent, and also after an error, which the receiving task reports.
    fn poll_send(&self, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()> {
        if let Err(error) = ready!(self.poll_write(batch, cx)) {
            // The receiving task reports the end of the connection.
            tracing::debug!(%error, "writing to the peer failed");
        }
        Poll::Ready(())
    }

    /// Writes the bytes of `batch` that were not written yet to the TLS stream. Also flushes the
    /// stream, so that no encrypted byte waits in TLS.
    fn poll_write(&self, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.writer.lock();
        let mut writer = Pin::new(&mut *writer);
        while !batch.rest().is_empty() {
            batch.sent += ready!(writer.as_mut().poll_write(cx, batch.rest()))?;
        }
        writer.poll_flush(cx)
    }

    /// Closes the sending direction of the connection. The peer then reads the end of the stream
    /// after the last message.
    pub(super) async fn end_sending(&self) {
        let closed = poll_fn(|cx| Pin::new(&mut *self.writer.lock()).poll_shutdown(cx));
        if let Err(error) = closed.await {
            tracing::debug!(%error, "closing the sending direction failed");
        }
    }

    /// Receives messages, and passes them to the connection `core`, until the connection ends.
    /// Returns the reason for the end.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        let Some(reader) = self.reader.lock().take() else {
            return Error::disconnected("the reason was not recorded");
        };
        read_messages(reader, core).await
    }
}

impl MessageSource for ReadHalf<TlsStream<TcpStream>> {
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        AsyncReadExt::read(self, room).await
    }
}
