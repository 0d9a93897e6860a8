//! The tasks of a server: a task that accepts clients, and a task for each connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::{Server, ServerConnection, Shared};
use crate::address::Address;
use crate::core::{Core, Side};
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{Accepted, Listener};
use crate::once;
use crate::wire::Settings;

/// Time limit of each of the last two steps of a server's shutdown, which follow the grace period.
/// In these steps, each connection waits for its last handlers, and then sends its last answers.
/// Over TCP, sending includes the wait until the client closes the connection. Short, because the
/// program waits for the shutdown.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Pause after a failed `accept`. The cause is possibly a temporary lack of resources, such as file
/// descriptors. Without a pause, repeating the operation would occupy the CPU.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A handle to a running server. Dropping the handle also starts the shutdown that
/// [`Self::shutdown`] describes, but does not wait for the end of the running calls.
#[derive(Debug)]
#[must_use = "dropping the handle ends the server"]
pub struct ServerHandle {
    closing: watch::Sender<bool>,
    acceptor: JoinHandle<()>,
    address: Address,
}

impl ServerHandle {
    /// Returns the address at which clients connect, with the port that the operating system chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Shuts the server down: stops accepting clients, and refuses new calls with
    /// [`Error::ShuttingDown`]. Then waits, at most for the [grace period](Server::grace), until
    /// the running calls have finished and the callers have dropped the [`Bulk`](crate::Bulk)s of
    /// their results. Calls that run longer are dropped, and the leases of bulks that are held
    /// longer end. For each connection, sending the last answers may take up to 4 s more.
    pub async fn shutdown(mut self) {
        self.closing.send_replace(true);
        if let Err(stopped) = (&mut self.acceptor).await {
            tracing::error!(%stopped, "the server's task has panicked or was aborted");
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

/// Spawns the task of a server, which accepts clients from `listener`. Returns the handle that
/// shuts the server down.
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

/// Accepts clients and spawns a task for each of them, until the server shuts down. Then waits for
/// the tasks.
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
                    tracing::warn!(%error, "the handshake of a client failed");
                }
                Err(error) => {
                    tracing::error!(%error, "accepting a client failed");
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        log_end(ended);
    }
}

/// Serves one client until its connection ends, and returns the reason for the end. To end the
/// connection earlier, drop this future.
pub(super) async fn serve_one(shared: Arc<Shared>, client: Accepted) -> Error {
    // Nothing is sent on this channel: only dropping the future ends the connection early.
    let (_closing, closed) = watch::channel(false);
    serve(shared, client, closed).await
}

/// Guard that ends a connection when the task that serves the client is dropped.
struct EndOnDrop(Arc<Core>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.fail(Error::disconnected("the server was dropped"));
    }
}

/// Serves a client until its connection ends or the server has shut down. Returns the reason for
/// the end. A shutdown first waits for the client's calls.
async fn serve(shared: Arc<Shared>, client: Accepted, mut closing: watch::Receiver<bool>) -> Error {
    let begun = tokio::select! {
        begun = timeout(limits::CONNECT_TIMEOUT, client.into_link(&shared.encryption)) => begun,
        () = closed(&mut closing) => return Error::ShuttingDown,
    };
    let late = || Error::disconnected("the client has not completed the TLS handshake in time");
    let (link, peer) = match begun.unwrap_or_else(|_| Err(late())) {
        Ok(begun) => begun,
        Err(error) => {
            tracing::debug!(%error, "the handshake of a client failed");
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
    // If clients must authenticate, the settings are sent after the authentication.
    let metadata = once::server_metadata(shared.once.instance_id());
    let is_open = shared.authorization.authenticate.is_none();
    let metadata = is_open.then_some(&metadata);
    let side = Side::Server(ServerConnection::new(shared));
    let EndOnDrop(core) = &EndOnDrop(Core::start(link, peer, own, bulk_limit, metadata, side));
    tokio::select! {
        end = core.ended() => return end,
        () = closed(&mut closing) => {}
    }
    let connection = ServerConnection::of(core);
    connection.close(core);
    let grace_end = sleep(grace);
    tokio::pin!(grace_end);
    tokio::select! {
        () = connection.wait_for_handlers() => {}
        () = &mut grace_end => {}
        end = core.ended() => return end,
    }
    connection.stop(core);
    // A finished handler may not have appended its response yet. If this takes too long, the
    // announcement is omitted, and the client repeats no call.
    if timeout(LAST_ANSWERS, connection.wait_for_handlers())
        .await
        .is_ok()
    {
        connection.announce_all_answered(core);
        // The end of the connection would also end the bulks of results that the client has just
        // received.
        tokio::select! {
            () = core.bulks.wait_for_result_leases() => {}
            () = &mut grace_end => {}
            end = core.ended() => return end,
        }
    }
    if timeout(LAST_ANSWERS, finish_sending(core)).await.is_err() {
        tracing::warn!(
            peer = %core.peer,
            "a client did not receive its last answers, or did not close its connection, in time"
        );
    }
    core.fail(Error::ShuttingDown);
    core.end_error()
}

/// Waits until all messages of the connection were sent. Over TCP, also waits until the client has
/// closed the connection. During this wait, the receiving task reads the bytes that the client
/// still sends. Closing a socket with unread bytes would drop bytes that were not yet delivered to
/// the client.
async fn finish_sending(core: &Core) {
    core.outbox.wait_until_sent().await;
    if let Some(link) = core.outbox.link()
        && link.end_sending().await
    {
        core.ended().await;
    }
}

/// Waits until the shutdown of the server begins: when its handle is dropped, or when
/// [`ServerHandle::shutdown`] is called.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error means that the handle was dropped, which also begins the shutdown.
    drop(closing.wait_for(|&closing| closing).await);
}

/// Logs an error if the task that served a connection has panicked or was aborted. `ended` is the
/// result of the task.
fn log_end(ended: Result<Error, tokio::task::JoinError>) {
    if let Err(stopped) = ended {
        tracing::error!(%stopped, "a connection's task has panicked or was aborted");
    }
}
