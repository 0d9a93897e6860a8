//! The client: one or several connections to servers, which generated clients share.

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
use crate::observe::{self, ObserveOptions};
use crate::once::Session;
use crate::outbox::SendCounts;

/// A connection to a server, or [connections to several servers](ClientBuilder::connect_any).
/// Generated clients make their calls through this type: `StoreClient::new(client)`. Any number of
/// calls can be in progress concurrently.
///
/// Clones share the connections, which end when the last clone is dropped. Each clone can have its
/// own deadline and metadata.
///
/// Dropping the future of a call cancels the call, and the server drops its handler.
#[derive(Clone)]
pub struct Client {
    route: Route,
    deadline: Duration,
    /// Set if [`Self::with_deadline`] has set the deadline. Only then the deadline also limits
    /// streaming calls.
    has_own_deadline: bool,
    metadata: Metadata,
    interceptor: Option<Interceptor>,
    observe: ObserveOptions,
    /// Generator of the numbers of calls that are executed at most once.
    session: Arc<Session>,
}

/// A function of the program that is called before each call, and that can refuse the call or
/// change its metadata. See [`ClientBuilder::intercept`].
#[derive(Clone)]
struct Interceptor(Arc<Intercept>);

/// Function that gets the name of a method and the metadata of a request, and returns the metadata
/// to be sent.
type Intercept = dyn Fn(&str, Metadata) -> Result<Metadata> + Send + Sync;

impl fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interceptor").finish_non_exhaustive()
    }
}

/// Connections on which a client makes its calls: a single connection, or connections to several
/// servers.
#[derive(Clone)]
enum Route {
    One(Arc<Connection>),
    Several(Arc<Endpoints>),
}

/// Connection to a server, which a client and its clones share and which ends when this value is
/// dropped.
#[derive(Debug)]
struct Connection {
    core: Arc<Core>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // One-way requests of this turn of the scheduler have not been sent yet.
        if let Err(error) = self.core.outbox.flush() {
            tracing::debug!(%error, "sending a client's last requests failed");
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
    /// Returns a builder, to create a client with settings other than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to the server at an address: `rdma://host:port`, `tcp://host:port`, or an
    /// [`Address`](crate::Address) in the memory of this process.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`].
    pub async fn connect(address: impl ToAddress) -> Result<Self> {
        Self::builder().connect(address).await
    }

    /// Returns a clone of this client whose calls have the time limit `limit`. The limit also
    /// applies to streaming calls, which have no deadline otherwise.
    ///
    /// If `limit` is zero, unary and streaming calls fail with [`Error::DeadlineExceeded`], and
    /// nothing is sent. One-way calls are sent, unless they have to wait for the connection.
    #[must_use]
    pub fn with_deadline(&self, limit: Duration) -> Self {
        Self {
            deadline: limit,
            has_own_deadline: true,
            ..self.clone()
        }
    }

    /// Returns a clone whose requests are sent with this metadata, which handlers get from
    /// [`Context::metadata`](crate::Context::metadata).
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        Self {
            metadata,
            ..self.clone()
        }
    }

    /// Returns the time limit of unary calls (one request and one response), see
    /// [`Self::with_deadline`].
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns a description of the server, such as its address, and of the transport. For a client
    /// of several servers, describes one of the connected servers, or returns `None` if no server
    /// is connected.
    pub fn peer(&self) -> Option<Peer> {
        let connection = self.any()?;
        Some(connection.core.peer.clone())
    }

    /// Returns the numbers of frames and messages that this end of the connection has sent. Each
    /// request is a frame, and requests share a message if tasks that are ready at the same time
    /// send them. For a client of several servers, returns the sums over its current connections.
    pub fn sent(&self) -> SendCounts {
        let connections: Vec<_> = match &self.route {
            Route::One(connection) => return connection.core.outbox.counts(),
            Route::Several(endpoints) => endpoints.connections().collect(),
        };
        let counts = connections
            .iter()
            .map(|connection| connection.core.outbox.counts());
        counts.fold(SendCounts::default(), |mut sum, sent| {
            sum.frames += sent.frames;
            sum.messages += sent.messages;
            sum
        })
    }

    /// Allocates zeroed memory for a [`Bulk`](crate::Bulk) that this connection can transfer
    /// without a copy. For a client of several servers, the memory belongs to the device of one of
    /// the connections. Connections of the same [`RdmaDevice`](rdma_async::RdmaDevice) share the
    /// memory.
    ///
    /// # Errors
    ///
    /// * [`Error::Transport`] if the memory cannot be registered.
    /// * [`Error::Bulk`] if the memory cannot be allocated.
    /// * The error that ended the connection.
    pub fn bulk_memory(&self, len: usize) -> Result<BulkMemory> {
        match self.any() {
            Some(connection) => BulkMemory::for_peer(&connection.core, len),
            // Heap memory can be used with any connection.
            None => Ok(vec![0; len].into()),
        }
    }

    /// Returns the error that ended the connection; `None` while the connection is open. For a
    /// client of several servers, returns `None` while a server is connected. Otherwise, returns
    /// the reason for which no server is connected.
    pub fn failure(&self) -> Option<Error> {
        match &self.route {
            Route::One(connection) => connection.core.end().cloned(),
            Route::Several(endpoints) => match endpoints.any() {
                Some(_) => None,
                None => Some(endpoints.error()),
            },
        }
    }

    /// Waits until the connection of this client has ended, and returns the error that ended it.
    /// Never returns for a client of several servers, because such a client reconnects.
    pub async fn ended(&self) -> Error {
        match &self.route {
            Route::One(connection) => connection.core.ended().await,
            Route::Several(_) => std::future::pending().await,
        }
    }

    /// Creates a client with default settings on one connection. `deadline` is the time limit of
    /// its unary calls.
    fn of(connection: Arc<Connection>, deadline: Duration) -> Self {
        Self::on(Route::One(connection), deadline)
    }

    /// Creates a client with default settings that makes its calls on `route`. `deadline` is the
    /// time limit of its unary calls.
    fn on(route: Route, deadline: Duration) -> Self {
        Self {
            route,
            deadline,
            has_own_deadline: false,
            metadata: Metadata::default(),
            interceptor: None,
            observe: ObserveOptions::default(),
            session: Arc::new(Session::new()),
        }
    }

    /// Returns the metadata to be sent with a request for `method`: the client's metadata and the
    /// trace context. An interceptor that the program has set can change this metadata or refuse
    /// the call.
    fn metadata_of(&self, method: &str) -> Result<Metadata> {
        let metadata = observe::with_trace(self.observe, self.metadata.clone());
        match &self.interceptor {
            Some(interceptor) => (interceptor.0)(method, metadata),
            None => Ok(metadata),
        }
    }

    /// Returns the connection of a client of a single server. Fails for a client of several
    /// servers.
    fn into_connection(self) -> Result<Arc<Connection>> {
        match self.route {
            Route::One(connection) => Ok(connection),
            Route::Several(endpoints) => Err(endpoints.error()),
        }
    }

    /// Returns any connection of the client; `None` if a client of several servers is not connected
    /// to any of them.
    fn any(&self) -> Option<Arc<Connection>> {
        match &self.route {
            Route::One(connection) => Some(Arc::clone(connection)),
            Route::Several(endpoints) => endpoints.any(),
        }
    }
}
