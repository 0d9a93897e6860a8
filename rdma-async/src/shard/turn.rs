//! The turn: one round of the driver task, between two of its yields to the executor. At the end of
//! the turn, the requests that connections have staged are posted to the device together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::connection::Connection;

/// List of the connections whose accepted requests must be posted to the device at the end of the
/// driver task's current round (turn). The connections are in the order of their first such
/// request.
#[derive(Debug, Default)]
pub(super) struct Turn {
    connections: Mutex<Vec<Arc<Connection>>>,
    has_any: AtomicBool,
}

impl Turn {
    /// Adds `connection` to the list, so that its accepted requests are posted to the device at the
    /// end of the driver task's current round.
    pub(super) fn add(&self, connection: Arc<Connection>) {
        self.connections.lock().push(connection);
        self.has_any.store(true, Ordering::Release);
    }

    /// Posts the accepted requests of all connections in the list to the device, and empties the
    /// list. Called at the end of each round of the driver task. `spare` is an empty list, which is
    /// swapped with the full list to save allocations, and is empty again afterwards.
    pub(super) fn end(&self, spare: &mut Vec<Arc<Connection>>) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        {
            let mut connections = self.connections.lock();
            self.has_any.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *connections, spare);
        }
        for connection in spare.drain(..) {
            connection.post_staged();
        }
    }
}
