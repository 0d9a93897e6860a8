//! [`Rdma::reserve`]: memory that the peer may access while a future runs, for a limited time.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rdma_core::RemoteMemory;
use tokio::sync::Notify;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, sleep_until};

use crate::connection::{Connection, EndedAccess, Loan, Windows};
use crate::error::{Error, Result};
use crate::memory::LocalMr;
use crate::observe::{observed, report_failed_end};
use crate::rdma::Rdma;

impl Rdma {
    /// Lends a region to the peer while a future runs, for at most `limit`. When the future has
    /// completed or the limit has expired, ends the access at the device, and then returns the
    /// region. A later access of the peer gets a remote access error and changes nothing.
    ///
    /// Some devices support memory windows of type 2, and limit a window to its bytes and its queue
    /// pair. On such a device, only the peer of this connection can access the memory
    /// ([`Grant::is_exclusive`]).
    ///
    /// `operation` gets a [`Grant`], which contains the token of the memory and can offer the
    /// memory to the peer. Dropping the returned future ends the access.
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
    ///     // The peer returns the memory when it has finished.
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
    /// assert!(reserved.output.is_some(), "the limit has not expired");
    /// assert_eq!(reserved.region.as_slice(), [7; 8]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if an operation is using the region, or if the device cannot grant the
    /// access or cannot end it, which also ends the connection. [`Error::Timeout`] if the access
    /// was not granted within [`RdmaBuilder::response_timeout`](crate::RdmaBuilder), because
    /// earlier requests were not completed. The error that ended the connection, if it has ended
    /// before the access was granted.
    pub async fn reserve<F: Future>(
        &self,
        region: LocalMr,
        limit: Duration,
        operation: impl FnOnce(Grant) -> F,
    ) -> Result<Reserved<F::Output>> {
        let state = Arc::new(GrantState::new(limit));
        let Loan {
            lease,
            memory,
            is_exclusive,
        } = self.connection().lend_for(region).await?;
        let grant = Grant {
            memory,
            lease,
            is_exclusive,
            connection: Arc::downgrade(self.connection_arc()),
            state: Arc::clone(&state),
        };
        // Ends the access if this future is dropped.
        let reservation = Reservation {
            connection: self.connection(),
            lease,
            state: &state,
            is_open: true,
        };
        let operation = pin!(operation(grant));
        let output = tokio::select! {
            biased;
            output = operation => Some(output),
            // The operation may use tokio's whole budget at every poll, and the timer needs budget.
            () = unconstrained(state.expired()) => None,
        };
        let region = reservation.end().await?;
        Ok(Reserved { region, output })
    }
}

/// Result of [`Rdma::reserve`]: the region that was lent to the peer, and the output of the
/// program's future. The future ran during the loan.
#[derive(Debug)]
pub struct Reserved<T> {
    /// The region, which the peer can no longer access.
    pub region: LocalMr,
    /// Output of the future, or `None` if the time limit expired first.
    pub output: Option<T>,
}

/// Handle of memory that a call of [`Rdma::reserve`] lends to the peer for a limited time. The
/// program uses the handle to pass the memory to the peer and to change the time limit. Clones
/// refer to the same memory.
#[derive(Clone)]
pub struct Grant {
    memory: RemoteMemory,
    lease: u64,
    is_exclusive: bool,
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
    /// Returns the token of the memory: its address, length and key. The program passes the token
    /// to the peer, which creates a [`RemoteMr`](crate::RemoteMr) by
    /// [`from_token`](crate::RemoteMr::from_token).
    pub fn token(&self) -> RemoteMemory {
        self.memory
    }

