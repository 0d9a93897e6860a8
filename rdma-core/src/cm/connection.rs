//! Established connections, and connections that are being established.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{
    ConnectionError, ConnectionEventKind, ConnectionId, ConnectionParameters, ConnectionRequest,
    ConnectionStep, EventChannel, PeerParameters,
};
use crate::error::{Errno, Error, Result};
use crate::queue_pair::{PreparedQueuePair, QueuePair};

/// A connection that is not established yet. The queue pair of this side already exists, and
/// receives can be posted to it.
#[derive(Debug)]
#[must_use = "dropping it gives the connection up"]
pub struct PreparedConnection {
    prepared: PreparedQueuePair,
    waiting: EventWaiter,
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
        waiting: EventWaiter,
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
        waiting: EventWaiter,
    ) -> Self {
        Self {
            prepared,
            waiting,
            side: Side::Accepting(request),
        }
    }

    /// Returns the queue pair of the future connection. Receives can be posted to it before the
    /// peer sends.
    pub fn queue_pair(&self) -> &PreparedQueuePair {
        &self.prepared
    }

    /// Returns the connection identifier of this side.
    pub fn id(&self) -> &ConnectionId {
        match &self.side {
            Side::Connecting(id) => id,
            Side::Accepting(request) => request.id(),
        }
    }

    /// Connects to the peer, or accepts the request of the peer, and waits until the connection is
    /// established.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`] if the connection is rejected, the peer is unreachable or the timeout
    /// passes. Also returns the errors of [`ConnectionId::connect`], [`ConnectionId::establish`]
    /// and [`ConnectionRequest::accept`].
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

/// An established connection to a peer: a queue pair and a connection identifier. An event of the
/// identifier reports that the peer has disconnected.
///
/// Dropping the connection disconnects it: the peer is notified, and the queue pair is moved to the
/// error state even if clones of it exist. [`Self::into_parts`] returns the queue pair and the
/// identifier without disconnecting.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    pair: QueuePair,
    peer: PeerParameters,
    waiting: EventWaiter,
    events: SharedEvents,
}

/// The state of a connection, shared by all threads that use the connection. An event can be read
/// only once, so only one thread at a time reads events. That thread stores the state that the
/// events report, and the other threads wait for the stored state.
#[derive(Debug, Default)]
struct SharedEvents {
    known: Mutex<KnownState>,
    /// Notified when a thread stops reading events, and when this side disconnects.
    changed: Condvar,
}

/// The state of a connection, as far as this side knows the state. The lock of [`SharedEvents`]
/// protects this value.
#[derive(Debug, Clone, Copy, Default)]
struct KnownState {
    /// Set once this side has disconnected, or the connection was split by
    /// [`Connection::into_parts`].
    has_ended: bool,
    reported: ReportedState,
    /// Set while a thread reads events.
    is_reading: bool,
}

impl SharedEvents {
    fn known(&self) -> KnownState {
        *self.known.lock()
    }

    /// Marks the connection as ended by this side, and wakes all waiting threads. Returns `false`
    /// if the connection was already marked.
    fn end(&self) -> bool {
        let mut known = self.known.lock();
        let is_new = !std::mem::replace(&mut known.has_ended, true);
        self.changed.notify_all();
        is_new
    }

    /// Acquires the right to read the events of the connection. Waits while another thread holds
    /// the right. Returns `None` if `is_enough` returns `true` for the known state of the
    /// connection, because the caller then needs no further event. Also returns `None` if
    /// `deadline` passes.
    fn acquire_right(
        &self,
        deadline: Option<Instant>,
        is_enough: impl Fn(&KnownState) -> bool,
    ) -> Option<ReadingRight<'_>> {
        let mut known = self.known.lock();
        while !is_enough(&known) {
            if !known.is_reading {
                known.is_reading = true;
                return Some(ReadingRight(self));
            }
            match deadline {
                Some(deadline) => {
                    let waited = self.changed.wait_until(&mut known, deadline);
                    if waited.timed_out() && known.is_reading {
                        return None;
                    }
                }
                None => self.changed.wait(&mut known),
            }
        }
        None
    }
}

/// The right of one thread to read the events of a connection. Dropping this value releases the
/// right. The thread does not hold the lock of [`SharedEvents`] while it reads. Other threads
/// therefore wait no longer than their own time limits.
struct ReadingRight<'a>(&'a SharedEvents);

impl ReadingRight<'_> {
    /// Stores `state`, the state of the connection that an event has reported.
    fn report(&self, state: ReportedState) {
        self.0.known.lock().reported = state;
    }
}

