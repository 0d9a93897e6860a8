//! [`RdmaListener`]: a listener at one TCP address, for any number of peers.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};

use crate::builder::Template;
use crate::error::{Error, Result};
use crate::half_open::HalfOpen;
use crate::handshake;
use crate::rdma::Rdma;

/// Listener at a TCP address, created by [`RdmaBuilder::bind`](crate::RdmaBuilder::bind).
///
/// Handshakes run concurrently, up to
/// [`RdmaBuilder::half_open_limit`](crate::RdmaBuilder::half_open_limit): a slow, silent or faulty
/// peer does not delay other peers.
#[derive(Debug)]
pub struct RdmaListener {
    listener: TcpListener,
    template: Box<Template>,
    half_open: HalfOpen,
    /// Accepted TCP connection whose handshake begins once fewer handshakes than the limit are in
    /// progress.
    waiting: Option<(TcpStream, SocketAddr)>,
}

impl RdmaListener {
    pub(crate) async fn bind(template: Template, address: impl ToSocketAddrs) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::tcp("listening at", "the address", source))?;
        Ok(Self {
            listener,
            half_open: HalfOpen::new(template.settings.half_open_limit),
            template: Box::new(template),
            waiting: None,
        })
    }

    /// Returns the TCP address at which peers can connect.
    ///
    /// # Errors
    ///
    /// [`Error::Tcp`] if the system cannot return the address.
    pub fn local_address(&self) -> Result<SocketAddr> {
        self.listener
            .local_addr()
            .map_err(|source| Error::tcp("querying", "the local address", source))
    }

    /// Waits until the next peer has connected, and returns its connection. Can be called again
    /// after an error. Cancel-safe: dropping the future loses no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`] if the handshake of a peer failed or exceeded the time limit of
    /// connecting. [`Error::Verbs`] if the device cannot create a queue pair. [`Error::Tcp`] if
    /// accepting failed.
    pub async fn accept(&mut self) -> Result<Rdma> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for the next connection, like [`Self::accept`]. Registers the task to be woken if no
    /// peer has connected.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`].
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Rdma>> {
        loop {
            if let Poll::Ready(Some(outcome)) = self.half_open.poll_next(cx) {
                return Poll::Ready(outcome);
            }
            if self.waiting.is_some() {
                ready!(self.half_open.poll_capacity(cx));
            }
            if let Some((stream, peer)) = self.waiting.take() {
                self.begin_handshake(stream, peer);
                continue;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok(accepted) => self.waiting = Some(accepted),
                // The peer has already closed the connection.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(source) => {
                    return Poll::Ready(Err(Error::tcp("accepting", "a connection", source)));
                }
            }
        }
    }

    /// Starts the task that performs the handshake with the peer at the address `peer`, whose TCP
    /// connection `stream` was accepted.
    fn begin_handshake(&mut self, stream: TcpStream, peer: SocketAddr) {
        let template = Template::clone(&self.template);
        self.half_open
            .begin(|state| async move { handshake::accept(template, stream, peer, &state).await });
    }
}
