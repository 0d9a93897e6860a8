//! The control task of a connection, which ends the connection.
//!
//! The task waits until the peer closes the [link](Link), or the application drops this end.

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

/// Maximum time for which a dropped connection is kept until the peer has its last messages. Also
/// the maximum time that operations in flight get after the peer has closed the connection, because
/// the peer keeps its queue pair for as long.
const LINGER: Duration = Duration::from_secs(1);

/// Time between two checks of the operations in flight, while a connection ends.
const TICK: Duration = Duration::from_millis(1);

/// State of the control task, which runs until the connection is dropped and the peer has the last
/// messages.
#[derive(Debug)]
pub(crate) struct ControlTask {
    connection: Weak<Connection>,
    /// Receives the connection when the application drops it.
    dropped: oneshot::Receiver<Arc<Connection>>,
    /// The dropped connection, which is kept for at most [`LINGER`].
    lingering: Option<Lingering>,
    /// The link to the peer, until either end closes it.
    link: Option<Link>,
    /// Time of the next test of a link that does not test the peer itself.
    next_probe: Instant,
    has_news: Arc<Notify>,
    /// Grant of large memory that a thread for blocking tasks is preparing.
    granting: Option<JoinHandle<()>>,
    _open: OpenConnection,
    /// Dropped last.
    _attached: Attached,
}

/// Guard that keeps a connection attached to its shard, which passes completions to it.
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
    /// Number of bytes of a stream that the peer had not taken at the last check.
    unsent: usize,
    /// Set once this end has shut down its side of the link.
    has_shut_down: bool,
}

impl Lingering {
    /// Keeps a stream while the peer takes its bytes: as after the close of a TCP socket, the bytes
    /// that were written are delivered. A peer that takes none for
    /// [`RdmaBuilder::response_timeout`] loses them.
    ///
    /// [`RdmaBuilder::response_timeout`]: crate::RdmaBuilder::response_timeout
    fn extend_while_read(&mut self) {
        let unsent = self.connection.unsent_bytes();
        if unsent != self.unsent {
            self.unsent = unsent;
            let limit = match unsent {
                0 => LINGER,
                _ => self.connection.settings.response_timeout,
            };
            self.latest = Instant::now() + limit;
        }
    }
}

/// State after the peer has closed the connection, while operations of this end are in flight.
#[derive(Debug)]
struct PeerGone {
    reason: String,
    /// Time at which the connection is ended at the latest.
    latest: Instant,
    /// Link, open until the operations have ended, because the peer keeps its queue pair as long.
    link: Option<Link>,
}

impl ControlTask {
    /// Starts the control task of a connection on the current runtime. Returns the sender to which
    /// the connection is passed when the application drops it.
    pub(crate) fn spawn(attached: Attached, link: Link) -> oneshot::Sender<Arc<Connection>> {
        let (sender, dropped) = oneshot::channel();
        let connection = Arc::clone(&attached.0);
        let mut task = Self {
            connection: Arc::downgrade(&connection),
            dropped,
            lingering: None,
            link: Some(link),
            next_probe: Instant::now() + connection.probe_interval(),
            has_news: connection.has_news.clone(),
            granting: None,
            _open: OpenConnection::of(connection.device()),
            _attached: attached,
        };
        let span = connection.span().clone();
        tokio::spawn(async move { task.serve().await }.instrument(span));
        sender
    }

    async fn serve(&mut self) {
        let mut peer_gone: Option<PeerGone> = None;
        loop {
            let Some(connection) = self.connection.upgrade() else {
                return;
            };
            if let Some(PeerGone {
                reason,
                latest,
                link,
            }) = &peer_gone
            {
                // The peer closed only after its messages were acknowledged, so they are already in
                // the completion queue.
                connection.shard.catch_up().await;
                let is_busy = connection.awaits_completions()
                    || link.as_ref().is_some_and(|link| link.is_busy(&connection));
                if !is_busy || Instant::now() >= *latest {
                    connection.fail(Error::disconnected(reason.as_str()));
                    peer_gone = None;
                }
            }
            if connection.failure().is_some() {
                // Closing the link notifies the peer.
                self.link = None;
            }
            self.probe(&connection);
            connection.end_overdue_leases();
            self.answer_request(&connection).await;
            let lease_end = connection.next_lease_end();
            drop(connection);
            if self.has_lingered().await {
                return;
            }
            let is_ending = peer_gone.is_some() || self.lingering.is_some();
            let next_probe = self.next_probe;
            let needs_probes = self.link.as_ref().is_some_and(Link::needs_probes);
            tokio::select! {
                reason = end_of(self.link.as_mut()) => {
                    if let (Some(link), Some(connection)) = (&self.link, self.connection.upgrade()) {
                        link.say_end(&connection);
                    }
                    peer_gone = Some(PeerGone {
                        reason,
                        latest: Instant::now() + LINGER,
                        link: self.link.take(),
                    });
                }
                () = sleep_until(next_probe.into()), if needs_probes => {}
                () = until(lease_end) => {}
                () = self.has_news.notified() => {}
                () = end_of_grant(&mut self.granting) => self.granting = None,
                dropped = &mut self.dropped, if self.lingering.is_none() => match dropped {
                    Ok(connection) => self.linger(connection),
                    // The sender is gone, and so is the connection.
                    Err(_) => return,
                },
                () = sleep(TICK), if is_ending => {}
            }
        }
    }