impl Drop for ReadingRight<'_> {
    fn drop(&mut self) {
        self.0.known.lock().is_reading = false;
        self.0.changed.notify_all();
    }
}

/// The state of a connection according to the events that this side has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ReportedState {
    /// No event has reported the end of the connection.
    #[default]
    Open,
    /// The peer has disconnected, or has confirmed that this side has disconnected.
    Disconnected,
    /// The device was removed.
    DeviceRemoved,
}

impl Connection {
    fn new(id: ConnectionId, pair: QueuePair, peer: PeerParameters, waiting: EventWaiter) -> Self {
        Self {
            id,
            pair,
            peer,
            waiting,
            events: SharedEvents::default(),
        }
    }

    /// Returns the queue pair of the connection.
    pub fn queue_pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Returns the connection identifier of this side.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// Returns the event channel of the connection identifier. No other identifier uses this
    /// channel. The file descriptor of the channel becomes readable when the peer has disconnected.
    pub fn channel(&self) -> &EventChannel {
        &self.waiting.channel
    }

    /// Returns the connection parameters that the peer has sent, for example the peer's limits of
    /// outstanding RDMA reads.
    pub fn peer(&self) -> &PeerParameters {
        &self.peer
    }

    /// Returns the private data that the peer's program sent when it connected or accepted. The
    /// data is padded with zeros to the capacity of the message.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Waits until the connection has ended or `timeout` has passed, and returns whether the
    /// connection has ended. A connection ends when the peer disconnects or exits, or when this
    /// side disconnects. A `timeout` of `None` means no limit.
    ///
    /// After the peer has disconnected, this method also moves the queue pair to the error state,
    /// and confirms the disconnection to the peer. If one of these two verbs fails, this method
    /// only logs the error.
    ///
    /// Several threads may wait at the same time.
    ///
    /// No event reports a failure of the peer's machine or of the network. Requests of the queue
    /// pair then fail.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::DeviceRemoved`], and the error of `rdma_get_cm_event`.
    pub fn wait_disconnected(&self, timeout: Option<Duration>) -> Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(reader) = self.events.acquire_right(deadline, |known| known.has_ended) else {
            return Ok(self.events.known().has_ended);
        };
        loop {
            let known = self.events.known();
            if known.has_ended {
                return Ok(true);
            }
            if known.reported == ReportedState::DeviceRemoved {
                return Err(self.waiting.removed());
            }
            let Some(event) = self.waiting.channel.next_until(deadline)? else {
                return Ok(false);
            };
            match event.kind {
                ConnectionEventKind::Disconnected => {
                    reader.report(ReportedState::Disconnected);
                    match self.end() {
                        Err(removed @ Error::Connection(ConnectionError::DeviceRemoved { .. })) => {
                            return Err(removed);
                        }
                        Err(error) => self.log_failed_end(&error),
                        Ok(()) => {}
                    }
                }
                // This side has disconnected meanwhile.
                ConnectionEventKind::TimewaitExit => reader.report(ReportedState::Disconnected),
                ConnectionEventKind::DeviceRemoval => reader.report(ReportedState::DeviceRemoved),
                _ => {}
            }
        }
    }

    /// Returns whether the connection still exists, as far as this side knows. Returns `false` once
    /// this side has received the event that the peer has disconnected or exited. Does not wait.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::wait_disconnected`].
    pub fn is_connected(&self) -> Result<bool> {
        Ok(!self.wait_disconnected(Some(Duration::ZERO))?)
    }

    /// Moves the queue pair to the error state, disconnects from the peer, and waits for the peer's
    /// confirmation. The peer confirms when its program calls [`Self::wait_disconnected`],
    /// [`Self::is_connected`] or this method, or drops the connection. Dropping the `Connection`
    /// disconnects without waiting.
    ///
    /// Several threads may call this method, and the program may call it again after an error. Each
    /// call waits until the peer has confirmed.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::TimedOut`] if the peer does not confirm, and the errors of the verbs that
    /// this method calls. The connection has ended in any case.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.end()?;
        let step = ConnectionStep::Disconnecting;
        let deadline = Instant::now().checked_add(self.waiting.timeout);
        // Another thread may be reading the same event.
        let is_reported = |known: &KnownState| known.reported != ReportedState::Open;
        let Some(reader) = self.events.acquire_right(deadline, is_reported) else {
            return match self.events.known().reported {
                ReportedState::Open => Err(self.waiting.timed_out(step).into()),
                ReportedState::Disconnected => Ok(()),
                ReportedState::DeviceRemoved => Err(self.waiting.removed()),
            };
        };
        self.waiting.until_time(deadline, step, |kind| match kind {
            // The peer may have disconnected first.
            ConnectionEventKind::Disconnected | ConnectionEventKind::TimewaitExit => {
                reader.report(ReportedState::Disconnected);
                Ok(())
            }
            other => {
                if matches!(other, ConnectionEventKind::DeviceRemoval) {
                    reader.report(ReportedState::DeviceRemoved);
                }
                Err(other)
            }
        })
    }

    /// Moves the queue pair to the error state, and disconnects from the peer. If the peer has
    /// disconnected first, confirms the disconnection to the peer. Calls after the first call have
    /// no effect.
    fn end(&self) -> Result<()> {
        if !self.events.end() {
            return Ok(());
        }
        let failed = self.pair.fail();
        match self.id.disconnect() {
            // The kernel returns this error if the identifier has lost its device.
            Err(error) if error.errno() == Some(Errno(libc::ENXIO)) => Err(self.waiting.removed()),
            told => told.and(failed),
        }
    }

    /// Logs `error`, an error of [`Self::end`] that the caller does not return.
    fn log_failed_end(&self, error: &Error) {
        // Only at level `debug`, because the connection may have ended already.
        tracing::debug!(peer = %self.waiting.peer, %error, "disconnecting failed");
    }

    /// Splits the connection into its identifier, its queue pair and the peer's parameters, without
    /// disconnecting.
    pub fn into_parts(self) -> (ConnectionId, QueuePair, PeerParameters) {
        self.events.end();
        (self.id.clone(), self.pair.clone(), self.peer.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            self.log_failed_end(&error);
        }
    }
}

