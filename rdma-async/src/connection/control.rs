//! The control task of a connection, which ends the connection and frees it.
//!
//! The task waits until the peer closes the [link](Link) or the application drops the connection.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, sleep_until};
use tracing::Instrument;

use super::Connection;
use super::link::Link;
use crate::error::Error;
use crate::observe::OpenConnection;

/// Maximum time for which a connection is kept after the application has dropped it, so that the
/// peer can receive the last messages. Also the maximum time for which operations of this end
/// continue after the peer has closed the connection: the peer keeps its queue pair for this time.
const LINGER: Duration = Duration::from_secs(1);

/// Interval at which the control task checks whether operations in flight have ended. The task
/// checks while the connection ends. The task also checks after a future was dropped whose request
/// is still binding or invalidating a memory window. Short, because the end of the connection waits
/// for the check.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// State of the control task of a connection. The task answers requests for memory, ends expired
/// leases, probes the peer, and ends the connection when the peer closes it. The task runs until
/// the application has dropped the connection and the peer has received the last messages.
#[derive(Debug)]
pub(crate) struct ControlTask {
    connection: Weak<Connection>,
    /// Channel through which the application passes the connection when it drops its handle.
    dropped: oneshot::Receiver<Arc<Connection>>,
    /// Connection that the application has dropped, kept for at most [`LINGER`].
    lingering: Option<Lingering>,
    /// Link to the peer, or `None` after either end has closed it.
    link: Option<Link>,
    /// Time of the next liveness probe, if the link does not probe the peer itself.
    next_probe: Instant,
    control_wakeup: Arc<Notify>,
    /// Task that is allocating large memory for a request of the peer, on a thread for blocking
    /// tasks.
    granting: Option<JoinHandle<()>>,
    _open: OpenConnection,
    /// Dropped last, so that completions reach the connection until the task ends.
    _attached: Attached,
}

/// Guard that keeps a connection attached to its shard (the shared queues and their task): while
/// attached, the shard dispatches the completions of the queue pair to the connection.
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

/// State of a connection that the application has dropped and that is kept until the peer has
/// received the last messages.
#[derive(Debug)]
struct Lingering {
    connection: Arc<Connection>,
    /// Time at which the connection is freed at the latest.
    deadline: Instant,
    /// Numbers of bytes of a stream that the peer had not received at the last check: not sent, and
    /// in its ring.
    unread: (usize, usize),
    /// Set once this end has shut down its side of the link.
    has_shut_down: bool,
}

impl Lingering {
    /// Extends the deadline at which a dropped stream is freed, if the peer has received bytes
    /// since the last call. Thus written bytes are still delivered, as after the close of a TCP
    /// socket. The new deadline is after [`RdmaBuilder::response_timeout`] if bytes are unsent, and
    /// otherwise after [`LINGER`].
    ///
    /// [`RdmaBuilder::response_timeout`]: crate::RdmaBuilder::response_timeout
    fn extend_while_read(&mut self) {
        let unsent = self.connection.unsent_bytes();
        let unread = (unsent, self.connection.bytes_in_peer_ring());
        if unread != self.unread {
            self.unread = unread;
            let limit = match unsent {
                0 => LINGER,
                _ => self.connection.settings.response_timeout,
            };
            self.deadline = Instant::now() + limit;
        }
    }
}

/// State of a connection that the peer has closed. The connection is kept while operations of this
/// end are in flight, at most until the deadline.
#[derive(Debug)]
struct PeerClosed {
    reason: String,
    /// Time at which the connection ends even if operations are still in flight.
    deadline: Instant,
    /// Link to the peer. Kept open while operations are in flight, because the peer keeps its queue
    /// pair until the link closes.
    link: Option<Link>,
}

