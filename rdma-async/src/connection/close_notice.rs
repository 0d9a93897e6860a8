//! The close notice: the control message by which an end announces that it closes the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Connection;
use super::frame::Kind;

/// State of the close notices of both ends: a flag that is set when this end has sent its notice,
/// and a flag that is set when the notice of the peer has arrived.
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

    /// Waits until the peer announces that it closes the connection. Only one task may wait at a
    /// time.
    pub(super) async fn wait(&self) {
        while !self.has_arrived() {
            self.arrived.notified().await;
        }
    }
}

impl Connection {
    /// Announces to the peer that this end closes the connection, unless it was announced before.
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

    /// Sends a message without a body, so that the connection ends if the peer does not acknowledge
    /// the message. Sends nothing while a request is in flight, because the acknowledgement of that
    /// request serves the same purpose. Also sends nothing while control messages wait to be sent.
    /// Sends the message even if bytes of a stream wait for credits (permissions to send), because
    /// no request is then in flight.
    pub(super) fn probe(&self) {
        if self.outbox.is_empty() && self.sender.lock().is_idle() {
            self.send_control(Kind::Credit);
        }
    }
}
