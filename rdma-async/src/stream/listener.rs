//! Listeners as streams (`futures::Stream`) of connections.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;

use super::RdmaStream;
use crate::error::Result;
use crate::listener::RdmaListener;
use crate::rdma::Rdma;

impl RdmaListener {
    /// Waits for the next peer, and returns its connection as a stream of bytes, with its TCP address. A
    /// peer whose handshake fails is logged and ignored. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`] but those of handshakes.
    pub async fn accept_stream(&mut self) -> io::Result<(RdmaStream, SocketAddr)> {
        loop {
            match self.accept().await {
                Ok(rdma) => {
                    let peer = rdma.peer_address();
                    return Ok((rdma.into_stream(), peer));
                }
                Err(error @ crate::Error::Handshake { .. }) => {
                    tracing::warn!(%error, "a peer was ignored");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Converts the listener to a [`futures_util::Stream`] of byte streams, for servers such as tonic's
    /// `serve_with_incoming`.
    pub fn incoming(self) -> Incoming {
        Incoming(self)
    }
}

impl Stream for RdmaListener {
    type Item = Result<Rdma>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(Some)
    }
}

/// Listener that yields connections as [`RdmaStream`]s, created by [`RdmaListener::incoming`]. Never
/// ends. A peer whose handshake fails is logged and ignored.
#[derive(Debug)]
pub struct Incoming(RdmaListener);

impl Incoming {
    /// Returns the listener.
    pub fn listener(&self) -> &RdmaListener {
        &self.0
    }
}

impl Stream for Incoming {
    type Item = io::Result<RdmaStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(self.0.poll_accept(cx)) {
                Ok(rdma) => return Poll::Ready(Some(Ok(rdma.into_stream()))),
                Err(error @ crate::Error::Handshake { .. }) => {
                    tracing::warn!(%error, "a peer was ignored");
                }
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }
}
