//! The builder of clients.

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder};
use tokio::time::timeout;

use super::endpoint::{ToEndpoint, Upkeep};
use super::endpoints::{Balance, Endpoints};
use super::{Calls, Client, Handle, Interceptor, Route};
use crate::address::{Peer, ToAddress};
use crate::core::{Core, Side};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Encryption, Link};
use crate::metadata::Metadata;
use crate::observe::Observed;
use crate::stream::{WINDOW_BYTES, WINDOW_ITEMS};
use crate::wire::Settings;

/// Settings for a new [`Client`]. The defaults suit most programs.
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until it connects"]
pub struct ClientBuilder {
    transport: Option<RdmaBuilder>,
    deadline: Duration,
    concurrency: u16,
    message_limit: usize,
    bulk_limit: usize,
    balance: Balance,
    upkeep: Upkeep,
    encryption: Encryption,
    observed: Observed,
    hello: Metadata,
    interceptor: Option<Interceptor>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            transport: None,
            deadline: Duration::from_secs(10),
            concurrency: 256,
            message_limit: limits::MESSAGE,
            bulk_limit: limits::BULK,
            balance: Balance::default(),
            upkeep: Upkeep {
                first_pause: Duration::from_millis(50),
                longest_pause: Duration::from_secs(5),
                health_check: None,
            },
            encryption: Encryption::default(),
            observed: Observed::default(),
            hello: Metadata::default(),
            interceptor: None,
        }
    }
}

