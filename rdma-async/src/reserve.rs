//! Reservations: memory that the peer may access while a future runs, for a limited time.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rdma_core::RemoteMemory;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::LocalMr;
use crate::rdma::Rdma;

impl Rdma {
    /// Lets the peer access a region while a future runs, for at most `limit`. When the future has ended
    /// or the time is over, the access ends at the device, and only then the region is returned. An
    /// access of the peer after that gets a remote access error and changes nothing.
    ///
    /// `operation` gets a [`Grant`], which has the token of the memory and can offer the memory to the
    /// peer. Dropping this future ends the access, too.
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// use std::time::Duration;
    ///
    /// use rdma_async::{LocalMrReadAccess, RdmaBuilder};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// let region = server.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// let owner = server.reserve(region, Duration::from_secs(5), |grant| async move {
    ///     grant.offer().await?;
    ///     // The peer says when it has finished.
    ///     grant.returned().await;
    ///     Ok::<_, rdma_async::Error>(())
    /// });
    /// let borrower = async {
    ///     let mut remote = client.receive_remote_mr().await?;
    ///     let mut local = client.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    ///     # use rdma_async::LocalMrWriteAccess;
    ///     local.as_mut_slice().fill(7);
    ///     client.write(&local, &mut remote).await?;
    ///     client.send_remote_mr(remote).await
    /// };
    /// let (reserved, ()) = tokio::try_join!(owner, borrower)?;
    /// assert!(reserved.output.is_some(), "the time was not over");
    /// assert_eq!(reserved.region.as_slice(), [7; 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if an operation is using the region, or if the device cannot register the region
    /// or cannot end the access, which also ends the connection.
    pub async fn reserve<F: Future>(
        &self,
        region: LocalMr,
        limit: Duration,
        operation: impl FnOnce(Grant) -> F,
    ) -> Result<Reserved<F::Output>> {
        let state = Arc::new(GrantState::new(limit));
        let (lease, memory) = self.connection().lend_for(region, &state)?;
        let grant = Grant {
            memory,
            lease,
            connection: Arc::downgrade(self.connection_arc()),
            state: Arc::clone(&state),
        };
        // Ends the access if this future is dropped.
        let open = OpenLease {
            connection: self.connection(),
            lease,
            state: &state,
            is_open: true,
        };
        let operation = pin!(operation(grant));
        let output = tokio::select! {
            biased;
            output = operation => Some(output),
            () = state.time_over() => None,
        };
        let region = open.end().await?;
        Ok(Reserved { region, output })
    }
}

/// Result of [`Rdma::reserve`].
#[derive(Debug)]
pub struct Reserved<T> {
    /// The region, which the peer can no longer access.
    pub region: LocalMr,
    /// Output of the future, or `None` if the time was over before.
    pub output: Option<T>,
}

/// Handle of the memory that [`Rdma::reserve`] lends. Clones refer to the same reservation.
#[derive(Clone)]
pub struct Grant {
    memory: RemoteMemory,
    lease: u64,
    connection: Weak<Connection>,
    state: Arc<GrantState>,
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("memory", &self.memory)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl Grant {
    /// Returns the address, length and key of the memory, to be passed on by any means. The peer makes a
    /// [`RemoteMr`](crate::RemoteMr) of it by [`from_token`](crate::RemoteMr::from_token).
    pub fn token(&self) -> RemoteMemory {
        self.memory
    }

    /// Offers the memory to the peer, which gets it from [`Rdma::receive_remote_mr`]. When the reservation
    /// ends, the peer's operations on it fail with [`Error::LeaseEnded`].
    ///
    /// # Errors
    ///
    /// [`Error::LeaseEnded`] if the reservation has ended, and the error that ended the connection.
    pub async fn offer(&self) -> Result<()> {
        let connection = self.connection.upgrade().ok_or(Error::LeaseEnded)?;
        connection
            .offer_lease(self.lease, self.memory, &self.state)
            .await
    }

    /// Waits until the peer has returned or released the offered memory.
    pub async fn returned(&self) {
        self.state
            .wait_for(|inner| inner.is_returned.then_some(()))
            .await;
    }

    /// Sets the time limit to `limit` from now.
    pub fn renew(&self, limit: Duration) {
        self.state.inner.lock().deadline = deadline_after(limit);
        self.state.changed.notify_waiters();
    }
}

/// State that a reservation shares with its grants and with the connection.
#[derive(Debug)]
pub(crate) struct GrantState {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    /// `None` for a limit that is too long to be a time.
    deadline: Option<Instant>,
    is_offered: bool,
    is_returned: bool,
    /// Region that the peer has returned.
    region: Option<Result<LocalMr, rdma_core::Error>>,
}

impl GrantState {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            inner: Mutex::new(Inner {
                deadline: deadline_after(limit),
                is_offered: false,
                is_returned: false,
                region: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Waits until the time limit has passed.
    async fn time_over(&self) {
        loop {
            let changed = self.changed.notified();
            let deadline = self.inner.lock().deadline;
            let passed = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = passed => return,
                () = changed => {}
            }
        }
    }

    /// Waits until the peer has returned the region, and takes the region.
    async fn returned_region(&self) -> Result<LocalMr, rdma_core::Error> {
        self.wait_for(|inner| inner.region.take()).await
    }

    async fn wait_for<T>(&self, mut attempt: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(value) = attempt(&mut self.inner.lock()) {
                return value;
            }
            changed.await;
        }
    }

    /// Returns whether the memory was offered to the peer, so that the peer may return it.
    pub(crate) fn is_offered(&self) -> bool {
        self.inner.lock().is_offered
    }

    /// Records that the memory was offered to the peer.
    pub(crate) fn set_offered(&self) {
        self.inner.lock().is_offered = true;
    }

    /// Takes the region that the peer has returned.
    pub(crate) fn put_back(&self, region: Result<LocalMr, rdma_core::Error>) {
        {
            let mut inner = self.inner.lock();
            inner.is_returned = true;
            inner.region = Some(region);
        }
        self.changed.notify_waiters();
    }
}

fn deadline_after(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// Guard that ends the access of a reservation.
struct OpenLease<'c> {
    connection: &'c Connection,
    lease: u64,
    state: &'c GrantState,
    is_open: bool,
}

impl OpenLease<'_> {
    /// Ends the access at the device, and returns the region. Waits if the peer is returning it meanwhile.
    async fn end(mut self) -> Result<LocalMr> {
        self.is_open = false;
        let is_offered = self.state.is_offered();
        let region = match self.connection.end_lease(self.lease, is_offered) {
            Some(region) => region,
            None => self.state.returned_region().await,
        };
        region.map_err(|error| {
            let error = Error::from(error);
            self.connection.fail(error.clone());
            error
        })
    }
}

impl Drop for OpenLease<'_> {
    fn drop(&mut self) {
        if self.is_open {
            let is_offered = self.state.is_offered();
            // On an error the device may still access the memory, which is then not freed.
            if let Some(Err(error)) = self.connection.end_lease(self.lease, is_offered) {
                self.connection.fail(error.into());
            }
        }
    }
}