impl ControlTask {
    /// Starts the control task of a connection on the current runtime. Returns the sender of a
    /// channel to this task. When the application drops its handle, the handle sends the connection
    /// on this channel, and the task then ends the connection.
    pub(crate) fn spawn(attached: Attached, link: Link) -> oneshot::Sender<Arc<Connection>> {
        let (sender, dropped) = oneshot::channel();
        let connection = Arc::clone(&attached.0);
        let mut task = Self {
            connection: Arc::downgrade(&connection),
            dropped,
            lingering: None,
            link: Some(link),
            next_probe: Instant::now() + connection.probe_interval(),
            control_wakeup: connection.control_wakeup.clone(),
            granting: None,
            _open: OpenConnection::of(connection.device()),
            _attached: attached,
        };
        let span = connection.span().clone();
        tokio::spawn(async move { task.run().await }.instrument(span));
        sender
    }

    /// Runs the control task until the connection is freed: answers requests for memory, ends
    /// expired leases, probes the peer, and ends the connection when the peer closes it.
    async fn run(&mut self) {
        let mut peer_closed: Option<PeerClosed> = None;
        loop {
            let Some(connection) = self.connection.upgrade() else {
                return;
            };
            if let Some(PeerClosed {
                reason,
                deadline,
                link,
            }) = &peer_closed
            {
                // The peer closed the connection only after its messages were acknowledged, so
                // their completions are already in the completion queue.
                connection.shard.drain_completions().await;
                let is_busy = connection.awaits_completions()
                    || link.as_ref().is_some_and(|link| link.is_busy(&connection));
                if !is_busy || Instant::now() >= *deadline {
                    connection.fail(Error::disconnected(reason.as_str()));
                    peer_closed = None;
                }
            }
            if connection.failure().is_some() {
                // Closing the link notifies the peer.
                self.link = None;
            }
            self.probe(&connection);
            connection.end_expired_leases();
            let has_abandoned = connection.end_abandoned_windows();
            self.answer_request(&connection).await;
            let lease_expiry = connection.next_lease_expiry();
            drop(connection);
            if self.is_linger_over().await {
                return;
            }
            let must_check = has_abandoned || peer_closed.is_some() || self.lingering.is_some();
            let next_probe = self.next_probe;
            let needs_probes = self.link.as_ref().is_some_and(Link::needs_probes);
            tokio::select! {
                reason = wait_for_link_close(self.link.as_mut()) => {
                    if let (Some(link), Some(connection)) = (&self.link, self.connection.upgrade()) {
                        link.announce_close_in_band(&connection);
                    }
                    peer_closed = Some(PeerClosed {
                        reason,
                        deadline: Instant::now() + LINGER,
                        link: self.link.take(),
                    });
                }
                () = sleep_until(next_probe.into()), if needs_probes => {}
                () = until(lease_expiry) => {}
                () = self.control_wakeup.notified() => {}
                () = end_of_grant(&mut self.granting) => self.granting = None,
                dropped = &mut self.dropped, if self.lingering.is_none() => match dropped {
                    Ok(connection) => self.linger(connection),
                    // The sender was dropped without a connection, so the connection is already
                    // freed.
                    Err(_) => return,
                },
                () = sleep(CHECK_INTERVAL), if must_check => {}
            }
        }
    }

    /// Sends a probe (a message without a body) if the time of the next probe has passed. The
    /// connection ends if the peer does not acknowledge the probe. Sends no probes over a TCP link,
    /// because the kernel detects that such a peer has failed.
    fn probe(&mut self, connection: &Connection) {
        let now = Instant::now();
        if now >= self.next_probe && self.link.as_ref().is_some_and(Link::needs_probes) {
            self.next_probe = now + connection.probe_interval();
            connection.probe();
        }
    }

    /// Answers the oldest request of the peer for memory. Does nothing while the memory for an
    /// earlier request is still being allocated on another thread.
    async fn answer_request(&mut self, connection: &Arc<Connection>) {
        if self.granting.is_none()
            && let Some(request) = connection.requests.pop()
        {
            self.granting = connection.answer(request);
            // The next request follows after the other tasks of this thread.
            self.control_wakeup.notify_one();
            yield_now().await;
        }
    }

