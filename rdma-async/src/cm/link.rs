//! The link of a connection that was made by the connection manager: the means by which each end
//! notices that the other end has closed the connection.

use rdma_core::cm::{ConnectionEventKind, ConnectionId};

use super::events::AsyncEventChannel;

/// Connection identifier (rdma_cm), whose events report that the peer has disconnected. Dropping
/// this value disconnects from the peer.
#[derive(Debug)]
pub(crate) struct CmLink {
    /// Identifier of this connection. The first field, because the identifier must be dropped
    /// before its event channel.
    id: ConnectionId,
    events: AsyncEventChannel,
}

impl CmLink {
    pub(super) fn new(id: ConnectionId, events: AsyncEventChannel) -> Self {
        Self { id, events }
    }

    /// Waits until the peer disconnects. Returns the reason.
    pub(crate) async fn wait_for_close(&mut self) -> String {
        loop {
            match self.events.next().await {
                Ok(event) => {
                    if let Some(reason) = close_reason(&event.kind) {
                        return reason.to_owned();
                    }
                }
                Err(error) => return format!("the connection manager failed: {error}"),
            }
        }
    }

    /// Notifies the peer, through the connection manager, that this end disconnects. The queue pair
    /// of this end stays connected.
    pub(crate) fn disconnect(&self) {
        if let Err(error) = self.id.disconnect() {
            // The peer may have disconnected first, and this end may already have confirmed it.
            tracing::debug!(%error, "disconnecting failed");
        }
    }

    /// Returns `false` if the peer has disconnected, the device was removed or the event channel
    /// has failed. Does not wait.
    pub(crate) fn is_open(&self) -> bool {
        match self.events.channel().try_next() {
            Ok(Some(event)) => close_reason(&event.kind).is_none(),
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

impl Drop for CmLink {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Returns the reason if the event reports that the connection is closed. Returns `None` for other
/// events.
fn close_reason(kind: &ConnectionEventKind) -> Option<&'static str> {
    match kind {
        ConnectionEventKind::Disconnected | ConnectionEventKind::TimewaitExit => {
            Some("the peer closed it")
        }
        ConnectionEventKind::DeviceRemoval => Some("its device was removed"),
        _ => None,
    }
}
