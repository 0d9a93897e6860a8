//! [`Reconnect`]: connections to a peer that are made again when they have ended.

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

/// Connections to one peer that are made again when they have ended: one, or several over different
/// ports or networks, which are used in turn.
///
/// A new connection shares nothing with the one before: remote memory, credits and messages that
/// were on their way are gone with their connection. Between several connections there is no order
/// of operations.
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
/// // The server closes the connection. The next message travels on another.
/// drop(server?);
/// peer.connection().await?.ended().await;
/// let (server, sent) = tokio::join!(listener.accept(), send());
/// sent?;
/// # drop(server);
/// # Ok(())
/// # }
/// ```
pub struct Reconnect<C> {
    paths: Vec<Path<C>>,
    /// Path from which the next search for an open connection begins.
    next: AtomicUsize,
    backoff: Backoff,
    /// Held by the task that connects while no connection is open.
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
    /// Creates a value with one connection at a time, which the first use makes.
    pub fn new(connector: C, backoff: Backoff) -> Self {
        Self::over([connector], backoff)
    }

    /// Creates a value with one connection over each of several paths to the same peer: different
    /// devices, ports or addresses. Uses the open connections in turn; an end of some does not
    /// disturb the others.
    ///
    /// A path without a connection is used again only while [`Self::maintain`] runs, or once no
    /// other path has a connection.
    ///
    /// # Panics
    ///
    /// If there is no connector.
    pub fn over(connectors: impl IntoIterator<Item = C>, backoff: Backoff) -> Self {
        let paths: Vec<_> = connectors.into_iter().map(Path::new).collect();
        assert!(
            !paths.is_empty(),
            "a peer is reached over at least one path"
        );
        Self {
            paths,
            next: AtomicUsize::new(0),
            backoff,
            connecting: Mutex::new(()),
        }
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.paths.iter().filter_map(Path::open).count()
    }

    /// Returns the number of connections that were made until now.
    pub fn connections_made(&self) -> u64 {
        self.paths.iter().map(Path::made).sum()
    }

    /// Returns an open connection, the next in turn. If none is open, connects, over each path
    /// until one succeeds, with the pauses of the [`Backoff`].
    ///
    /// # Errors
    ///
    /// The error of the last attempt, if none has succeeded within [`Backoff::limit`], and
    /// [`Error::InvalidArgument`] at once.
    pub async fn connection(&self) -> Result<Arc<Rdma>> {
        if let Some(open) = self.next_open() {
            return Ok(open);
        }
        let _connecting = self.connecting.lock().await;
        let mut pauses = self.backoff.begin();
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
    /// [executed nothing](Execution::NotExecuted) of the operation, performs it again on another
    /// connection.
    ///
    /// `operation` must perform only one operation of the connection: of several, the peer may have
    /// executed the first when a later one was not executed. Use [`Self::connection`] for several.
    ///
    /// # Errors
    ///
    /// The error of the operation. If the connection has ended, [`Error::execution`] of this error
    /// is
    /// [`Execution::Unknown`]: the peer may have executed the operation. The errors of [`Self::connection`].
    pub async fn perform<T, F>(&self, operation: impl Fn(Arc<Rdma>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.repeat_while(operation, |error| {
            error.execution() == Execution::NotExecuted
        })
        .await
    }

    /// Performs any number of operations that can be performed more than once, such as a read. If
    /// the connection ends, performs all of them again on another connection.
    ///
    /// # Errors
    ///
    /// The error of the operations, on a connection that has not ended, and the errors of
    /// [`Self::connection`].
    pub async fn perform_idempotent<T, F>(&self, operations: impl Fn(Arc<Rdma>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        self.repeat_while(operations, |_| true).await
    }

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
            tracing::debug!(%error, "an operation is performed again on another connection");
            // The first repetition begins at once, and pauses are for connections that end again
            // and again.
            match &mut pauses {
                None => pauses = Some(self.backoff.begin()),
                Some(pauses) => pauses.wait(Some(error)).await?,
            }
        }
    }

    /// Keeps a connection open over every path: connects again as soon as one has ended, with the
    /// pauses of the [`Backoff`], whose limit has no effect. Never returns. A program runs it
    /// beside its operations, for example in a task.
    pub async fn maintain(&self) {
        join_all(self.paths.iter().map(|path| self.maintain_path(path))).await;
    }

    async fn maintain_path(&self, path: &Path<C>) {
        let mut pauses = self.backoff.endless();
        loop {
            match path.connect().await {
                Ok(connection) => {
                    let end = connection.ended().await;
                    tracing::debug!(peer = %connection.peer_address(), error = %end, "a path has lost its connection");
                    pauses.reset();
                }
                Err(error) => tracing::debug!(%error, "a path has no connection"),
            }
            // Without a limit, a pause has no error.
            drop(pauses.wait(None).await);
        }
    }

    /// Returns the next open connection in turn.
    fn next_open(&self) -> Option<Arc<Rdma>> {
        let count = self.paths.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..count).find_map(|at| self.paths[first.wrapping_add(at) % count].open())
    }
}
