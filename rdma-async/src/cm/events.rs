//! The events of connection identifiers, for the runtime.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use rdma_core::cm::{ConnectionEvent, ConnectionEventKind, EventChannel};
use tokio::io::unix::AsyncFd;

use super::private;
use crate::error::{Error, Result};
use crate::handshake::refused;

/// Channel of connection identifiers that is registered with the current runtime. A single task
/// waits for its events.
#[derive(Debug)]
pub(crate) struct Events {
    channel: AsyncFd<EventChannel>,
}

impl Events {
    pub(super) fn new() -> Result<Self> {
        let channel = EventChannel::new()?;
        // The replacement of `new` is unsafe because a type may return a different descriptor each
        // time, or one that it does not own. A channel always returns its own descriptor, open
        // while it lives.
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for types unlike this one"
        )]
        let channel = AsyncFd::new(channel)
            .map_err(|source| Error::tcp("watching", "the connection manager", source))?;
        Ok(Self { channel })
    }

    pub(super) fn channel(&self) -> &EventChannel {
        self.channel.get_ref()
    }

    /// Returns the next event, or registers the task to be woken when there is one.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<ConnectionEvent>> {
        loop {
            if let Some(event) = self.channel().try_next()? {
                return Poll::Ready(Ok(event));
            }
            ready!(self.channel.poll_read_ready(cx))
                .map_err(|source| Error::tcp("watching", "the connection manager", source))?
                .clear_ready();
        }
    }

    pub(super) async fn next(&self) -> Result<ConnectionEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for the event that `pick` accepts. An event that ends the connection is an error.
    pub(super) async fn wait_for<T>(
        &self,
        peer: SocketAddr,
        pick: impl Fn(ConnectionEventKind) -> Result<T, ConnectionEventKind>,
    ) -> Result<T> {
        loop {
            let reason = match pick(self.next().await?.kind) {
                Ok(value) => return Ok(value),
                Err(ConnectionEventKind::Rejected {
                    reason,
                    private_data,
                }) => match private::reason_of(&private_data) {
                    Some(told) => format!("it refuses this end: {told}"),
                    None => reason.to_string(),
                },
                Err(
                    other @ (ConnectionEventKind::AddressError(_)
                    | ConnectionEventKind::RouteError(_)
                    | ConnectionEventKind::ConnectError(_)
                    | ConnectionEventKind::Unreachable(_)
                    | ConnectionEventKind::Disconnected
                    | ConnectionEventKind::DeviceRemoval),
                ) => other.to_string(),
                Err(other) => {
                    tracing::debug!(%peer, event = %other, "ignored");
                    continue;
                }
            };
            return Err(refused(peer, reason));
        }
    }
}