impl ClientBuilder {
    /// Sets how to connect by RDMA: device, completion mode, queue depths. The message limit is
    /// this builder's. Default: rdma-async's defaults, but the peer can request no memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the time within which a unary call must have its answer; waiting and sending count.
    /// Default 10 s. Streaming calls have no deadline unless [`Client::with_deadline`] sets one.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Sets the maximum number of concurrent calls; further calls wait. The server may allow fewer.
    /// Default 256, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.concurrency = calls.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, headers included. Default 16 MiB,
    /// minimum 8 KiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.message_limit = limits::message(bytes);
        self
    }

    /// Sets the maximum length of a [`Bulk`](crate::Bulk) of a result in bytes. Default 1 GiB.
    pub fn bulk_limit(mut self, bytes: usize) -> Self {
        self.bulk_limit = bytes;
        self
    }

    /// Encrypts connections to addresses with `tcp://` by TLS. The name of the host in the address
    /// must be one of the server's certificate. Default: no encryption.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<tokio_rustls::rustls::ClientConfig>) -> Self {
        self.encryption.client = Some(config);
        self
    }

    /// Records metrics of each method through the facade of the crate
    /// [`metrics`](https://docs.rs/metrics): the counter `rdma_rpc_calls_total`, the gauge
    /// `rdma_rpc_calls_in_flight` and the histogram `rdma_rpc_call_seconds`. Default: none.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.observed.has_metrics = true;
        self
    }

    /// Sends with each request the trace that the call belongs to, see
    /// [`TraceContext`](crate::TraceContext). Default: no traces.
    #[cfg(feature = "trace")]
    pub fn traces(mut self) -> Self {
        self.observed.has_traces = true;
        self
    }

    /// Sets metadata that the server gets when this client connects, such as a token: see
    /// [`Server::authenticate`](crate::Server::authenticate). Default: none.
    pub fn credentials(mut self, metadata: Metadata) -> Self {
        self.hello = metadata;
        self
    }

    /// Sets a function that is called before each call, with the name of the method and the
    /// metadata of the request. The request carries the metadata that the function returns, for
    /// example with a token that is renewed from time to time. An error fails the call, which is
    /// not sent.
    pub fn intercept(
        mut self,
        interceptor: impl Fn(&str, Metadata) -> Result<Metadata> + Send + Sync + 'static,
    ) -> Self {
        self.interceptor = Some(Interceptor(Arc::new(interceptor)));
        self
    }

    /// Connects to the server at an address.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the text is no address, [`Error::Transport`] or [`Error::Tcp`] if
    /// nothing listens at the address or the device cannot be used, and [`Error::Disconnected`] if
    /// the server does not answer in time.
    pub async fn connect(self, address: impl ToAddress) -> Result<Client> {
        let address = address.to_address()?;
        let transport = limits::transport(self.transport.clone(), self.message_limit);
        let connecting = timeout(
            limits::CONNECT,
            Link::connect(&address, transport, &self.encryption),
        );
        let (link, peer) = connecting.await.unwrap_or_else(|_| Err(late()))?;
        let handle = self.start(link, peer);
        handle.core.greeted().await?;
        Ok(self.client(Route::One(handle)))
    }

    /// Connects to several servers of the same services, and again whenever a connection has ended.
    /// Waits until one of them is connected.
    ///
    /// Each call uses one connection, which [`Self::balance`] chooses. A call that its server has
    /// certainly not started, because it is shutting down or overloaded or the connection ended
    /// before, is sent to another server, as often as its deadline allows. A streaming call is sent
    /// to another server only if nothing of its request was sent, and a one-way call is sent once.
    /// A call that a server may have started is never repeated, except one of a method with
    /// [`#[rpc(once)]`](macro@crate::service#at-most-once). A call waits while no server is
    /// connected, and then fails with [`Error::Unavailable`].
    ///
    /// The endpoints are addresses, or [`Endpoint`](crate::Endpoint)s with a second choice. With
    /// one address the client connects again to the same server.
    ///
    /// ```
    /// # use rdma_rpc::{Address, Balance, Client, Server};
    /// # #[rdma_rpc::service]
    /// # trait Doubler {
    /// #     async fn double(&self, number: u32) -> Result<u32, String>;
    /// # }
    /// # struct ByAddition;
    /// # impl Doubler for ByAddition {
    /// #     async fn double(&self, number: u32) -> Result<u32, String> {
    /// #         Ok(number + number)
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rdma_rpc::CallError<String>> {
    /// # let first = Server::new(DoublerServer::new(ByAddition)).listen(Address::memory()).await?;
    /// # let second = Server::new(DoublerServer::new(ByAddition)).listen(Address::memory()).await?;
    /// let builder = Client::builder().balance(Balance::LeastInFlight);
    /// let client = builder.connect_any([first.address(), second.address()]).await?;
    /// let client = DoublerClient::new(client);
    /// assert_eq!(client.double(4).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if a text is no address, and the error of an endpoint if none can be
    /// connected to at first.
    pub async fn connect_any(
        self,
        endpoints: impl IntoIterator<Item: ToEndpoint>,
    ) -> Result<Client> {
        let endpoints = endpoints.into_iter();
        let endpoints: Result<Vec<_>> = endpoints.map(|to| to.to_endpoint()).collect();
        let (balance, upkeep) = (self.balance, self.upkeep.clone());
        let endpoints = Endpoints::connect(endpoints?, &self, balance, &upkeep).await?;
        Ok(self.client(Route::Several(Arc::new(endpoints))))
    }

    /// Sets how [`Self::connect_any`] distributes calls. Default: one server after the other.
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Sets the pauses of [`Self::connect_any`] before it connects again: `first` after the end of
    /// a connection, then twice as long after each failure, at most `longest`. Each pause is
    /// shortened by up to a half at random. Default 50 ms and 5 s.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.upkeep.first_pause = first;
        self.upkeep.longest_pause = longest;
        self
    }

    /// Lets [`Self::connect_any`] check each server in this interval, by the [health
    /// service](crate::Health): a server that says that it does not serve gets no calls, and a
    /// connection without an answer within the interval is ended. A connection on which no further
    /// call can begin at once is not checked: the deadlines of its calls find a dead server. A
    /// server without the health service is healthy if it answers. Default: no checks.
    pub fn health_check(mut self, interval: Duration) -> Self {
        self.upkeep.health_check = Some(interval);
        self
    }

    /// Creates a client that uses an existing RDMA connection. The client receives all messages of
    /// the connection from now on. Calls wait until the server has sent its settings; if it does
    /// not within 20 s, the connection ends.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    #[must_use = "dropping the client ends the connection"]
    pub fn over(self, rdma: Rdma) -> Client {
        let (link, peer) = Link::over_rdma(rdma);
        self.client(Route::One(self.start(link, peer)))
    }

    fn client(&self, route: Route) -> Client {
        Client {
            interceptor: self.interceptor.clone(),
            observed: self.observed,
            ..Client::on(route, self.deadline)
        }
    }

    fn start(&self, link: Link, peer: Peer) -> Arc<Handle> {
        let own = Settings {
            message_limit: u32::try_from(self.message_limit).unwrap_or(u32::MAX),
            slots: 0,
            window_items: WINDOW_ITEMS,
            window_bytes: WINDOW_BYTES,
        };
        let side = Side::Client(Calls::new(self.concurrency.into()));
        Arc::new(Handle {
            core: Core::start(link, peer, own, self.bulk_limit, Some(&self.hello), side),
        })
    }
}

fn late() -> Error {
    Error::disconnected(format!(
        "the server did not answer within {:?}",
        limits::CONNECT
    ))
}
