//! The server: accepts connections and serves their calls.

mod accept;
mod call;
mod context;
mod gate;
mod guards;
mod handler;
mod methods;
mod running;
mod serving;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder, RdmaListener};

pub use self::accept::ServerHandle;
pub use self::call::Call;
pub use self::context::Context;
pub(crate) use self::gate::Gate;
pub use self::guards::CallInfo;
use self::guards::Guards;
#[cfg(feature = "reflection")]
pub(crate) use self::methods::{Method, Part};
pub use self::methods::{Methods, Role, Service};
pub(crate) use self::serving::Serving;
use crate::address::{Peer, ToAddress};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Accepted, Encryption, Link, Listener};
use crate::metadata::Metadata;
use crate::observe::Observed;
use crate::once::Windows;

/// A server that offers services to any number of clients.
///
/// # Limits
///
/// A connection can have [`concurrency`](Self::concurrency) calls in progress; further calls wait
/// at the client. Calls above [`load_limit`](Self::load_limit), or above the [limit of their
/// method](Self::method_limit), fail at once with [`Error::Overloaded`]. A client that takes no
/// answers is not read from, and is disconnected after 30 s.
#[derive(Debug)]
#[must_use = "a server does nothing until it listens"]
pub struct Server {
    shared: Shared,
    transport: Option<RdmaBuilder>,
    connections: usize,
}

/// State shared by all connections of a server.
#[derive(Debug)]
pub(crate) struct Shared {
    methods: Methods,
    guards: Guards,
    encryption: Encryption,
    pub(crate) once: Windows,
    observed: Observed,
    concurrency: usize,
    message_limit: usize,
    bulk_limit: usize,
    /// Maximum time for which a caller can keep the bulks of a result.
    bulk_lease: Duration,
    grace: Duration,
    /// Limit of the calls of all connections.
    load: Option<Arc<Gate>>,
}

impl Server {
    /// Creates a server with default settings that offers a service.
    pub fn new(service: impl Service) -> Self {
        let mut methods = Methods::default();
        service.register(&mut methods);
        Self {
            shared: Shared {
                methods,
                guards: Guards::default(),
                encryption: Encryption::default(),
                once: Windows::default(),
                observed: Observed::default(),
                concurrency: 256,
                message_limit: limits::MESSAGE,
                bulk_limit: limits::BULK,
                bulk_lease: Duration::from_secs(60),
                grace: Duration::from_secs(10),
                load: None,
            },
            transport: None,
            connections: 1024,
        }
    }

    /// Adds another service.
    ///
    /// # Panics
    ///
    /// If a method of the service has the number of another method of the server.
    pub fn service(mut self, service: impl Service) -> Self {
        service.register(&mut self.shared.methods);
        self
    }

    /// Adds the [reflection service](crate::Reflection), which describes all services that were
    /// added before it.
    #[cfg(feature = "reflection")]
    pub fn reflection(self) -> Self {
        let (methods, parts) = self.shared.methods.described();
        let described = crate::reflection::Described::new(methods, parts);
        self.service(crate::ReflectionServer::new(described))
    }

