//! What a handler can know about its call.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

/// What a handler can know about its call, from
/// [`Router::route_with_context`](crate::Router::route_with_context).
#[derive(Debug, Clone)]
pub struct Context {
    pub(super) peer: SocketAddr,
    pub(super) deadline: Option<Instant>,
}

impl Context {
    /// The caller's TCP address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// When the caller stops waiting; `None` if it does not. The handler is dropped then.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How long the caller still waits; `None` if it always does.
    pub fn remaining(&self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }
}
