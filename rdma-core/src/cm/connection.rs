//! Connections, and those to be, that wait for their steps.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{
    ConnectionError, ConnectionEventKind, ConnectionId, ConnectionParameters, ConnectionRequest,
    ConnectionStep, EventChannel, PeerParameters,
};
use crate::error::{Errno, Result};
use crate::queue_pair::{PreparedQueuePair, QueuePair};

/// One end of a connection that has its queue pair and waits for the other end.
#[derive(Debug)]
#[must_use = "dropping it gives the connection up"]
pub struct PreparedConnection {
    prepared: PreparedQueuePair,
    waiting: Waiting,
    side: Side,
}

#[derive(Debug)]
enum Side {
    Connecting(ConnectionId),
    Accepting(ConnectionRequest),
}

impl PreparedConnection {
    pub(super) fn connecting(
        id: ConnectionId,
        prepared: PreparedQueuePair,
        waiting: Waiting,
    ) -> Self {
        Self {
            prepared,
            waiting,
            side: Side::Connecting(id),
        }
    }

    pub(super) fn accepting(
        request: ConnectionRequest,
        prepared: PreparedQueuePair,
        waiting: Waiting,
    ) -> Self {
        Self {
            prepared,
            waiting,
            side: Side::Accepting(request),
        }
    }

    /// The queue pair, to post receives to before the peer sends.
    pub fn queue_pair(&self) -> &PreparedQueuePair {
        &self.prepared
    }

    /// The identifier of this end.
    pub fn id(&self) -> &ConnectionId {
        match &self.side {
            Side::Connecting(id) => id,
            Side::Accepting(request) => request.id(),
        }
    }

    /// Connects, or accepts, and waits until the connection stands.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`]: rejected, unreachable, or not within the time; and what
    /// [`ConnectionId::connect`], [`ConnectionId::establish`] and [`ConnectionRequest::accept`]
    /// give.
    #[doc(alias = "rdma_connect")]
    #[doc(alias = "rdma_accept")]
    pub fn establish(self, parameters: &ConnectionParameters) -> Result<Connection> {
        let Self {
            prepared,
            waiting,
            side,
        } = self;
        match side {
            Side::Connecting(id) => {
                id.connect(&prepared, parameters)?;
                let peer = waiting.until(ConnectionStep::Connecting, |kind| match kind {
                    ConnectionEventKind::ConnectResponse(peer) => Ok(peer),
                    other => Err(other),
                })?;
                let pair = id.establish(prepared, &peer, parameters)?;
                Ok(Connection::new(id, pair, peer, waiting))
            }
            Side::Accepting(request) => {
                let peer = request.peer().clone();
                let (id, pair) = request.accept(prepared, parameters)?;
                waiting.until(ConnectionStep::Accepting, |kind| match kind {
                    ConnectionEventKind::Established(_) => Ok(()),
                    other => Err(other),
                })?;
                Ok(Connection::new(id, pair, peer, waiting))
            }
        }
    }
}

/// A connection: a queue pair, and the identifier that tells when the peer is gone.
///
/// Dropping it disconnects: the peer is told, and the queue pair moved to the error state, of which
/// there may be clones. [`Self::into_parts`] keeps both.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    pair: QueuePair,
    peer: PeerParameters,
    waiting: Waiting,
    /// The farewell is said, or the parts are somebody else's.
    ended: AtomicBool,
}

impl Connection {
    fn new(id: ConnectionId, pair: QueuePair, peer: PeerParameters, waiting: Waiting) -> Self {
        Self {
            id,
            pair,
            peer,
            waiting,
            ended: AtomicBool::new(false),
        }
    }

