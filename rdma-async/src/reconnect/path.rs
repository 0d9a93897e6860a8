//! [`Path`]: a connector and its current connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::connector::Connector;
use crate::error::Result;
use crate::rdma::Rdma;

/// One way to the peer, for example over one device or address: a connector, and the connection
/// that the connector has established last.
pub(super) struct Path<C> {
    connector: C,
    current: parking_lot::Mutex<Option<Arc<Rdma>>>,
    /// Number of connections that were established over this path.
    made: AtomicU64,
    /// Lock of the task that connects.
    connecting: tokio::sync::Mutex<()>,
}

impl<C> fmt::Debug for Path<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Path")
            .field("current", &*self.current.lock())
            .field("made", &self.made())
            .finish_non_exhaustive()
    }
}

impl<C> Path<C> {
    pub(super) fn new(connector: C) -> Self {
        Self {
            connector,
            current: parking_lot::Mutex::new(None),
            made: AtomicU64::new(0),
            connecting: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the number of connections to the peer that this path has established so far,
    /// including the replacements of ended connections.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Returns the connection that this path has established last. Returns `None` if the path has
    /// established no connection, or if that connection has ended.
    pub(super) fn open(&self) -> Option<Arc<Rdma>> {
        let current = self.current.lock();
        let open = current.as_ref().filter(|rdma| rdma.failure().is_none());
        open.map(Arc::clone)
    }
}

impl<C: Connector> Path<C> {
    /// Returns the current connection of this path (one connector and its connection) if the
    /// connection is open. Otherwise connects again. Concurrent calls connect one at a time.
    pub(super) async fn connect(&self) -> Result<Arc<Rdma>> {
        let _connecting = self.connecting.lock().await;
        if let Some(open) = self.open() {
            return Ok(open);
        }
        let rdma = Arc::new(self.connector.connect().await?);
        self.made.fetch_add(1, Ordering::Relaxed);
        let ended = self.current.lock().replace(Arc::clone(&rdma));
        // The old connection is dropped after the lock is released.
        drop(ended);
        Ok(rdma)
    }
}
