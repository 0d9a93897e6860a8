//! The server, which accepts connections and executes the calls of clients.

mod accept;
mod authorization;
mod call;
mod call_limit;
mod connection;
mod context;
mod handler;
mod handler_task;
mod methods;
mod slots;

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder, RdmaListener};

pub use self::accept::ServerHandle;
use self::authorization::Authorization;
pub use self::authorization::CallInfo;
pub use self::call::Call;
pub(crate) use self::call_limit::CallLimit;
pub(crate) use self::connection::ServerConnection;
pub use self::context::Context;
#[cfg(feature = "reflection")]
pub(crate) use self::methods::{CountedMethod, TypeUse};
pub use self::methods::{Methods, Role, Service};
use crate::address::{Peer, ToAddress};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Accepted, Encryption, Link, Listener};
use crate::metadata::Metadata;
use crate::observe::ObserveOptions;
use crate::once::AnswerCache;

/// A server that offers services to any number of clients.
///
/// # Limits
///
/// A connection can have [`concurrency`](Self::concurrency) running calls. Further calls wait at
/// the client. Calls beyond [`load_limit`](Self::load_limit) or beyond the [limit of their
/// method](Self::method_limit) fail immediately with [`Error::Overloaded`]. If a client does not
/// receive its answers, the server stops reading from the client, and disconnects it after 30 s.
#[derive(Debug)]
#[must_use = "a server does nothing until it listens"]
pub struct Server {
    shared: Shared,
    transport: Option<RdmaBuilder>,
    connections: usize,
}

/// State of a server that all its connections share: the services, the settings, the stored answers
/// and the limit of running calls.
#[derive(Debug)]
pub(crate) struct Shared {
    methods: Methods,
    authorization: Authorization,
    encryption: Encryption,
    /// Stored answers of calls that are executed at most once.
    pub(crate) once: AnswerCache,
    observe: ObserveOptions,
    concurrency: usize,
    message_limit: usize,
    bulk_limit: usize,
    /// Maximum time for which a caller can hold the bulks of a result.
    bulk_lease: Duration,
    grace: Duration,
    /// Limit of running calls, counted over all connections, or `None` without a limit.
    load: Option<Arc<CallLimit>>,
}

impl Server {
    /// Creates a server with default settings that offers one service, such as a generated
    /// `…Server`.
    pub fn new(service: impl Service) -> Self {
        let mut methods = Methods::default();
        service.register(&mut methods);
        Self {
            shared: Shared {
                methods,
                authorization: Authorization::default(),
                encryption: Encryption::default(),
                once: AnswerCache::default(),
                observe: ObserveOptions::default(),
                concurrency: 256,
                message_limit: limits::MESSAGE_LEN,
                bulk_limit: limits::BULK_LEN,
                bulk_lease: Duration::from_secs(60),
                grace: Duration::from_secs(10),
                load: None,
            },
            transport: None,
            connections: 1024,
        }
    }

    /// Adds another service, whose methods the server then also offers.
    ///
    /// # Panics
    ///
    /// If a method of the service has the same number as another method of the server.
    pub fn service(mut self, service: impl Service) -> Self {
        service.register(&mut self.shared.methods);
        self
    }

    /// Adds the [reflection service](crate::Reflection), through which tools learn the methods of
    /// the server. The description contains all services that were added before it.
    #[cfg(feature = "reflection")]
    pub fn reflection(self) -> Self {
        let (methods, type_uses) = self.shared.methods.descriptions();
        let described = crate::reflection::ReflectionService::new(methods, type_uses);
        self.service(crate::ReflectionServer::new(described))
    }