    /// The queue pair.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.pair
    }

    /// The identifier.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// The channel on which the identifier's events arrive, and no other's: its descriptor becomes
    /// readable when the peer is gone.
    pub fn channel(&self) -> &EventChannel {
        &self.waiting.channel
    }

    /// What the peer told about itself.
    pub fn peer(&self) -> &PeerParameters {
        &self.peer
    }

    /// What the peer's program said when it connected or accepted, followed by zeros up to what the
    /// message holds.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Waits until the peer has disconnected or died, up to `timeout` (`None`: without limit), and
    /// tells whether it has. The queue pair is in the error state then.
    ///
    /// A peer whose machine or network dies does not say so: that shows in the completions of the
    /// queue pair's requests.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::DeviceRemoved`], and the verb's.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while !self.ended.load(Ordering::Acquire) {
            let Some(event) = self.waiting.channel.next_until(deadline)? else {
                return Ok(false);
            };
            match event.kind {
                ConnectionEventKind::Disconnected => self.end()?,
                ConnectionEventKind::DeviceRemoval => {
                    return Err(self.waiting.removed());
                }
                _ => {}
            }
        }
        Ok(true)
    }

    /// Whether the peer has not said farewell yet. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`Self::wait_disconnected`].
    pub fn is_connected(&self) -> Result<bool> {
        Ok(!self.wait_disconnected(Some(Duration::ZERO))?)
    }

    /// Disconnects: moves the queue pair to the error state, tells the peer, and waits until it
    /// confirms that, which it does when its program looks at its events: in
    /// [`Self::wait_disconnected`], [`Self::is_connected`] and here, or by dropping the connection.
    /// Dropping this end instead waits for nothing.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::TimedOut`] if the peer does not confirm it, and the verbs'. The
    /// connection is over in any case.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        self.end()?;
        self.waiting
            .until(ConnectionStep::Disconnecting, |kind| match kind {
                // The peer may have been first.
                ConnectionEventKind::Disconnected | ConnectionEventKind::TimewaitExit => Ok(()),
                other => Err(other),
            })
    }

    /// Fails the queue pair, and says or confirms the farewell, once.
    fn end(&self) -> Result<()> {
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let failed = self.pair.fail();
        match self.id.disconnect() {
            // So the kernel says that the identifier has no device any more.
            Err(error) if error.errno() == Some(Errno(libc::ENXIO)) => Err(self.waiting.removed()),
            told => told.and(failed),
        }
    }

    /// The identifier, the queue pair and what the peer told, without disconnecting.
    pub fn into_parts(self) -> (ConnectionId, QueuePair, PeerParameters) {
        self.ended.store(true, Ordering::Release);
        (self.id.clone(), self.pair.clone(), self.peer.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            // The connection may be over already.
            tracing::debug!(peer = %self.waiting.peer, %error, "disconnecting at the end");
        }
    }
}

/// How long to wait for the events of one identifier, which has a channel of its own.
pub(super) struct Waiting {
    pub(super) channel: EventChannel,
    pub(super) peer: String,
    pub(super) timeout: Duration,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("peer", &self.peer)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Waiting {
    /// Waits for the event that ends `step`, of which `pick` makes something; it gives back the
    /// others, of which those that end the connection are errors and the rest are nothing.
    pub(super) fn until<T>(
        &self,
        step: ConnectionStep,
        mut pick: impl FnMut(ConnectionEventKind) -> Result<T, ConnectionEventKind>,
    ) -> Result<T> {
        let deadline = Instant::now().checked_add(self.timeout);
        loop {
            let Some(event) = self.channel.next_until(deadline)? else {
                return Err(self.timed_out(step).into());
            };
            let peer = self.peer.clone();
            match pick(event.kind) {
                Ok(outcome) => return Ok(outcome),
                Err(ConnectionEventKind::Rejected {
                    reason,
                    private_data,
                }) => {
                    return Err(ConnectionError::Rejected {
                        peer,
                        reason,
                        private_data,
                    }
                    .into());
                }
                Err(
                    ConnectionEventKind::AddressError(status)
                    | ConnectionEventKind::RouteError(status)
                    | ConnectionEventKind::ConnectError(status)
                    | ConnectionEventKind::Unreachable(status)
                    | ConnectionEventKind::MulticastError { status, .. },
                ) => {
                    let timed_out = status.errno().map(|errno| errno.0) == Some(libc::ETIMEDOUT);
                    return Err(if timed_out {
                        self.timed_out(step)
                    } else {
                        ConnectionError::Failed { step, peer, status }
                    }
                    .into());
                }
                Err(ConnectionEventKind::Disconnected) => {
                    return Err(ConnectionError::Disconnected { peer }.into());
                }
                Err(ConnectionEventKind::DeviceRemoval) => return Err(self.removed()),
                Err(other) => tracing::debug!(%peer, event = %other, "ignored"),
            }
        }
    }

    fn timed_out(&self, step: ConnectionStep) -> ConnectionError {
        ConnectionError::TimedOut {
            step,
            peer: self.peer.clone(),
            timeout: self.timeout,
        }
    }

    fn removed(&self) -> crate::error::Error {
        ConnectionError::DeviceRemoved {
            peer: self.peer.clone(),
        }
        .into()
    }
}
