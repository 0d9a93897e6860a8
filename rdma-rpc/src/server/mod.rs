//! The server side: accepts connections and serves their calls.

mod connection;
mod context;
mod router;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::{Rdma, RdmaBuilder, RdmaListener};
use tokio::net::ToSocketAddrs;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

pub use self::context::Context;
use self::router::Route;
pub use self::router::Router;
use crate::error::{Error, Result};
use crate::limits;

/// Time after the grace period in which connections may still send their goodbyes, before the server
/// aborts their tasks.
const GOODBYES: Duration = Duration::from_secs(2);
/// Pause after a failed accept: the cause may be a temporary lack of resources.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that offers the methods of a [`Router`] to any number of peers.
///
/// # Limits
///
/// While a connection has [`concurrency`](Self::concurrency) calls running, the server reads no further
/// request from it. Its messages then wait in the receive queue; when that queue is full, the client
/// waits to send. Calls beyond [`load_limit`](Self::load_limit) fail at once with
/// [`Error::Overloaded`].
#[must_use = "a server does nothing until it serves"]
pub struct Server {
    shared: Shared,
    transport: Option<RdmaBuilder>,
    connections: usize,
}

/// State shared by all connections of a server.
struct Shared {
    routes: HashMap<Box<str>, Route>,
    concurrency: usize,
    message_limit: usize,
    grace: Duration,
    /// One permit for each further call that may run, over all connections.
    calls: Semaphore,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("methods", &self.shared.routes.keys())
            .field("concurrency", &self.shared.concurrency)
            .field("message_limit", &self.shared.message_limit)
            .field("grace", &self.shared.grace)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Creates a server with default settings that offers the methods of a router.
    pub fn new<C>(router: Router<C>) -> Self {
        Self {
            shared: Shared {
                routes: router.routes,
                concurrency: 256,
                message_limit: limits::MESSAGE,
                grace: Duration::from_secs(10),
                calls: Semaphore::new(Semaphore::MAX_PERMITS),
            },
            transport: None,
            connections: 1024,
        }
    }

    /// Sets the maximum number of calls of one connection that run at once; further calls wait. Default
    /// 256, minimum 1.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.shared.concurrency = calls.max(1);
        self
    }

    /// Sets the maximum number of calls of all connections that run at once; further calls are refused.
    /// Default: unlimited.
    pub fn load_limit(mut self, calls: usize) -> Self {
        self.shared.calls = Semaphore::new(calls.min(Semaphore::MAX_PERMITS));
        self
    }

    /// Sets the maximum number of peers served at once; further peers wait to be accepted. Default
    /// 1024, minimum 1.
    pub fn connections(mut self, peers: usize) -> Self {
        self.connections = peers.max(1);
        self
    }

    /// Sets the maximum length of a request or response in bytes, header included. Default 16 MiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.shared.message_limit = bytes.max(limits::LEAST_MESSAGE);
        self
    }

    /// Sets the grace period: the time that running calls may take to finish after the server began to
    /// shut down. Default 10 s.
    pub fn grace(mut self, limit: Duration) -> Self {
        self.shared.grace = limit;
        self
    }

    /// Sets how [`Self::listen`] listens: device, completion mode, queue depths. Set the
    /// [`message_limit`](RdmaBuilder::message_limit) of `transport` too. Default: rdma-async's
    /// defaults, with this server's message limit; peers can request no memory.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Serves all peers that connect to a TCP address, in a new task, until the handle is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if the address or the device cannot be used.
    pub async fn listen(self, address: impl ToSocketAddrs) -> Result<ServerHandle> {
        let transport = self
            .transport
            .clone()
            .unwrap_or_else(|| limits::transport(self.shared.message_limit));
        let listener = transport.bind(address).await?;
        self.serve(listener)
    }

    /// Serves all peers that connect to a listener, in a new task, until the handle is dropped.
    ///
    /// The listener's builder limits how long a message is received at all, even one that this server
    /// then refuses: set [`RdmaBuilder::message_limit`] there too.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if the listener has no address.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    pub fn serve(self, listener: RdmaListener) -> Result<ServerHandle> {
        let address = listener.local_address()?;
        let (closing, closed) = watch::channel(false);
        let acceptor = tokio::spawn(accept(self, listener, closed));
        Ok(ServerHandle {
            closing,
            acceptor,
            address,
        })
    }

    /// Serves one peer until the peer disconnects or violates the protocol, and returns the reason.
    pub async fn serve_connection(self, rdma: Rdma) -> Error {
        // No message is ever sent on this channel: only dropping the future ends the service early.
        let (_closing, closed) = watch::channel(false);
        connection::serve(&self.shared, rdma, closed).await
    }
}

/// A handle to a running server. Dropping the handle shuts the server down as [`Self::shutdown`] does,
/// but does not wait.
#[derive(Debug)]
#[must_use = "dropping the handle ends the server"]
pub struct ServerHandle {
    closing: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
    address: SocketAddr,
}

impl ServerHandle {
    /// Returns the TCP address that the server listens on.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Shuts the server down: accepts no more peers, refuses new calls with [`Error::ShuttingDown`],
    /// and waits for running calls for at most the [grace period](Server::grace). Calls that are still
    /// running then are dropped.
    pub async fn shutdown(mut self) {
        self.closing.send_replace(true);
        if let Err(stopped) = (&mut self.acceptor).await {
            tracing::error!(%stopped, "the server did not end in order");
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

/// Accepts peers and serves each of them in a new task.
async fn accept(server: Server, mut listener: RdmaListener, mut closing: watch::Receiver<bool>) {
    let Server {
        shared,
        connections: most,
        ..
    } = server;
    let shared = Arc::new(shared);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = closed(&mut closing) => break,
            Some(ended) = connections.join_next() => log_end(ended),
            accepted = listener.accept(), if connections.len() < most => match accepted {
                Ok(rdma) => {
                    let (shared, closing) = (Arc::clone(&shared), closing.clone());
                    connections.spawn(async move { connection::serve(&shared, rdma, closing).await });
                }
                Err(error @ rdma_async::Error::Handshake { .. }) => {
                    tracing::warn!(%error, "passed over");
                }
                Err(error) => {
                    tracing::error!(%error, "could not accept");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let ended = async {
        while let Some(ended) = connections.join_next().await {
            log_end(ended);
        }
    };
    if timeout(shared.grace + GOODBYES, ended).await.is_err() {
        tracing::warn!("connections were given up");
        connections.shutdown().await;
    }
}

/// Waits until the server is to end.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error means that the handle was dropped, which shuts the server down too.
    drop(closing.wait_for(|&closing| closing).await);
}

fn log_end(ended: Result<Error, tokio::task::JoinError>) {
    if let Err(stopped) = ended {
        tracing::error!(%stopped, "a connection's task did not end in order");
    }
}
