//! Serving.

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

/// How much longer than its grace period a server waits for its connections' goodbyes.
const GOODBYES: Duration = Duration::from_secs(2);
/// How long the server lets be after it could not accept: what it lacks may come back.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the methods of a [`Router`] to any number of peers.
///
/// # What happens when there is more than it takes
///
/// A connection with as many calls as [`concurrency`](Self::concurrency) allows is not read from until
/// one is answered: then its client's messages wait in the receive queue, and when that is full, its
/// calls wait to be sent. Calls beyond [`load_limit`](Self::load_limit) fail at once with
/// [`Error::Overloaded`].
#[must_use = "a server does nothing until it serves"]
pub struct Server {
    shared: Shared,
    transport: Option<RdmaBuilder>,
    connections: usize,
}

/// What a server's connections share.
struct Shared {
    routes: HashMap<Box<str>, Route>,
    concurrency: usize,
    message_limit: usize,
    grace: Duration,
    /// A permit for each call that may run.
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
    /// Serves the methods of a router.
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

    /// How many calls of one connection run at once; more wait. Default 256, at least 1.
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.shared.concurrency = calls.max(1);
        self
    }

    /// How many calls of all connections run at once; more are refused. Default: any number.
    pub fn load_limit(mut self, calls: usize) -> Self {
        self.shared.calls = Semaphore::new(calls.min(Semaphore::MAX_PERMITS));
        self
    }

    /// How many peers are served at once; more wait to be accepted. Default 1024, at least 1.
    pub fn connections(mut self, peers: usize) -> Self {
        self.connections = peers.max(1);
        self
    }

    /// How long a request or response can be, in bytes, its header included. Default 16 MiB.
    pub fn message_limit(mut self, bytes: usize) -> Self {
        self.shared.message_limit = bytes.max(limits::LEAST_MESSAGE);
        self
    }

    /// How long the calls that run may take when the server ends. Default 10 s.
    pub fn grace(mut self, limit: Duration) -> Self {
        self.shared.grace = limit;
        self
    }

    /// How [`Self::listen`] listens: device, completion mode, depths. Set its
    /// [`message_limit`](RdmaBuilder::message_limit) too. Default: rdma-async's defaults, with this
    /// server's message limit, and no memory for peers to request.
    pub fn transport(mut self, transport: RdmaBuilder) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Serves who connects to a TCP address, in a task of its own, until the handle is dropped.
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

    /// Serves who connects to a listener, in a task of its own, until the handle is dropped.
    ///
    /// A longer message than the server takes is received as long as the listener's builder allows,
    /// so give that a limit too ([`RdmaBuilder::message_limit`]).
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if the listener has no address.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
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

    /// Serves one peer until it goes or breaks the protocol, and returns which it was.
    pub async fn serve_connection(self, rdma: Rdma) -> Error {
        // Nobody ends it but who drops the future.
        let (_closing, closed) = watch::channel(false);
        connection::serve(&self.shared, rdma, closed).await
    }
}

/// A server that serves. Dropping it ends the server as [`Self::shutdown`] does, without waiting.
#[derive(Debug)]
#[must_use = "dropping the handle ends the server"]
pub struct ServerHandle {
    closing: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
    address: SocketAddr,
}

impl ServerHandle {
    /// The TCP address that the server listens at.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server: it accepts nobody any more, refuses new calls with [`Error::ShuttingDown`],
    /// and waits for those that run, as long as [`Server::grace`] says; then it gives them up.
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

/// Accepts peers and serves each in a task of its own.
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
    // If the handle is gone without a word, that is one.
    drop(closing.wait_for(|&closing| closing).await);
}

fn log_end(ended: Result<Error, tokio::task::JoinError>) {
    if let Err(stopped) = ended {
        tracing::error!(%stopped, "a connection's task did not end in order");
    }
}