    /// Sets the maximum number of calls of one connection that are in progress; further calls wait
    /// at the client. Default 256, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.shared.concurrency = usize::from(calls.max(1));
        self
    }

    /// Sets the maximum number of calls of all connections that run at once; further calls are
    /// refused. Default: unlimited.
    pub fn load_limit(mut self, calls: usize) -> Self {
        self.shared.load = Some(Arc::new(Gate::new(calls)));
        self
    }

    /// Sets the maximum number of calls of a method, such as `"Store.get"`, that run at once;
    /// further calls are refused. Default: unlimited.
    ///
    /// # Panics
    ///
    /// If the server has no method of this name.
    pub fn method_limit(self, method: &str, calls: usize) -> Self {
        match self.shared.methods.named(method) {
            Some(handler) => handler.limit(calls),
            None => panic!("the server has no method {method}"),
        }
        self
    }

    /// Sets the maximum number of clients served at once; further clients wait to be accepted.
    /// Default 1024, minimum 1.
    pub fn connections(mut self, clients: usize) -> Self {
        self.connections = clients.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, headers included. Default 16 MiB,
    /// minimum 8 KiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.shared.message_limit = limits::message(bytes);
        self
    }

    /// Sets the maximum length of a [`Bulk`](crate::Bulk) of a request in bytes. A request with a
    /// longer one is refused with [`Error::BadRequest`]. Default 1 GiB.
    pub fn bulk_limit(mut self, bytes: usize) -> Self {
        self.shared.bulk_limit = bytes;
        self
    }

    /// Sets the maximum time for which a caller can read a [`Bulk`](crate::Bulk) of a result. The
    /// memory is freed as soon as the caller has dropped the bulk. Default 60 s.
    pub fn bulk_lease(mut self, limit: Duration) -> Self {
        self.shared.bulk_lease = limit;
        self
    }

    /// Encrypts connections at an address with `tcp://` by TLS. Clients without TLS are
    /// disconnected. Default: no encryption.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<tokio_rustls::rustls::ServerConfig>) -> Self {
        self.shared.encryption.server = Some(config);
        self
    }

    /// Records metrics of each method through the facade of the crate
    /// [`metrics`](https://docs.rs/metrics): the counter `rdma_rpc_calls_total`, the gauge
    /// `rdma_rpc_calls_in_flight` and the histogram `rdma_rpc_call_seconds`. Default: none.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.shared.observed.has_metrics = true;
        self
    }

    /// Runs each handler in a span of its trace, see [`TraceContext`](crate::TraceContext).
    /// Default: no spans.
    #[cfg(feature = "trace")]
    pub fn traces(mut self) -> Self {
        self.shared.observed.has_traces = true;
        self
    }

    /// Sets a function that decides about each connection, from the peer and the
    /// [credentials](crate::ClientBuilder::credentials) of the client. The function returns the
    /// identity of the client, which handlers get from [`Context::identity`], or the reason for a
    /// refusal, with which connecting fails: [`Error::Denied`]. The function runs in the poll that
    /// finds the first message of the client, so it must not block. Default: every client is
    /// accepted.
    ///
    /// ```
    /// use rdma_rpc::{Address, Client, Context, Error, Metadata, Server};
    ///
    /// #[rdma_rpc::service]
    /// trait Desk {
    ///     async fn whoami(&self, cx: &Context) -> Result<String, ()>;
    /// }
    ///
    /// struct Clerk;
    ///
    /// impl Desk for Clerk {
    ///     async fn whoami(&self, cx: &Context) -> Result<String, ()> {
    ///         Ok(cx.identity().get_str("name").unwrap_or_default().to_owned())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// let server = Server::new(DeskServer::new(Clerk))
    ///     .authenticate(|_, credentials| match credentials.get_str("token") {
    ///         Some("7734") => Ok(Metadata::default().with("name", "alice")),
    ///         _ => Err("the token is unknown".to_owned()),
    ///     })
    ///     .listen(Address::memory())
    ///     .await?;
    ///
    /// let credentials = Metadata::default().with("token", "7734");
    /// let client = Client::builder().credentials(credentials).connect(server.address()).await?;
    /// assert_eq!(DeskClient::new(client).whoami().await.ok().as_deref(), Some("alice"));
    ///
    /// let denied = Client::connect(server.address()).await.unwrap_err();
    /// assert!(matches!(denied, Error::Denied { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn authenticate(
        mut self,
        authenticate: impl Fn(&Peer, &Metadata) -> Result<Metadata, String> + Send + Sync + 'static,
    ) -> Self {
        self.shared.guards.authenticate = Some(Box::new(authenticate));
        self
    }

    /// Adds a function that decides about each call before the call is started. The function
    /// returns the reason for a refusal, with which the call fails: [`Error::Denied`]. Several
    /// functions are called in the order in which they were added. They run in the poll that finds
    /// the request, so they must not block.
    ///
    /// ```
    /// # use rdma_rpc::Server;
    /// fn only_admins_delete(server: Server) -> Server {
    ///     server.intercept(|call| match call.identity.get_str("role") {
    ///         Some("admin") => Ok(()),
    ///         _ if call.method.ends_with(".delete") => Err("only admins delete".to_owned()),
    ///         _ => Ok(()),
    ///     })
    /// }
    /// ```
    pub fn intercept(
        mut self,
        interceptor: impl Fn(&CallInfo<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.shared.guards.interceptors.push(Box::new(interceptor));
        self
    }

    /// Sets the grace period: the time that running calls may take to finish after the server began
    /// to shut down. Default 10 s.
    pub fn grace(mut self, limit: Duration) -> Self {
        self.shared.grace = limit;
        self
    }

    /// Sets how [`Self::listen`] listens by RDMA: device, completion mode, queue depths. The
    /// message limit is this server's. Default: rdma-async's defaults, but clients can request no
    /// memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Serves all clients that connect to an address, in a new task, until the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address, [`Error::Transport`] or [`Error::Tcp`] if the
    /// address or the device cannot be used.
    pub async fn listen(self, address: impl ToAddress) -> Result<ServerHandle> {
        let address = address.to_address()?;
        let transport = limits::transport(self.transport.clone(), self.shared.message_limit);
        let listener = Listener::bind(&address, transport).await?;
        accept::start(self, listener)
    }

    /// Serves all clients that connect to a listener, in a new task, until the handle is dropped.
    ///
    /// The listener's builder limits how long a message is received at all: set
    /// [`RdmaBuilder::message_limit`] there too.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if the listener has no address.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    pub fn serve(self, listener: RdmaListener) -> Result<ServerHandle> {
        accept::start(self, Listener::Rdma(listener))
    }

    /// Serves one client until it disconnects or violates the protocol, and returns the reason.
    /// Dropping the future ends the connection.
    pub async fn serve_connection(self, rdma: Rdma) -> Error {
        let link = Accepted::Link(Link::over_rdma(rdma));
        accept::serve_one(Arc::new(self.shared), link).await
    }
}
