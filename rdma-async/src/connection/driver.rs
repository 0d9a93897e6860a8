//! The task that wakes up when the device announces completions or the peer goes away.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rdma_core::CompletionChannel;
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::Connection;
use crate::error::{Error, Result};

/// How long operations in flight have after the peer has gone: their answers may be on the way, and
/// tell why it went.
const GRACE: Duration = Duration::from_millis(100);

/// Serves a connection until it is dropped. Holds it only while it has something to do.
pub(crate) async fn drive(
    connection: Weak<Connection>,
    channel: AsyncFd<CompletionChannel>,
    control: TcpStream,
) {
    let mut end = DriverEnd {
        connection: connection.clone(),
        reason: Error::disconnected("the runtime that it was made on has ended"),
    };
    if let Err(error) = serve(connection, channel, control).await {
        end.reason = error;
    }
}

async fn serve(
    connection: Weak<Connection>,
    channel: AsyncFd<CompletionChannel>,
    control: TcpStream,
) -> Result<()> {
    let Some(has_failed) = connection.upgrade().map(|it| it.has_failed.clone()) else {
        return Ok(());
    };
    let mut control = Some(control);
    // Why the peer went, and when that is the connection's end at the latest.
    let mut gone: Option<(String, Instant)> = None;
    loop {
        {
            let Some(connection) = connection.upgrade() else {
                return Ok(());
            };
            // What the peer sent before it went is here by now: its sends were acknowledged.
            catch_up(&connection, channel.get_ref()).await?;
            if let Some((reason, latest)) = &gone
                && (!connection.awaits_completions() || Instant::now() >= *latest)
            {
                connection.fail(Error::disconnected(reason.as_str()));
                gone = None;
            }
            if connection.failure().is_some() {
                // The peer learns of it by this.
                control = None;
            }
        }
        tokio::select! {
            // Announcements are drained by `catch_up`, after which the next one is an edge.
            ready = channel.readable() => ready
                .map_err(|source| Error::tcp("waiting for", "completions", source))?
                .clear_ready(),
            reason = end_of(control.as_mut()) => {
                control = None;
                gone = Some((reason, Instant::now() + GRACE));
            }
            () = has_failed.notified() => {}
            () = until(gone.as_ref().map(|(_, latest)| *latest)) => {}
        }
    }
}

/// Takes everything that has completed, and has the next completion announced.
async fn catch_up(connection: &Arc<Connection>, channel: &CompletionChannel) -> Result<()> {
    channel.drain(|_| {})?;
    drain(connection).await;
    connection.completions.request_notification()?;
    // What completed before the request is not announced.
    drain(connection).await;
    Ok(())
}

/// Takes completions until none is left, other threads' turns waited for.
async fn drain(connection: &Arc<Connection>) {
    while !connection.progress() {
        tokio::task::yield_now().await;
    }
}

/// Waits until the peer closes the TCP connection, on which nothing is said after the handshake; for
/// ever, if it has.
async fn end_of(control: Option<&mut TcpStream>) -> String {
    let Some(control) = control else {
        return std::future::pending().await;
    };
    let mut byte = [0];
    match control.read(&mut byte).await {
        Ok(0) => "the peer closed it".to_owned(),
        Ok(_) => "the peer sent something after the handshake".to_owned(),
        Err(error) => format!("the peer is gone: {error}"),
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Ends the connection when its driver ends, in whatever way: nothing would wake who waits.
struct DriverEnd {
    connection: Weak<Connection>,
    reason: Error,
}

impl Drop for DriverEnd {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.fail(self.reason.clone());
            connection.forsake();
        }
    }
}
