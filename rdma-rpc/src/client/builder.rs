//! [`ClientBuilder`]: the settings of a client.

use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder};
use tokio::time::timeout;

use super::endpoint::{Reconnect, ToEndpoint};
use super::endpoints::{Balance, Endpoints};
use super::{Calls, Client, Connection, Interceptor, Route};
use crate::address::{Peer, ToAddress};
use crate::core::{Core, Side};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Encryption, Link};
use crate::metadata::Metadata;
use crate::observe::ObserveOptions;
use crate::stream::{WINDOW_BYTES, WINDOW_ITEMS};
use crate::wire::Settings;

/// Settings for a new [`Client`]. The defaults are suitable for most programs.
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until it connects"]
pub struct ClientBuilder {
    transport: Option<RdmaBuilder>,
    deadline: Duration,
    concurrency: u16,
    message_limit: usize,
    bulk_limit: usize,
    balance: Balance,
    reconnect: Reconnect,
    encryption: Encryption,
    observe: ObserveOptions,
    credentials: Metadata,
    interceptor: Option<Interceptor>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            transport: None,
            deadline: Duration::from_secs(10),
            concurrency: 256,
            message_limit: limits::MESSAGE_LEN,
            bulk_limit: limits::BULK_LEN,
            balance: Balance::default(),
            reconnect: Reconnect {
                first_pause: Duration::from_millis(50),
                longest_pause: Duration::from_secs(5),
                health_check: None,
            },
            encryption: Encryption::default(),
            observe: ObserveOptions::default(),
            credentials: Metadata::default(),
            interceptor: None,
        }
    }
}