    /// Sets the maximum number of running calls of a connection. Further calls wait at the client.
    /// Default 256, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.shared.concurrency = usize::from(calls.max(1));
        self
    }

    /// Sets the maximum number of running calls of all connections together. Further calls fail
    /// with [`Error::Overloaded`]. Default: unlimited.
    pub fn load_limit(mut self, calls: usize) -> Self {
        self.shared.load = Some(Arc::new(CallLimit::new(calls)));
        self
    }

    /// Sets the maximum number of running calls of a method, such as `"Store.get"`. Further calls
    /// fail with [`Error::Overloaded`]. Default: unlimited.
    ///
    /// # Panics
    ///
    /// If the server has no method with this name.
    pub fn method_limit(self, method: &str, calls: usize) -> Self {
        match self.shared.methods.by_name(method) {
            Some(handler) => handler.set_limit(calls),
            None => panic!("the server has no method {method}"),
        }
        self
    }

    /// Sets the maximum number of connected clients. Further clients wait to be accepted. Default
    /// 1024, minimum 1.
    pub fn connections(mut self, clients: usize) -> Self {
        self.connections = clients.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, including headers. Default 16
    /// MiB. A value below 8 KiB counts as 8 KiB, and a value above 1 GiB as 1 GiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.shared.message_limit = limits::clamp_message_len(bytes);
        self
    }

    /// Sets the maximum length of a [`Bulk`](crate::Bulk) in a request in bytes. A request with a
    /// longer bulk is refused with [`Error::BadRequest`]. Default 1 GiB.
    pub fn bulk_limit(mut self, bytes: usize) -> Self {
        self.shared.bulk_limit = bytes;
        self
    }

    /// Sets the maximum time for which a caller can access a [`Bulk`](crate::Bulk) (long data that
    /// is transferred separately) in a result. The access ends earlier if the caller drops the
    /// bulk. Default 60 s.
    pub fn bulk_lease(mut self, limit: Duration) -> Self {
        self.shared.bulk_lease = limit;
        self
    }

    /// Sets the TLS configuration for `tcp://` addresses. Clients without TLS are disconnected.
    /// Default: no encryption.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<tokio_rustls::rustls::ServerConfig>) -> Self {
        self.shared.encryption.server = Some(config);
        self
    }

    /// Records metrics of each method through the crate [`metrics`](https://docs.rs/metrics): the
    /// counter `rdma_rpc_calls_total`, the gauge `rdma_rpc_calls_in_flight` and the histogram
    /// `rdma_rpc_call_seconds`. Default: no metrics.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.shared.observe.has_metrics = true;
        self
    }

    /// Runs each handler in a tracing span that belongs to the trace of its call, see
    /// [`TraceContext`](crate::TraceContext). Default: no spans.
    #[cfg(feature = "trace")]
    pub fn traces(mut self) -> Self {
        self.shared.observe.has_traces = true;
        self
    }

    /// Sets a function that accepts or refuses each connection. The arguments are the peer and the
    /// [credentials](crate::ClientBuilder::credentials) of the client. The function returns the
    /// identity of the client, which handlers get from [`Context::identity`], or the reason for a
    /// refusal. After a refusal, connecting fails with [`Error::Denied`]. The function runs within
    /// the poll that receives the settings of the client, so it must not block. Default: every
    /// client is accepted.
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
        self.shared.authorization.authenticate = Some(Box::new(authenticate));
        self
    }

    /// Adds a function that allows or refuses each call before the call is started. The function
    /// returns the reason for a refusal, and the call fails with [`Error::Denied`]. Several
    /// functions are called in the order in which they were added. The functions run within the
    /// poll that receives the request, so they must not block.
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
        self.shared
            .authorization
            .interceptors
            .push(Box::new(interceptor));
        self
    }

    /// Sets the grace period: the time after the beginning of a shutdown that running calls have to
    /// finish and callers have to read the [`Bulk`](crate::Bulk)s of results. Default 10 s.
    pub fn grace(mut self, limit: Duration) -> Self {
        self.shared.grace = limit;
        self
    }

    /// Sets the RDMA settings of [`Self::listen`], such as the device, the completion mode and the
    /// queue depths. The message limit in these settings is not used. Set [`Self::message_limit`]
    /// instead. Default: the defaults of rdma-async, but clients cannot request memory of the
    /// server.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Spawns a task that serves all clients that connect to `address`, until the returned handle
    /// is dropped.
    ///
    /// # Errors
    ///
    /// * [`Error::Address`] if `address` is a text that is not an address.
    /// * [`Error::Transport`] or [`Error::Tcp`] if the address or the device cannot be used.
    pub async fn listen(self, address: impl ToAddress) -> Result<ServerHandle> {
        let address = address.to_address()?;
        let transport = limits::transport(self.transport.clone(), self.shared.message_limit);
        let listener = Listener::bind(&address, transport).await?;
        accept::start(self, listener)
    }

    /// Spawns a task that serves all clients that connect to a listener, until the returned handle
    /// is dropped.
    ///
    /// The length of received messages is also limited by the builder of the listener: set
    /// [`RdmaBuilder::message_limit`] of that builder to the limit of this server.
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

    /// Serves the client of an existing RDMA connection until the connection ends. Returns the
    /// reason for the end. Dropping the future ends the connection.
    pub async fn serve_connection(self, rdma: Rdma) -> Error {
        let link = Accepted::Link(Link::over_rdma(rdma));
        accept::serve_one(Arc::new(self.shared), link).await
    }
}
