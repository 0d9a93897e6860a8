//! The client: the connection to a server, which the clients of services share.

mod builder;
mod calls;
mod endpoint;
mod endpoints;
mod incoming;
mod once;
mod perform;
mod request;
mod streaming;
#[cfg(feature = "tower")]
mod tower;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::builder::ClientBuilder;
pub(crate) use self::calls::Calls;
pub use self::endpoint::{Endpoint, ToEndpoint};
pub use self::endpoints::Balance;
use self::endpoints::Endpoints;
pub use self::request::{Reply, Request};
pub use self::streaming::{Response, Streaming};
use crate::address::{Peer, ToAddress};
use crate::bulk::BulkMemory;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::observe::{self, Observed};
use crate::once::Session;
use crate::outbox::Sent;

/// A connection to a server, or [connections to several servers](ClientBuilder::connect_any), on
/// which the clients of services make calls: `StoreClient::new(client)`. Any number of calls can be
/// in progress at once.
///
/// Clones share the connection, which ends when the last clone is dropped. A clone can have its own
/// deadline and metadata.
///
/// Dropping the future of a call cancels the call: the server drops its handler.
#[derive(Clone)]
pub struct Client {
    route: Route,
    deadline: Duration,
    /// Set if [`Self::with_deadline`] has set the deadline, which then also limits streaming calls.
    has_own_deadline: bool,
    metadata: Metadata,
    interceptor: Option<Interceptor>,
    observed: Observed,
    /// Numbers of the calls that are executed at most once.
    session: Arc<Session>,
}

/// Function that is called before each call.
#[derive(Clone)]
struct Interceptor(Arc<Intercept>);

type Intercept = dyn Fn(&str, Metadata) -> Result<Metadata> + Send + Sync;

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interceptor").finish_non_exhaustive()
    }
}

/// Connections of a client.
#[derive(Clone)]
enum Route {
    One(Arc<Handle>),
    Several(Arc<Endpoints>),
}

/// Connection of a client and its clones, which ends when this value is dropped.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // One-way requests of this turn of the scheduler have not left yet.
        if let Err(error) = self.core.outbox.flush() {
            tracing::debug!(%error, "a client's last requests were not sent");
        }
        self.core
            .fail(Error::disconnected("the client was dropped"));
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.peer())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a builder for a client with other settings than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to the server at an address: `rdma://host:port`, `tcp://host:port`, or the
    /// [`Address`](crate::Address) of a server of this process.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`].
    pub async fn connect(address: impl ToAddress) -> Result<Self> {
        Self::builder().connect(address).await
    }

    /// Returns a client of the same connection whose calls must be answered within `limit`.
    /// Streaming calls have a deadline only if this function has set one.
    ///
    /// With a zero `limit` nothing is sent, and calls fail with [`Error::DeadlineExceeded`].
    #[must_use]
    pub fn with_deadline(&self, limit: Duration) -> Self {
        Self {
            deadline: limit,
            has_own_deadline: true,
            ..self.clone()
        }
    }

    /// Returns a client of the same connection whose requests carry this metadata.
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        Self {
            metadata,
            ..self.clone()
        }
    }

    /// Returns the time within which a unary call must have its answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the server's end of the connection. A client of several servers returns that of any
    /// connection; `None` while it has none.
    pub fn peer(&self) -> Option<Peer> {
        let handle = self.any()?;
        Some(handle.core.peer.clone())
    }

    /// Returns the numbers of frames and messages that this end of the connection has sent. Several
    /// requests of one turn of the scheduler share a message. A client of several servers counts
    /// those of its current connections.
    pub fn sent(&self) -> Sent {
        let handles: Vec<_> = match &self.route {
            Route::One(handle) => return handle.core.outbox.counts(),
            Route::Several(endpoints) => endpoints.connections().collect(),
        };
        let counts = handles.iter().map(|handle| handle.core.outbox.counts());
        counts.fold(Sent::default(), |mut sum, sent| {
            sum.frames += sent.frames;
            sum.messages += sent.messages;
            sum
        })
    }

    /// Allocates zeroed memory for a [`Bulk`](crate::Bulk) that this connection can transfer
    /// without a copy. A client of several servers allocates it for one of them; the connections of
    /// one [`RdmaDevice`](rdma_async::RdmaDevice) share it.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if memory cannot be registered, and the error that ended the
    /// connection.
    pub fn bulk_memory(&self, len: usize) -> Result<BulkMemory> {
        match self.any() {
            Some(handle) => BulkMemory::for_peer(&handle.core, len),
            // Memory of the heap suits any connection.
            None => Ok(vec![0; len].into()),
        }
    }

    /// Returns the error that ended the connection; `None` while the connection is open. A client
    /// of several servers returns the reason why none is connected; `None` while one is connected.
    pub fn failure(&self) -> Option<Error> {
        match &self.route {
            Route::One(handle) => handle.core.end().cloned(),
            Route::Several(endpoints) => match endpoints.any() {
                Some(_) => None,
                None => Some(endpoints.error()),
            },
        }
    }

    /// Waits until the connection has ended, and returns the error that ended it. A client of
    /// several servers connects again, and waits forever.
    pub async fn ended(&self) -> Error {
        match &self.route {
            Route::One(handle) => handle.core.ended().await,
            Route::Several(_) => std::future::pending().await,
        }
    }

    /// Creates a client of one connection.
    fn of(handle: Arc<Handle>, deadline: Duration) -> Self {
        Self::on(Route::One(handle), deadline)
    }

    fn on(route: Route, deadline: Duration) -> Self {
        Self {
            route,
            deadline,
            has_own_deadline: false,
            metadata: Metadata::default(),
            interceptor: None,
            observed: Observed::default(),
            session: Arc::new(Session::new()),
        }
    }

    /// Returns the metadata of the request of a call.
    fn metadata_of(&self, method: &str) -> Result<Metadata> {
        let metadata = observe::traced(self.observed, self.metadata.clone());
        match &self.interceptor {
            Some(interceptor) => (interceptor.0)(method, metadata),
            None => Ok(metadata),
        }
    }

    /// Returns the connection of a client of one server.
    fn into_handle(self) -> Result<Arc<Handle>> {
        match self.route {
            Route::One(handle) => Ok(handle),
            Route::Several(endpoints) => Err(endpoints.error()),
        }
    }

    fn any(&self) -> Option<Arc<Handle>> {
        match &self.route {
            Route::One(handle) => Some(Arc::clone(handle)),
            Route::Several(endpoints) => endpoints.any(),
        }
    }
}
