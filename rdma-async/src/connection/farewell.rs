//! The end of a connection that is announced by messages of the connection itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Connection;
use super::frame::Kind;

/// State of the messages that announce the end of a connection.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    is_sent: AtomicBool,
    has_arrived: AtomicBool,
    arrived: Notify,
}

impl Farewell {
    /// Records that the peer has announced the end.
    pub(super) fn arrive(&self) {
        self.has_arrived.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.has_arrived.load(Ordering::Acquire)
    }

    /// Waits until the peer has announced the end. For one waiter at a time.
    pub(super) async fn wait(&self) {
        while !self.has_arrived() {
            self.arrived.notified().await;
        }
    }
}

impl Connection {
    /// Announces to the peer, once, that this end sends nothing more.
    pub(super) fn say_farewell(&self) {
        if !self.farewell.is_sent.swap(true, Ordering::Relaxed) {
            self.send_control(Kind::Close);
        }
    }

    /// Returns the time between two tests of a peer on an idle connection.
    pub(super) fn probe_interval(&self) -> Duration {
        self.settings.keep_alive / 2
    }

    /// Sends a message without content, unless a request is in flight, which tests the peer as
    /// well.
    pub(super) fn probe(&self) {
        if self.is_settled() {
            self.send_control(Kind::Credit);
        }
    }
}
