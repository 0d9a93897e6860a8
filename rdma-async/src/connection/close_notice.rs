//! The close notice: the control message by which an end announces that it closes the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Connection;
use super::frame::Kind;

/// Record of the close notices of both ends: whether this end has sent its notice, and whether the
/// notice of the peer has arrived. A close notice is the control message by which an end announces
/// that it closes the connection.
#[derive(Debug, Default)]
pub(super) struct CloseNotice {
    is_sent: AtomicBool,
    has_arrived: AtomicBool,
    arrived: Notify,
}

impl CloseNotice {
    /// Records that the close notice of the peer has arrived, and wakes the task in [`Self::wait`].
    pub(super) fn record_arrival(&self) {
        self.has_arrived.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    /// Returns whether the close notice of the peer has arrived: the peer sends no further
    /// messages.
    pub(super) fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::Acquire)
    }

    /// Waits until the peer announces that it closes the connection. The caller must ensure that
    /// only one task waits at a time.
    pub(super) async fn wait(&self) {
        while !self.has_arrived() {
            self.arrived.notified().await;
        }
    }
}

impl Connection {
    /// Announces to the peer, by a control message, that this end closes the connection. Sends
    /// nothing if a previous call has sent the message.
    pub(super) fn announce_close(&self) {
        if !self.close_notice.is_sent.swap(true, Ordering::Relaxed) {
            self.send_control(Kind::Close);
        }
    }

    /// Returns the interval between two probes, messages that detect whether the peer of an idle
    /// connection still exists: half of the keep-alive time.
    pub(super) fn probe_interval(&self) -> Duration {
        self.settings.keep_alive / 2
    }

    /// Probes an idle peer: sends a message without a body. The connection ends if the peer does
    /// not acknowledge the message. Sends nothing while a request is in flight, because the
    /// acknowledgement of that request serves the same purpose. Also sends nothing while control
    /// messages are queued. Bytes of a stream that wait for credits (permissions to send) do not
    /// prevent the probe.
    pub(super) fn probe(&self) {
        if self.outbox.is_empty() && self.sender.lock().is_idle() {
            self.send_control(Kind::Credit);
        }
    }
}