    /// Returns `true` if only the peer of this connection can access the memory. Otherwise, every
    /// peer that is connected to the same [`RdmaDevice`](crate::RdmaDevice) and knows the token can
    /// access the memory.
    ///
    /// The access is exclusive if it uses a memory window of type 2, and the device limits windows
    /// to their bytes and their queue pair (tested by this crate). The access is not exclusive if
    /// [`RdmaBuilder::exclusive_grants`] or the registration of the memory forbids windows.
    ///
    /// [`RdmaBuilder::exclusive_grants`]: crate::RdmaBuilder::exclusive_grants
    pub fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Offers the memory to the peer, which receives it by [`Rdma::receive_remote_mr`]. Once the
    /// call of [`Rdma::reserve`] has ended the peer's access, the peer's operations on the memory
    /// fail with [`Error::LeaseEnded`]. If the future is dropped before the offer was sent, the
    /// memory can be offered again.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseEnded`] if the peer's access has ended. [`Error::InvalidArgument`] if the
    /// memory was offered before. Otherwise the error that ended the connection.
    pub async fn offer(&self) -> Result<()> {
        let connection = self.connection.upgrade().ok_or(Error::LeaseEnded)?;
        observed!(&connection, OfferMemory, self.memory.len as usize, {
            connection
                .offer_lease(self.lease, self.memory, &self.state)
                .await
        })
    }

    /// Waits until the peer has returned or dropped the offered memory.
    pub async fn returned(&self) {
        self.state
            .wait_for(|inner| inner.is_returned.then_some(()))
            .await;
    }

    /// Replaces the time limit of the reservation by `limit`, which starts now.
    pub fn renew(&self, limit: Duration) {
        self.state.inner.lock().limit = Limit::starting_now(limit);
        self.state.changed.notify_waiters();
    }
}

/// State of memory that a call of [`Rdma::reserve`] lends to the peer: the time limit, and the
/// memory region after the peer has given the region back. Shared by the future of
/// [`Rdma::reserve`] and the clones of its [`Grant`]. Once the memory was offered to the peer, the
/// connection also shares the state.
#[derive(Debug)]
pub(crate) struct GrantState {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    limit: Limit,
    is_returned: bool,
    /// Region that the peer has returned.
    region: Option<EndedAccess<Arc<Windows>>>,
}

/// Time limit for the peer's access to memory that [`Rdma::reserve`] lends. When the limit expires,
/// this end ends the access, and the caller of [`Rdma::reserve`] gets the memory back.
#[derive(Debug, Clone, Copy)]
enum Limit {
    /// The limit starts when the reservation first waits for its end.
    NotStarted(Duration),
    /// Time at which the limit expires.
    Expires(Instant),
    /// A limit that is too long for an [`Instant`]. Never expires.
    Unlimited,
}

impl Limit {
    /// Returns a limit of `duration` that starts now.
    fn starting_now(duration: Duration) -> Self {
        let end = Instant::now().checked_add(duration);
        end.map_or(Self::Unlimited, Self::Expires)
    }
}

impl GrantState {
    /// Creates the state of memory that a call of [`Rdma::reserve`] is about to lend to the peer.
    /// `limit` is the time for which the peer may use the memory.
    fn new(limit: Duration) -> Self {
        Self {
            inner: Mutex::new(Inner {
                limit: Limit::NotStarted(limit),
                is_returned: false,
                region: None,
            }),
            changed: Notify::new(),
        }
    }

    /// Waits until the time for which [`Rdma::reserve`] lends the memory has passed. If another
    /// task sets a new limit during the wait, waits until the new limit has passed.
    async fn expired(&self) {
        loop {
            let changed = self.changed.notified();
            let limit = {
                let mut inner = self.inner.lock();
                if let Limit::NotStarted(duration) = inner.limit {
                    inner.limit = Limit::starting_now(duration);
                }
                inner.limit
            };
            let sleeping = async {
                match limit {
                    Limit::Expires(end) => sleep_until(end).await,
                    _unlimited => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleeping => return,
                () = changed => {}
            }
        }
    }

    /// Waits until the peer has given the memory back, and returns the region. The thread that
    /// receives the peer's message stores the region by [`Self::put_back`].
    async fn returned_region(&self) -> EndedAccess<Arc<Windows>> {
        self.wait_for(|inner| inner.region.take()).await
    }

    /// Waits until `attempt` returns a value, and returns this value. Calls `attempt` with the
    /// state of the reservation immediately, and again after each change of the state.
    async fn wait_for<T>(&self, mut attempt: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(value) = attempt(&mut self.inner.lock()) {
                return value;
            }
            changed.await;
        }
    }

