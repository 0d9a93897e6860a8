//! [`Reconnect`]: connections to a peer that are replaced when they have ended.

mod backoff;
mod path;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use tokio::sync::Mutex;

pub use self::backoff::Backoff;
use self::path::Path;
use crate::connector::Connector;
use crate::error::{Error, Execution, Result};
use crate::rdma::Rdma;

/// Connections to one peer that are replaced when they have ended. A value has one connection, or
/// several connections over different ports or networks, which operations use alternately.
///
/// A new connection inherits nothing from its predecessor: remote memory, credits and messages in
/// transit are lost with the old connection. Operations on different connections have no order.
///
/// ```
/// use std::alloc::Layout;
///
/// use rdma_async::{Backoff, Reconnect, RdmaDevice};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// let address = listener.local_address()?;
/// let peer = Reconnect::new(device.builder().connector(address), Backoff::default());
/// let message = &device.alloc_local_mr(Layout::new::<[u8; 8]>())?;
/// let send = || peer.perform(|rdma| async move { rdma.send(message).await });
/// let (server, sent) = tokio::join!(listener.accept(), send());
/// sent?;
/// // The server closes the connection. The next message is sent on a new connection.
/// let first = peer.connection().await?;
/// drop(server?);
/// first.ended().await;
/// let (server, sent) = tokio::join!(listener.accept(), send());
/// sent?;
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub struct Reconnect<C> {
    paths: Vec<Path<C>>,
    /// Index, modulo the number of paths, of the path whose connection is used next if it is open.
    next: AtomicUsize,
    backoff: Backoff,
    /// Lock of the task that connects while no connection is open.
    connecting: Mutex<()>,
}

impl<C> fmt::Debug for Reconnect<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnect")
            .field("paths", &self.paths)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

impl<C: Connector> Reconnect<C> {
    /// Creates a `Reconnect` with one path to the peer, over which `connector` connects. Does not
    /// connect yet: the first operation connects.
    pub fn new(connector: C, backoff: Backoff) -> Self {
        Self::over([connector], backoff)
    }

    /// Creates a `Reconnect` with several paths to one peer: different devices, ports or addresses.
    /// Each path has one connection. Operations use the open connections alternately, and the end
    /// of a connection does not affect the other connections.
    ///
    /// A path whose connection has ended connects again only in two cases: while [`Self::maintain`]
    /// runs, and when no path has an open connection.
    ///
    /// # Panics
    ///
    /// If `connectors` is empty.
    pub fn over(connectors: impl IntoIterator<Item = C>, backoff: Backoff) -> Self {
        let paths: Vec<_> = connectors.into_iter().map(Path::new).collect();
        assert!(!paths.is_empty(), "at least one connector is needed");
        Self {
            paths,
            next: AtomicUsize::new(0),
            backoff,
            connecting: Mutex::new(()),
        }
    }

    /// Returns the number of connections to the peer that are open now: at most one for each
    /// connector.
    pub fn open_connections(&self) -> usize {
        self.paths.iter().filter_map(Path::open).count()
    }

    /// Returns the number of connections that were established so far, including connections that
    /// have ended.
    pub fn connections_made(&self) -> u64 {
        self.paths.iter().map(Path::made).sum()
    }

    /// Returns an open connection. With several connectors, successive calls begin with successive
    /// connectors, and skip connectors without an open connection. If no connection is open, tries
    /// the connectors in order until one connects. If all fail, tries again after a pause
    /// ([`Backoff`]).
    ///
    /// # Errors
    ///
    /// The error of the last attempt if no attempt has succeeded within [`Backoff::limit`], or
    /// [`Error::Timeout`] if only other tasks have attempted to connect.
    /// [`Error::InvalidArgument`] of an attempt is returned immediately.
    pub async fn connection(&self) -> Result<Arc<Rdma>> {
        if let Some(open) = self.next_open() {
            return Ok(open);
        }
        // The limit includes the wait for a task that connects.
        let mut pauses = self.backoff.begin();
        let _connecting = pauses.within_limit(self.connecting.lock()).await?;
        loop {
            // Another task may have connected meanwhile.
            if let Some(open) = self.next_open() {
                return Ok(open);
            }
            let mut failure = None;
            for path in &self.paths {
                match path.connect().await {
                    Ok(connection) => return Ok(connection),
                    Err(error @ Error::InvalidArgument { .. }) => return Err(error),
                    Err(error) => failure = Some(error),
                }
            }
            pauses.wait(failure).await?;
        }
    }

