//! The events of connection identifiers (rdma_cm), received asynchronously.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use rdma_core::cm::{ConnectionEvent, ConnectionEventKind, EventChannel};
use tokio::io::unix::AsyncFd;

use super::private;
use crate::error::{Error, Result};
use crate::handshake::refused;

/// Event channel (rdma_cm) that is registered with the current runtime. Only one task may wait for
/// its events.
#[derive(Debug)]
pub(crate) struct AsyncEventChannel {
    channel: AsyncFd<EventChannel>,
}

impl AsyncEventChannel {
    pub(super) fn new() -> Result<Self> {
        let channel = EventChannel::new()?;
        // The replacement of `new` is unsafe, because an implementation of `AsRawFd` may return
        // different descriptors, or a descriptor that it does not own. An event channel always
        // returns its own descriptor, which is open until the channel is dropped.
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

    /// Polls for the next rdma_cm event of any connection identifier (`rdma_cm_id`) of this
    /// channel. If there is no event, registers the task of `cx`, which is woken when an event
    /// arrives.
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

    /// Waits for the next rdma_cm event of any connection identifier (`rdma_cm_id`) of this
    /// channel, and returns the event.
    pub(super) async fn next(&self) -> Result<ConnectionEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Waits for the first event for which `pick` returns a value (`Ok`), and returns this value.
    /// `pick` returns any other event unchanged (`Err`). Fails if such an event reports that the
    /// connection could not be made or has ended, and ignores all other events. `peer` is the
    /// address in the error and in the log.
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
                }) => match private::rejection_reason(&private_data) {
                    Some(reason) => format!("it refused the connection: {reason}"),
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
                    tracing::debug!(%peer, event = %other, "connection event ignored");
                    continue;
                }
            };
            return Err(refused(peer, reason));
        }
    }
}