    /// Sends a message to the peer if the link needs one now, and nothing else is in flight: a peer
    /// that is gone does not acknowledge the message, which ends the connection.
    fn probe(&mut self, connection: &Connection) {
        let now = Instant::now();
        if now >= self.next_probe && self.link.as_ref().is_some_and(Link::needs_probes) {
            self.next_probe = now + connection.probe_interval();
            connection.probe();
        }
    }

    /// Answers one request of the peer for memory, unless a grant is being prepared.
    async fn answer_request(&mut self, connection: &Arc<Connection>) {
        if self.granting.is_none()
            && let Some(request) = connection.requests.pop()
        {
            self.granting = connection.answer(request);
            // The next request follows after the other tasks of this thread.
            self.has_news.notify_one();
            yield_now().await;
        }
    }

    fn linger(&mut self, connection: Arc<Connection>) {
        // Staged requests are handed over now instead of at the end of the turn.
        connection.post_staged();
        self.lingering = Some(Lingering {
            connection,
            latest: Instant::now() + LINGER,
            unsent: 0,
            has_shut_down: false,
        });
    }

    /// Returns whether a dropped connection can be freed: it has failed, for example because the
    /// peer has closed its end, or [`LINGER`] has passed. Shuts down this side of the link once the
    /// peer has everything.
    ///
    /// Until the peer closes its end, the queue pair is kept, to acknowledge the peer's last
    /// messages again if the first acknowledgements were lost.
    async fn has_lingered(&mut self) -> bool {
        let Some(lingering) = &mut self.lingering else {
            return false;
        };
        lingering.extend_while_read();
        if let Some(link) = &mut self.link
            && lingering.unsent == 0
            && lingering.connection.is_settled()
            && !lingering.has_shut_down
        {
            lingering.has_shut_down = true;
            link.shut_down(&lingering.connection).await;
        }
        lingering.connection.failure().is_some() || Instant::now() >= lingering.latest
    }

    /// Blocks the thread until the peer has everything that was sent or has closed its end, for at
    /// most [`LINGER`]. Used when the runtime has ended.
    fn settle(&self, connection: &Connection) {
        const PAUSE: Duration = Duration::from_micros(50);
        let latest = match &self.lingering {
            Some(lingering) => lingering.latest,
            None => Instant::now() + LINGER,
        };
        connection.post_staged();
        let Some(link) = &self.link else {
            return;
        };
        let wait = || {
            while connection.failure().is_none()
                && !connection.is_settled()
                && link.is_open()
                && Instant::now() < latest
            {
                // Completions free the slots and credits for which further messages wait.
                connection.shard.poll();
                thread::sleep(PAUSE);
            }
        };
        wait();
        if link.say_end(connection) {
            wait();
        }
    }
}

impl Drop for ControlTask {
    /// Ends the connection when this task ends for any reason, because waiting tasks would never be
    /// woken otherwise. If the runtime was dropped, waits for at most [`LINGER`] until the peer has
    /// everything.
    fn drop(&mut self) {
        let handed_over = self.dropped.try_recv().ok();
        if let Some(connection) = handed_over.or_else(|| self.connection.upgrade()) {
            self.settle(&connection);
            connection.fail(Error::disconnected(match self.lingering {
                Some(_) => "it was dropped",
                None => "the runtime that it was made on has ended",
            }));
            connection.end_waits();
        }
    }
}

/// Waits until a grant is prepared. Waits forever for `None`.
async fn end_of_grant(granting: &mut Option<JoinHandle<()>>) {
    match granting {
        Some(granting) => drop(granting.await),
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until the peer closes the link, and returns the reason. Waits forever if there is no link.
async fn end_of(link: Option<&mut Link>) -> String {
    match link {
        Some(link) => link.end().await,
        None => std::future::pending().await,
    }
}