/// The receiver of the events of one connection identifier, with a time limit for each step of
/// connecting and disconnecting.
pub(super) struct EventWaiter {
    pub(super) channel: EventChannel,
    pub(super) peer: String,
    pub(super) timeout: Duration,
}

impl fmt::Debug for EventWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWaiter")
            .field("peer", &self.peer)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl EventWaiter {
    /// Waits for the event that completes `step`, a step of connecting or disconnecting. Returns
    /// the value that `pick` returns as `Ok` for that event. This method calls `pick` for every
    /// event. `pick` must return an unexpected event unchanged as `Err`. An unexpected event that
    /// ends the connection becomes an error. Other unexpected events are ignored.
    pub(super) fn until<T>(
        &self,
        step: ConnectionStep,
        pick: impl FnMut(ConnectionEventKind) -> Result<T, ConnectionEventKind>,
    ) -> Result<T> {
        self.until_time(Instant::now().checked_add(self.timeout), step, pick)
    }

    /// Waits for the event that completes `step`, at most until `deadline`. Otherwise works like
    /// [`Self::until`].
    fn until_time<T>(
        &self,
        deadline: Option<Instant>,
        step: ConnectionStep,
        mut pick: impl FnMut(ConnectionEventKind) -> Result<T, ConnectionEventKind>,
    ) -> Result<T> {
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

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn after(time: Duration) -> Option<Instant> {
        Instant::now().checked_add(time)
    }

    #[test]
    fn a_thread_waits_for_a_reader_no_longer_than_its_own_deadline() {
        let events = SharedEvents::default();
        let reader = events.acquire_right(None, |_| false).unwrap();
        let short = Duration::from_millis(20);
        assert!(events.acquire_right(after(short), |_| false).is_none());
        assert!(!events.known().has_ended, "the lock is free");
        drop(reader);
        assert!(events.acquire_right(after(short), |_| false).is_some());
    }

    #[test]
    fn an_end_by_this_side_ends_the_waits_of_threads_that_do_not_read() {
        let events = SharedEvents::default();
        let _reader = events.acquire_right(None, |_| false).unwrap();
        thread::scope(|scope| {
            let waits = [None, after(LONG)].map(|deadline| {
                let events = &events;
                scope.spawn(move || {
                    events
                        .acquire_right(deadline, |known| known.has_ended)
                        .is_none()
                })
            });
            assert!(events.end());
            assert!(!events.end());
            for wait in waits {
                assert!(wait.join().unwrap());
            }
        });
    }

    #[test]
    fn a_thread_that_waits_for_a_reader_gets_the_state_that_the_reader_has_stored() {
        let events = SharedEvents::default();
        let reader = events.acquire_right(None, |_| false).unwrap();
        thread::scope(|scope| {
            let is_reported = |known: &KnownState| known.reported != ReportedState::Open;
            let events = &events;
            let wait =
                scope.spawn(move || events.acquire_right(after(LONG), is_reported).is_none());
            reader.report(ReportedState::Disconnected);
            drop(reader);
            assert!(wait.join().unwrap());
        });
        assert_eq!(events.known().reported, ReportedState::Disconnected);
        assert!(!events.known().is_reading);
    }
}
