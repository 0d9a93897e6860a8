//! The task that ends a connection: it waits for the peer's end of the TCP connection, and for the drop of
//! this end.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::Connection;
use crate::error::Error;

/// Longest time for which a dropped connection is kept for the messages that the peer does not have yet,
/// and longest time of operations in flight after the peer has closed the connection: the peer keeps its
/// queue pair for them.
const LINGER: Duration = Duration::from_secs(1);

/// Time between two looks at operations in flight, while a connection ends.
const TICK: Duration = Duration::from_millis(1);

/// Serves a connection until it is dropped and the peer has the last messages.
#[derive(Debug)]
pub(crate) struct ControlTask {
    connection: Weak<Connection>,
    /// Brings the connection when the application has dropped it.
    dropped: oneshot::Receiver<Arc<Connection>>,
    /// The connection, from its drop to the end of [`LINGER`].
    lingering: Option<Lingering>,
    /// The TCP connection, until one end closes it.
    control: Option<TcpStream>,
    has_failed: Arc<Notify>,
    /// Dropped last.
    _attached: Attached,
}

/// A connection that its shard hands completions to, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Attached(Arc<Connection>);

impl Attached {
    pub(crate) fn new(connection: &Arc<Connection>) -> Self {
        connection.shard.attach(connection);
        Self(Arc::clone(connection))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.shard.detach(&self.0);
    }
}

/// A connection that the application has dropped.
#[derive(Debug)]
struct Lingering {
    connection: Arc<Connection>,
    latest: Instant,
    /// `true` once this end has shut down its side of the TCP connection.
    has_shut_down: bool,
}

/// A connection that the peer has closed, with operations of this end in flight.
#[derive(Debug)]
struct PeerGone {
    reason: String,
    /// The end of the connection at the latest.
    latest: Instant,
    /// Stays open until the operations have ended: the peer keeps its queue pair as long.
    _control: Option<TcpStream>,
}

impl ControlTask {
    /// Starts the task of a connection on the current runtime. The sender that is returned takes the
    /// connection when the application drops it.
    pub(crate) fn spawn(
        attached: Attached,
        control: TcpStream,
    ) -> oneshot::Sender<Arc<Connection>> {
        let (sender, dropped) = oneshot::channel();
        let connection = &attached.0;
        let mut task = Self {
            connection: Arc::downgrade(connection),
            dropped,
            lingering: None,
            control: Some(control),
            has_failed: connection.has_failed.clone(),
            _attached: attached,
        };
        tokio::spawn(async move { task.serve().await });
        sender
    }

    async fn serve(&mut self) {
        let mut peer_gone: Option<PeerGone> = None;
        loop {
            let Some(connection) = self.connection.upgrade() else {
                return;
            };
            if let Some(PeerGone { reason, latest, .. }) = &peer_gone {
                // The peer's messages from before it closed are here by now: it waited for their
                // acknowledgements.
                connection.shard.catch_up().await;
                if !connection.awaits_completions() || Instant::now() >= *latest {
                    connection.fail(Error::disconnected(reason.as_str()));
                    peer_gone = None;
                }
            }
            if connection.failure().is_some() {
                // Closing it tells the peer.
                self.control = None;
            }
            drop(connection);
            if self.has_lingered().await {
                return;
            }
            let is_ending = peer_gone.is_some() || self.lingering.is_some();
            tokio::select! {
                reason = end_of(self.control.as_mut()) => {
                    peer_gone = Some(PeerGone {
                        reason,
                        latest: Instant::now() + LINGER,
                        _control: self.control.take(),
                    });
                }
                () = self.has_failed.notified() => {}
                dropped = &mut self.dropped, if self.lingering.is_none() => match dropped {
                    Ok(connection) => self.linger(connection),
                    // Nothing of the connection is left.
                    Err(_) => return,
                },
                () = sleep(TICK), if is_ending => {}
            }
        }
    }

    fn linger(&mut self, connection: Arc<Connection>) {
        // What waits for the end of the turn leaves now.
        connection.leave();
        self.lingering = Some(Lingering {
            connection,
            latest: Instant::now() + LINGER,
            has_shut_down: false,
        });
    }

    /// Returns whether a dropped connection need not be kept any longer: the peer has what was sent and
    /// has closed its end too, the connection has failed, or the time is over.
    ///
    /// Waiting for the peer's end keeps the queue pair, which acknowledges the peer's last messages
    /// again if the first acknowledgements were lost.
    async fn has_lingered(&mut self) -> bool {
        let Some(lingering) = &mut self.lingering else {
            return false;
        };
        if let Some(control) = &mut self.control
            && lingering.connection.is_settled()
            && !lingering.has_shut_down
        {
            lingering.has_shut_down = true;
            // A failure means that the peer is gone, which the end of the stream says too.
            let _ = control.shutdown().await;
        }
        lingering.connection.failure().is_some() || Instant::now() >= lingering.latest
    }

    /// Waits, without the runtime, until the peer has what was sent, or has closed its end.
    fn settle(&self, connection: &Connection) {
        const PAUSE: Duration = Duration::from_micros(50);
        let latest = match &self.lingering {
            Some(lingering) => lingering.latest,
            None => Instant::now() + LINGER,
        };
        connection.leave();
        let control = self.control.as_ref().map(|control| control.as_fd());
        // Without the runtime nothing else says that the stream has ended.
        let Some(Ok(control)) = control.map(|fd| fd.try_clone_to_owned()) else {
            return;
        };
        let control = std::net::TcpStream::from(control);
        let is_open = || {
            let outcome = control.peek(&mut [0]);
            outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        while connection.failure().is_none()
            && !connection.is_settled()
            && is_open()
            && Instant::now() < latest
        {
            // Acknowledgements free the slots and credits that further messages wait for.
            connection.shard.poll();
            thread::sleep(PAUSE);
        }
    }
}

impl Drop for ControlTask {
    /// Ends the connection with this task, in whatever way that ends: nothing would wake the tasks that
    /// wait. If the runtime was dropped, this sends what the peer does not have yet, for at most
    /// [`LINGER`].
    fn drop(&mut self) {
        let handed_over = self.dropped.try_recv().ok();
        if let Some(connection) = handed_over.or_else(|| self.connection.upgrade()) {
            self.settle(&connection);
            connection.fail(Error::disconnected(match self.lingering {
                Some(_) => "it was dropped",
                None => "the runtime that it was made on has ended",
            }));
            connection.forsake();
        }
    }
}

/// Waits until the peer closes the TCP connection, which carries nothing after the handshake; for ever
/// if there is none.
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