    /// Performs **one** operation on a connection. If the connection ends and the peer has
    /// [not executed](Execution::NotExecuted) the operation, repeats the operation on another
    /// connection.
    ///
    /// `operation` must perform only one operation of the connection. With two operations, it is
    /// possible that the peer executes the first but not the second, and both would be repeated.
    /// Use [`Self::connection`] for several operations.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::connection`]. The error of the operation. [`Error::execution`] returns
    /// whether the peer may have executed the operation.
    pub async fn perform<T, F>(&self, operation: impl Fn(Arc<Rdma>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.repeat_while(operation, |error| {
            error.execution() == Execution::NotExecuted
        })
        .await
    }

    /// Performs idempotent operations, such as reads, on a connection. The function `operations`
    /// performs one or several operations. If the connection ends, calls `operations` again with
    /// another connection, until the time limit of the [`Backoff`].
    ///
    /// # Errors
    ///
    /// The error of `operations` if the connection is still open or the time limit has passed. The
    /// errors of [`Self::connection`].
    pub async fn perform_idempotent<T, F>(&self, operations: impl Fn(Arc<Rdma>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.repeat_while(operations, |_| true).await
    }

    /// Performs `operation` on a connection, and returns the result of the operation. If the
    /// operation fails and the connection has ended, calls `may_repeat` with the error. If
    /// `may_repeat` returns `true`, repeats the operation on another connection, until the time
    /// limit of the [`Backoff`].
    async fn repeat_while<T, F>(
        &self,
        operation: impl Fn(Arc<Rdma>) -> F,
        may_repeat: impl Fn(&Error) -> bool,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut pauses = None;
        loop {
            let rdma = self.connection().await?;
            let error = match operation(Arc::clone(&rdma)).await {
                Err(error) if rdma.failure().is_some() && may_repeat(&error) => error,
                outcome => return outcome,
            };
            tracing::debug!(%error, "an operation is repeated on another connection");
            // The first repetition has no pause. The pauses are for connections that end
            // repeatedly.
            match &mut pauses {
                None => pauses = Some(self.backoff.begin()),
                Some(pauses) => pauses.wait(Some(error)).await?,
            }
        }
    }

    /// Keeps a connection open over every path (connector) to the peer: connects again whenever a
    /// connection has ended, with the pauses of the [`Backoff`]. Tries again without a time limit,
    /// and never returns. A program runs this function concurrently with its operations, for
    /// example in a task.
    pub async fn maintain(&self) {
        join_all(self.paths.iter().map(|path| self.maintain_path(path))).await;
    }

    /// Keeps a connection open over one path: connects, waits until the connection ends, pauses,
    /// and connects again. Never returns.
    async fn maintain_path(&self, path: &Path<C>) {
        let mut pauses = self.backoff.begin_unlimited();
        loop {
            match path.connect().await {
                Ok(connection) => {
                    let end = connection.ended().await;
                    tracing::debug!(peer = %connection.peer_address(), error = %end, "the connection of a path has ended");
                    pauses.reset();
                }
                Err(error) => tracing::debug!(%error, "connecting over a path failed"),
            }
            // A pause without a limit returns no error.
            drop(pauses.wait(None).await);
        }
    }

    /// Returns the open connection of one of the paths (connectors to the peer). Successive calls
    /// begin with successive paths, and skip paths without an open connection. Returns `None` if no
    /// path has an open connection.
    fn next_open(&self) -> Option<Arc<Rdma>> {
        let count = self.paths.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..count).find_map(|at| self.paths[first.wrapping_add(at) % count].open())
    }
}