    /// Calls `send`, which sends one of two messages to the peer: the offer of the memory, or the
    /// notification that the peer's access has ended. Returns the value of `send`. During the call,
    /// a lock prevents other threads from sending the other message. `send` must not send the offer
    /// after the lease has ended, so the peer never gets the offer after the notification.
    pub(crate) fn send_in_order<T>(&self, send: impl FnOnce() -> T) -> T {
        let _inner = self.inner.lock();
        send()
    }

    /// Stores the region that the peer has given back, and wakes the task that waits for the region
    /// in [`Self::returned_region`]. The request that ends the peer's access can still be in
    /// flight: the woken task then waits until the request has completed.
    pub(crate) fn put_back(&self, region: EndedAccess<Arc<Windows>>) {
        {
            let mut inner = self.inner.lock();
            inner.is_returned = true;
            inner.region = Some(region);
        }
        self.changed.notify_waiters();
    }
}

/// Guard of the memory that [`Rdma::reserve`] lends. Dropping the guard ends the peer's access.
struct Reservation<'c> {
    connection: &'c Connection,
    lease: u64,
    state: &'c GrantState,
    is_open: bool,
}

impl Reservation<'_> {
    /// Ends the peer's access at the device, and returns the region. If the peer has already
    /// returned or released the memory, waits until the thread that handles the peer's message has
    /// stored the region in the [`GrantState`].
    async fn end(mut self) -> Result<LocalMr> {
        self.is_open = false;
        let region = match self.connection.begin_end_lease(self.lease) {
            Some(ended) => self.connection.finish_end(ended).await,
            None => {
                let ended = self.state.returned_region().await;
                self.connection.finish_end(ended).await
            }
        };
        region.map_err(|error| {
            let error = Error::from(error);
            self.connection.fail(error.clone());
            error
        })
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // On an error the device may still access the memory, which is then not freed.
            if let Some(Err(error)) = self.connection.end_lease(self.lease) {
                report_failed_end(self.connection.device(), &error);
                self.connection.fail(error.into());
            }
        }
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use std::alloc::Layout;
    use std::future::poll_fn;
    use std::task::Poll;

    use crate::{LocalMr, Rdma, testing};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    async fn pair() -> (Rdma, Rdma) {
        testing::pair(|builder| builder.receive_depth(2)).await
    }

    fn region(rdma: &Rdma) -> LocalMr {
        rdma.alloc_local_mr(Layout::new::<[u8; 8]>()).unwrap()
    }

    /// Polls `future` once, asserts that the future has to wait, and drops it, to test the
    /// cancellation of an operation.
    async fn poll_once(future: impl Future) {
        let mut future = pin!(future);
        let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()));
        assert!(!polled.await, "the future waits");
    }

    #[tokio::test]
    async fn an_unsent_offer_revokes_no_lease_and_can_be_repeated() {
        let (client, server) = pair().await;
        // All credits are used, so an offer waits.
        for _ in 0..2 {
            client.post(&region(&client)).await.unwrap();
        }
        let reserved = client.reserve(region(&client), LIMIT, |grant| async move {
            poll_once(grant.offer()).await;
        });
        reserved.await.unwrap();
        assert_eq!(client.connection().revoked_leases(), 0);
        // An offer is dropped, and a second offer is sent.
        let taking = async {
            server.receive().await.unwrap();
            server.receive().await.unwrap();
            let remote = server.receive_remote_mr().await.unwrap();
            server.send_remote_mr(remote).await.unwrap();
        };
        let offering = client.reserve(region(&client), LIMIT, |grant| async move {
            poll_once(grant.offer()).await;
            grant.offer().await.unwrap();
            assert!(matches!(
                grant.offer().await,
                Err(Error::InvalidArgument { .. })
            ));
            grant.returned().await;
        });
        let (reserved, ()) = tokio::join!(offering, taking);
        assert!(reserved.unwrap().output.is_some());
        assert_eq!(client.connection().revoked_leases(), 0);
    }
}