    /// Begins to keep `connection`, which the application has dropped, until the peer has received
    /// the last messages.
    fn linger(&mut self, connection: Arc<Connection>) {
        // Posts staged requests now instead of at the end of the turn.
        connection.post_staged();
        self.lingering = Some(Lingering {
            connection,
            deadline: Instant::now() + LINGER,
            unread: (0, 0),
            has_shut_down: false,
        });
    }

    /// Returns whether a connection that the application has dropped can be freed. A connection can
    /// be freed if its deadline has passed, or if the connection has failed, for example because
    /// the peer has closed its end. Also shuts down this side of the [`Link`] (for example the TCP
    /// connection) once the peer has received all messages.
    ///
    /// Even then, the connection is kept until the peer closes its end, so that the queue pair
    /// acknowledges retransmissions of the peer's last messages.
    async fn is_linger_over(&mut self) -> bool {
        let Some(lingering) = &mut self.lingering else {
            return false;
        };
        lingering.extend_while_read();
        if let Some(link) = &mut self.link
            && lingering.unread.0 == 0
            && lingering.connection.has_delivered_all()
            && !lingering.has_shut_down
        {
            lingering.has_shut_down = true;
            link.shut_down(&lingering.connection).await;
        }
        lingering.connection.failure().is_some() || Instant::now() >= lingering.deadline
    }

    /// Blocks the thread until the peer has received all messages of this end or has closed its
    /// end. Used when the runtime has ended, so that no task can wait. Blocks at most for
    /// [`LINGER`], or until the deadline that was set when the application dropped the connection.
    fn block_until_delivered(&self, connection: &Connection) {
        /// Pause between two polls of the completion queue while the thread waits until the peer
        /// has received all messages. Short compared with the time of an acknowledgement over a
        /// network.
        const PAUSE: Duration = Duration::from_micros(50);
        let deadline = match &self.lingering {
            Some(lingering) => lingering.deadline,
            None => Instant::now() + LINGER,
        };
        connection.post_staged();
        let Some(link) = &self.link else {
            return;
        };
        let wait = || {
            while connection.failure().is_none()
                && !connection.has_delivered_all()
                && link.is_open()
                && Instant::now() < deadline
            {
                // Completions free entries of the send queue and return credits, for which queued
                // messages wait.
                connection.shard.poll();
                thread::sleep(PAUSE);
            }
        };
        wait();
        if link.announce_close_in_band(connection) {
            wait();
        }
    }
}

impl Drop for ControlTask {
    /// Ends the connection when its control task ends for any reason, and wakes the tasks that wait
    /// for the connection. If the connection is still open because the runtime was dropped, first
    /// blocks the thread for a limited time until the peer has received all messages.
    fn drop(&mut self) {
        let handed_over = self.dropped.try_recv().ok();
        if let Some(connection) = handed_over.or_else(|| self.connection.upgrade()) {
            self.block_until_delivered(&connection);
            connection.fail(Error::disconnected(match self.lingering {
                Some(_) => "it was dropped",
                None => "the runtime on which it was created has ended",
            }));
            connection.end_waits();
        }
    }
}

/// Waits until the task `granting` has allocated the memory that the peer requested, and has sent
/// the reply. With `None`, never completes, so that a `select!` waits only for its other branches.
async fn end_of_grant(granting: &mut Option<JoinHandle<()>>) {
    match granting {
        Some(granting) => drop(granting.await),
        None => std::future::pending().await,
    }
}

/// Waits until the time `time`, or forever if `time` is `None`. Used as a branch of `select!`.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until the peer closes `link`, and returns the reason. The peer closes the link when it
/// closes the connection. Never completes if `link` is `None`.
async fn wait_for_link_close(link: Option<&mut Link>) -> String {
    match link {
        Some(link) => link.wait_for_close().await,
        None => std::future::pending().await,
    }
}
