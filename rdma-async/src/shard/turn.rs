//! The turn: one round of the driver. At the end of the turn, staged requests are posted to the
//! device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::connection::Connection;

/// List of the connections that have staged requests in the current turn, in the order of their
/// first staged request.
#[derive(Debug, Default)]
pub(super) struct Turn {
    connections: Mutex<Vec<Arc<Connection>>>,
    has_any: AtomicBool,
}

impl Turn {
    pub(super) fn add(&self, connection: Arc<Connection>) {
        self.connections.lock().push(connection);
        self.has_any.store(true, Ordering::Release);
    }

    /// Posts the staged requests of all connections to the device. Swaps the list with `spare`,
    /// which must be empty, to reuse its allocation.
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
