//! The link of a connection that the connection manager has made.

use rdma_core::cm::{ConnectionEventKind, ConnectionId};

use super::events::Events;

/// Identifier of a connection, whose events report that the peer has closed it. Dropping the link
/// disconnects.
#[derive(Debug)]
pub(crate) struct ManagerLink {
    /// Dropped before its channel.
    id: ConnectionId,
    events: Events,
}

impl ManagerLink {
    pub(super) fn new(id: ConnectionId, events: Events) -> Self {
        Self { id, events }
    }

    /// Waits until the peer disconnects, and returns the reason.
    pub(crate) async fn end(&mut self) -> String {
        loop {
            match self.events.next().await {
                Ok(event) => {
                    if let Some(reason) = end_of(&event.kind) {
                        return reason.to_owned();
                    }
                }
                Err(error) => return format!("the connection manager failed: {error}"),
            }
        }
    }

    /// Disconnects. The peer learns of it, and the queue pair stays usable.
    pub(crate) fn disconnect(&self) {
        if let Err(error) = self.id.disconnect() {
            // The peer may have disconnected, and this end have confirmed that.
            tracing::debug!(%error, "disconnecting at the end");
        }
    }

    /// Returns whether the peer has not disconnected.
    pub(crate) fn is_open(&self) -> bool {
        match self.events.channel().try_next() {
            Ok(Some(event)) => end_of(&event.kind).is_none(),
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

impl Drop for ManagerLink {
    fn drop(&mut self) {
        self.disconnect();
    }
}

fn end_of(kind: &ConnectionEventKind) -> Option<&'static str> {
    match kind {
        ConnectionEventKind::Disconnected | ConnectionEventKind::TimewaitExit => {
            Some("the peer closed it")
        }
        ConnectionEventKind::DeviceRemoval => Some("its device was removed"),
        _ => None,
    }
}
