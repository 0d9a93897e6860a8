//! The task that wakes up when the device announces completions or the peer goes away.

use std::sync::{Arc, Weak};

use rdma_core::CompletionChannel;
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

use super::Connection;
use crate::error::{Error, Result};

/// Serves a connection until it is dropped. Holds it only while it has something to do.
pub(crate) async fn drive(
    connection: Weak<Connection>,
    channel: AsyncFd<CompletionChannel>,
    mut control: TcpStream,
) {
    let mut peer_is_there = true;
    loop {
        {
            let Some(connection) = connection.upgrade() else {
                return;
            };
            if let Err(error) = catch_up(&connection, channel.get_ref()).await {
                connection.fail(error);
                // The device is gone: nothing will be announced any more.
                return;
            }
        }
        tokio::select! {
            ready = channel.readable() => match ready {
                // Announcements are drained by `catch_up`, after which the next one is an edge.
                Ok(mut ready) => ready.clear_ready(),
                Err(source) => {
                    if let Some(connection) = connection.upgrade() {
                        connection.fail(Error::tcp("waiting for", "completions", source));
                    }
                    return;
                }
            },
            end = end_of(&mut control), if peer_is_there => {
                peer_is_there = false;
                let Some(connection) = connection.upgrade() else { return };
                // What the peer sent before it went is here by now: its sends were acknowledged.
                if let Err(error) = catch_up(&connection, channel.get_ref()).await {
                    connection.fail(error);
                    return;
                }
                connection.fail(Error::disconnected(end));
            }
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

/// Waits until the peer closes the TCP connection, on which nothing is said after the handshake.
async fn end_of(control: &mut TcpStream) -> String {
    let mut byte = [0];
    match control.read(&mut byte).await {
        Ok(0) => "the peer closed it".to_owned(),
        Ok(_) => "the peer sent something after the handshake".to_owned(),
        Err(error) => format!("the peer is gone: {error}"),
    }
}
