//! Listeners as asynchronous iterators ([`futures_util::Stream`]) of connections.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;

use super::RdmaStream;
use crate::error::{Error, Result};
use crate::listener::RdmaListener;
use crate::rdma::Rdma;

impl RdmaListener {
    /// Waits for the next peer, and returns its connection as a stream of bytes, with its TCP
    /// address. A failed handshake is logged and ignored. Cancel-safe: dropping the future loses no
    /// connection.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`], except [`Error::Handshake`].
    pub async fn accept_stream(&mut self) -> io::Result<(RdmaStream, SocketAddr)> {
        let stream = poll_fn(|cx| self.poll_accept_stream(cx)).await?;
        let peer = stream.peer_address();
        Ok((stream, peer))
    }

    fn poll_accept_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RdmaStream>> {
        loop {
            match ready!(self.poll_accept(cx)) {
                Ok(rdma) => return Poll::Ready(Ok(rdma.into_stream())),
                Err(error @ Error::Handshake { .. }) => {
                    tracing::warn!(%error, "a peer was ignored");
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Converts the listener to a [`futures_util::Stream`] of byte streams, for functions such as
    /// tonic's `serve_with_incoming`.
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

/// Endless [`futures_util::Stream`] of accepted connections as [`RdmaStream`]s, created by
/// [`RdmaListener::incoming`]. A failed handshake is logged and ignored.
#[derive(Debug)]
pub struct Incoming(RdmaListener);

impl Incoming {
    /// Returns the listener whose connections this value yields, for example to query its address.
    pub fn listener(&self) -> &RdmaListener {
        &self.0
    }
}

impl Stream for Incoming {
    type Item = io::Result<RdmaStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept_stream(cx).map(Some)
    }
}