impl ClientBuilder {
    /// Sets the RDMA settings, such as the device, the completion mode and the queue depths. The
    /// message limit of this builder replaces the message limit of these settings. By default, uses
    /// the default settings of rdma-async, but the peer cannot request memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets the time limit of unary calls (one request and one response). The limit includes the
    /// time until a call can be sent. Default 10 s. Streaming calls have no deadline unless
    /// [`Client::with_deadline`] sets a deadline.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = limit;
        self
    }

    /// Sets the maximum number of concurrent calls on a connection. Further calls wait until a call
    /// has ended. The server may allow fewer calls. Default 256, minimum 1.
    pub fn concurrency(mut self, calls: u16) -> Self {
        self.concurrency = calls.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, including headers. Default 16
    /// MiB, minimum 8 KiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.message_limit = limits::clamp_message_len(bytes);
        self
    }

    /// Sets the maximum length in bytes of each [`Bulk`](crate::Bulk) (long data that is
    /// transferred separately) in the results of calls. A call whose result contains a longer bulk
    /// fails with [`Error::Decode`]. Default 1 GiB.
    pub fn bulk_limit(mut self, bytes: usize) -> Self {
        self.bulk_limit = bytes;
        self
    }

    /// Sets the TLS configuration for `tcp://` addresses. The host name in the address must be a
    /// name in the server's certificate. Default: no encryption.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: Arc<tokio_rustls::rustls::ClientConfig>) -> Self {
        self.encryption.client = Some(config);
        self
    }

    /// Records metrics of each method through the crate [`metrics`](https://docs.rs/metrics): the
    /// counter `rdma_rpc_calls_total`, the gauge `rdma_rpc_calls_in_flight` and the histogram
    /// `rdma_rpc_call_seconds`. Default: no metrics.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self) -> Self {
        self.observe.has_metrics = true;
        self
    }

    /// Sends the trace context of each call with its request, see
    /// [`TraceContext`](crate::TraceContext). Default: no traces.
    #[cfg(feature = "trace")]
    pub fn traces(mut self) -> Self {
        self.observe.has_traces = true;
        self
    }

    /// Sets metadata that the client sends when it connects, such as a token. See
    /// [`Server::authenticate`](crate::Server::authenticate). Default: empty.
    pub fn credentials(mut self, metadata: Metadata) -> Self {
        self.credentials = metadata;
        self
    }

    /// Sets a function that is called before each call, with the name of the method and the
    /// metadata of the request. The request is sent with the metadata that the function returns,
    /// for example with a token that is renewed periodically. If the function returns an error, the
    /// call fails with this error and is not sent.
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
    /// * [`Error::Address`] if the text is not an address.
    /// * [`Error::Transport`] or [`Error::Tcp`] if no server listens at the address, or if the
    ///   device cannot be used.
    /// * [`Error::Disconnected`] if the server does not answer in time.
    pub async fn connect(self, address: impl ToAddress) -> Result<Client> {
        let address = address.to_address()?;
        let transport = limits::transport(self.transport.clone(), self.message_limit);
        let connecting = timeout(
            limits::CONNECT_TIMEOUT,
            Link::connect(&address, transport, &self.encryption),
        );
        let (link, peer) = connecting.await.unwrap_or_else(|_| Err(late()))?;
        let connection = self.start(link, peer);
        connection.core.wait_for_settings().await?;
        Ok(self.client(Route::One(connection)))
    }

    /// Connects to several servers of the same services, and reconnects whenever a connection has
    /// ended. Waits until a server accepts calls, or until the first attempts for all servers have
    /// ended.
    ///
    /// [`Self::balance`] determines the connection of each call. While no server accepts calls,
    /// calls wait. A call that still waits at its deadline fails with [`Error::Unavailable`].
    ///
    /// If a server has certainly not started a unary call, for example because it is overloaded,
    /// the call is sent to another server. A streaming call is sent to another server only if no
    /// part of its request was sent, and a one-way call is sent only once. A call that a server may
    /// have started is repeated only if its method has
    /// [`#[rpc(once)]`](macro@crate::service#at-most-once).
    ///
    /// The endpoints are addresses, or [`Endpoint`](crate::Endpoint)s with alternative addresses.
    /// With a single endpoint, the client reconnects to the same server.
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
    /// * [`Error::Address`] if a text is not an address.
    /// * The error of an endpoint if the client could connect to no endpoint. A first health check
    ///   without an answer counts as a failed attempt to connect.
    pub async fn connect_any(
        self,
        endpoints: impl IntoIterator<Item: ToEndpoint>,
    ) -> Result<Client> {
        let endpoints = endpoints.into_iter();
        let endpoints: Result<Vec<_>> = endpoints.map(|to| to.to_endpoint()).collect();
        let (balance, reconnect) = (self.balance, self.reconnect.clone());
        let endpoints = Endpoints::connect(endpoints?, &self, balance, &reconnect).await?;
        Ok(self.client(Route::Several(Arc::new(endpoints))))
    }

    /// Sets the policy by which [`Self::connect_any`] distributes calls. Default:
    /// [`Balance::RoundRobin`].
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Sets the pauses before [`Self::connect_any`] reconnects. The first pause after the end of a
    /// connection is `first`. After each failure, the pause doubles, up to `longest`. Each pause is
    /// shortened randomly by up to a half. Default 50 ms and 5 s.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.reconnect.first_pause = first;
        self.reconnect.longest_pause = longest;
        self
    }

    /// Enables a periodic check of each server of [`Self::connect_any`] through the [health
    /// service](crate::Health). Default: no checks.
    ///
    /// * A server that reports [`NotServing`](crate::HealthState::NotServing) gets no calls.
    /// * The first check precedes the calls of a new connection. Its time limit is at least 1 s.
    /// * If a check is not answered within `interval`, the connection is ended.
    /// * A server without the health service is healthy if it answers.
    /// * A connection on which new calls must wait is not checked, because the deadlines of its
    ///   running calls detect an unresponsive server.
    pub fn health_check(mut self, interval: Duration) -> Self {
        self.reconnect.health_check = Some(interval);
        self
    }

    /// Creates a client that uses an existing RDMA connection. From now on the client receives all
    /// messages of the connection. Calls wait until the server has sent its settings. The
    /// connection ends if the settings do not arrive within 20 s.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    #[must_use = "dropping the client ends the connection"]
    pub fn over(self, rdma: Rdma) -> Client {
        let (link, peer) = Link::over_rdma(rdma);
        self.client(Route::One(self.start(link, peer)))
    }

    /// Creates a client with the settings of this builder. `route` is the connection, or the set of
    /// connections to several servers, on which the client makes its calls.
    fn client(&self, route: Route) -> Client {
        Client {
            interceptor: self.interceptor.clone(),
            observe: self.observe,
            ..Client::on(route, self.deadline)
        }
    }

    /// Starts the protocol on `link`, an established transport connection to the server `peer`.
    /// Sends the client's settings, and spawns the tasks of the connection.
    fn start(&self, link: Link, peer: Peer) -> Arc<Connection> {
        let own = Settings {
            message_limit: u32::try_from(self.message_limit).unwrap_or(u32::MAX),
            slots: 0,
            window_items: WINDOW_ITEMS,
            window_bytes: WINDOW_BYTES,
        };
        let side = Side::Client(Calls::new(self.concurrency.into()));
        Arc::new(Connection {
            core: Core::start(
                link,
                peer,
                own,
                self.bulk_limit,
                Some(&self.credentials),
                side,
            ),
        })
    }
}

/// Returns the error for a server to which the transport, such as TCP or RDMA, did not connect
/// within [`limits::CONNECT_TIMEOUT`]. A server that does not send its settings in time causes
/// another error, see [`Core::start`].
fn late() -> Error {
    Error::disconnected(format!(
        "the server did not answer within {:?}",
        limits::CONNECT_TIMEOUT
    ))
}
