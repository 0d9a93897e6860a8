//! The tasks of a server: one that accepts clients, and one for each connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::{Server, Serving, Shared};
use crate::address::Address;
use crate::core::{Core, Side};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Accepted, Listener};
use crate::once;
use crate::wire::Settings;

/// Time after the grace period in which connections may still send their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Pause after a failed accept: the cause may be a temporary lack of resources.
const PAUSE: Duration = Duration::from_millis(100);

/// A handle to a running server. Dropping the handle shuts the server down as [`Self::shutdown`]
/// does, but does not wait.
#[derive(Debug)]
#[must_use = "dropping the handle ends the server"]
pub struct ServerHandle {
    closing: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
    address: Address,
}

impl ServerHandle {
    /// Returns the address at which clients connect, with the port that the system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Shuts the server down: accepts no more clients, refuses new calls with
    /// [`Error::ShuttingDown`], and waits for running calls for at most the [grace
    /// period](Server::grace). Calls that are still running then are dropped.
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

/// Starts the task of a server.
pub(super) fn start(server: Server, listener: Listener) -> Result<ServerHandle> {
    let address = listener.address()?;
    let (closing, closed) = watch::channel(false);
    let acceptor = tokio::spawn(accept(server, listener, closed));
    Ok(ServerHandle {
        closing,
        acceptor,
        address,
    })
}

/// Accepts clients and serves each of them in a new task.
async fn accept(server: Server, mut listener: Listener, mut closing: watch::Receiver<bool>) {
    let most = server.connections;
    let shared = Arc::new(server.shared);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = closed(&mut closing) => break,
            Some(ended) = connections.join_next() => log_end(ended),
            accepted = listener.accept(), if connections.len() < most => match accepted {
                Ok(client) => {
                    let (shared, closing) = (Arc::clone(&shared), closing.clone());
                    connections.spawn(serve(shared, client, closing));
                }
                Err(Error::Transport(error @ rdma_async::Error::Handshake { .. })) => {
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
    while let Some(ended) = connections.join_next().await {
        log_end(ended);
    }
}

/// Serves one client without a server's handle.
pub(super) async fn serve_one(shared: Arc<Shared>, client: Accepted) -> Error {
    // No message is ever sent on this channel: only dropping the future ends the service early.
    let (_closing, closed) = watch::channel(false);
    serve(shared, client, closed).await
}

/// Connection that is served, which ends when this value is dropped.
struct Served(Arc<Core>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fail(Error::disconnected("the server was dropped"));
    }
}

/// Serves a client until it disconnects or violates the protocol, or the server shuts down. Returns
/// the reason.
async fn serve(shared: Arc<Shared>, client: Accepted, mut closing: watch::Receiver<bool>) -> Error {
    let begun = tokio::select! {
        begun = timeout(limits::CONNECT, client.begin(&shared.encryption)) => begun,
        () = closed(&mut closing) => return Error::ShuttingDown,
    };
    let late = || Error::disconnected("the client has not begun TLS in time");
    let (link, peer) = match begun.unwrap_or_else(|_| Err(late())) {
        Ok(begun) => begun,
        Err(error) => {
            tracing::debug!(%error, "a client has gone already");
            return error;
        }
    };
    let grace = shared.grace;
    let own = Settings {
        message_limit: u32::try_from(shared.message_limit).unwrap_or(u32::MAX),
        slots: u32::try_from(shared.concurrency).unwrap_or(u32::MAX),
        window_items: 0,
        window_bytes: 0,
    };
    let bulk_limit = shared.bulk_limit;
    // A client that must authenticate gets the settings afterwards.
    let incarnation = once::hello(shared.once.incarnation());
    let is_open = shared.guards.authenticate.is_none();
    let hello = is_open.then_some(&incarnation);
    let side = Side::Server(Serving::new(shared));
    let Served(core) = &Served(Core::start(link, peer, own, bulk_limit, hello, side));
    tokio::select! {
        end = core.ended() => return end,
        () = closed(&mut closing) => {}
    }
    let serving = Serving::of(core);
    serving.close(core);
    tokio::select! {
        _ = timeout(grace, serving.idle()) => {}
        end = core.ended() => return end,
    }
    serving.stop(core);
    // A response may still be on its way to the outbox. If it takes too long, the client repeats
    // nothing.
    if timeout(LAST_ANSWERS, serving.idle()).await.is_ok() {
        serving.part(core);
    }
    if timeout(LAST_ANSWERS, core.outbox.sent_all()).await.is_err() {
        tracing::warn!(peer = %core.peer, "a client did not take its last answers");
    }
    core.fail(Error::ShuttingDown);
    core.ended_now()
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
