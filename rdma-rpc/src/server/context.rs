//! The context of a call, for its handler.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// The peer and the deadline of a call, passed to handlers that are added by
/// [`Router::route_with_context`](crate::Router::route_with_context).
#[derive(Debug, Clone)]
pub struct Context {
    pub(super) peer: SocketAddr,
    pub(super) deadline: Option<Instant>,
}

impl Context {
    /// Returns the caller's TCP address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the time at which the caller stops waiting and the handler is dropped; `None` if the
    /// call has no deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time left until the deadline; `None` if the call has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }
}
