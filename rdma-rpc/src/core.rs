//! [`Core`]: the state of one connection, which the tasks and calls of the connection share.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::address::Peer;
use crate::bulk;
use crate::client::Calls;
use crate::deadlines::Deadlines;
use crate::error::{Error, Result};
use crate::limits;
use crate::link::{self, Link};
use crate::metadata::Metadata;
use crate::outbox::{AppendError, MAX_BATCH_LEN, Outbox, SendAt};
use crate::payload::Message;
use crate::server::ServerConnection;
use crate::wire::{Header, Settings, Violation};

/// State of one connection, at the client or the server: its send queue, its timer, the settings of
/// both ends, its bulk memory, and the calls in progress.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) outbox: Outbox,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) peer: Peer,
    /// Runtime on which the connection's tasks and handlers run.
    pub(crate) runtime: Handle,
    pub(crate) side: Side,
    /// Limits that this end has sent or will send to the peer.
    pub(crate) own_settings: Settings,
    pub(crate) bulks: bulk::BulkTable,
    peer_settings: OnceLock<Settings>,
    /// Number that identifies the server process, so that a client detects a restart of the server.
    /// Set only at a client. See [`crate::once`].
    instance_id: OnceLock<u64>,
    /// Error that ended the connection.
    end: OnceLock<Error>,
    /// Wakes the tasks that wait for the peer's settings or for the end of the connection.
    changed: Notify,
}

/// State of one end of a connection. At the client's end, the state contains the calls that the
/// client makes. At the server's end, the state contains the calls that the server executes.
#[derive(Debug)]
pub(crate) enum Side {
    Client(Calls),
    Server(ServerConnection),
}

impl Core {
    /// Starts the protocol on the open connection `link`, and returns the state of the connection.
    /// Sends the settings of this end, and spawns the tasks of the connection. The tasks send and
    /// receive messages, enforce deadlines, and fail the connection if the peer's settings do not
    /// arrive in time.
    ///
    /// `bulk_limit` is the maximum length in bytes of a [`Bulk`](crate::Bulk) that the peer may
    /// send. `metadata` is sent with the settings. If `metadata` is `None`, the caller must call
    /// [`Self::send_settings`] later.
    pub(crate) fn start(
        link: Link,
        peer: Peer,
        own_settings: Settings,
        bulk_limit: usize,
        metadata: Option<&Metadata>,
        side: Side,
    ) -> Arc<Self> {
        let core = Arc::new(Self {
            outbox: Outbox::new(link),
            deadlines: Arc::new(Deadlines::new()),
            peer,
            runtime: Handle::current(),
            side,
            own_settings,
            bulks: bulk::BulkTable::new(bulk_limit),
            peer_settings: OnceLock::new(),
            instance_id: OnceLock::new(),
            end: OnceLock::new(),
            changed: Notify::new(),
        });
        if let Some(metadata) = metadata {
            core.send_settings(metadata);
        }
        link::receive(&core);
        core.spawn(|core| async move {
            let end = core.outbox.run_flusher().await;
            core.fail(end);
        });
        core.spawn(|core| async move {
            if timeout(limits::CONNECT_TIMEOUT, core.wait_for_settings())
                .await
                .is_err()
            {
                let limit = limits::CONNECT_TIMEOUT;
                let reason = format!("the peer has not sent its settings within {limit:?}");
                core.fail(Error::disconnected(reason));
            }
        });
        core.spawn(|core| async move {
            let deadlines = Arc::clone(&core.deadlines);
            deadlines.run(|now| core.expire(now)).await;
        });
        core
    }

    /// Sends the protocol settings of this end, such as its message limit. `metadata` is sent with
    /// the settings: the credentials of a client, or the instance ID of a server.
    pub(crate) fn send_settings(self: &Arc<Self>, metadata: &Metadata) {
        let header = Header::Settings(self.own_settings);
        let appended = self.outbox.append(
            &header,
            metadata.encoded(),
            MAX_BATCH_LEN,
            SendAt::NextFlush,
        );
        let sent = appended
            .map_err(AppendError::into_error)
            .and_then(|_| self.outbox.flush());
        if let Err(error) = sent {
            self.fail(error);
        }
    }

    /// Queues a frame without a body. The frame is sent after the other ready tasks have run. Ends
    /// the connection if no memory is left to queue the frame: without the frame, the peer could
    /// wait forever. Does nothing after the end of the connection.
    pub(crate) fn send_control(&self, header: &Header<'_>) {
        if let Err(error) = self.outbox.append_empty(header) {
            self.fail(error);
        }
    }

    /// Spawns a task of the connection. The task is dropped when the connection ends.
    fn spawn<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (core, task) = (Arc::clone(self), task(Arc::clone(self)));
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                _ = core.ended() => {}
            }
        });
    }

    /// Handles a received message, which may contain arbitrary bytes. A violation of the protocol
    /// ends the connection. Called within the poll that received the message.
    pub(crate) fn handle(self: &Arc<Self>, message: Message<'_>) {
        self.bulks.count_message();
        if self.end.get().is_some() {
            return;
        }
        let outcome = match &self.side {
            _ if message.bytes().len() > self.message_limit() => Err(Violation::TooLong.into()),
            Side::Client(calls) => calls.handle(self, message),
            Side::Server(connection) => connection
                .handle(self, message)
                .and_then(|()| self.outbox.flush()),
        };
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Ends the calls whose deadlines have passed at `now`, a time in microseconds since the
    /// creation of the connection. Returns the earliest deadline of the other calls. Called by the
    /// timer, see [`Deadlines::run`].
    fn expire(self: &Arc<Self>, now: u64) -> u64 {
        match &self.side {
            Side::Client(calls) => calls.expire(now),
            Side::Server(connection) => connection.expire(self, now),
        }
    }

    /// Stores the instance ID of the server process, a number that distinguishes the process from a
    /// later process at the same address. The ID arrives with the server's settings. See
    /// [`crate::once`].
    pub(crate) fn set_instance_id(&self, instance_id: u64) {
        // Repeated settings are refused by `set_peer_settings`.
        let _ = self.instance_id.set(instance_id);
    }

    /// Returns the instance ID of the server, or 0 before its settings have arrived.
    pub(crate) fn instance_id(&self) -> u64 {
        self.instance_id.get().copied().unwrap_or_default()
    }

    /// Stores the settings that the peer has sent, and notifies the tasks that wait for them. Fails
    /// if the peer has already sent settings.
    pub(crate) fn set_peer_settings(&self, settings: Settings) -> Result<(), Violation> {
        self.peer_settings
            .set(settings)
            .map_err(|_| Violation::Repeated)?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns the peer's settings, or `None` until they have arrived.
    pub(crate) fn peer_settings(&self) -> Option<&Settings> {
        self.peer_settings.get()
    }

    /// Waits until the settings of the peer, such as its message limit, have arrived. Fails if the
    /// connection has ended.
    pub(crate) async fn wait_for_settings(&self) -> Result<()> {
        self.wait_until(|| self.peer_settings.get().is_some() || self.end.get().is_some())
            .await;
        self.end.get().cloned().map_or(Ok(()), Err)
    }

    /// Returns the maximum length in bytes of a message that this end accepts from the peer.
    pub(crate) fn message_limit(&self) -> usize {
        self.own_settings.message_limit as usize
    }

    /// Returns the maximum length in bytes of a message to the peer: the lower limit of the two
    /// ends.
    pub(crate) fn send_limit(&self) -> usize {
        let peer_limit = self
            .peer_settings
            .get()
            .map_or(u32::MAX, |settings| settings.message_limit);
        (self.own_settings.message_limit.min(peer_limit) as usize).max(MAX_BATCH_LEN)
    }

    /// Returns whether this end can handle messages of the peer now. A server handles no message
    /// while too many of its own messages wait to be sent, because further answers would need more
    /// memory.
    pub(crate) fn has_room(&self) -> bool {
        matches!(self.side, Side::Client(_)) || self.outbox.has_room()
    }

    /// Waits while too many messages of this end wait to be sent. Handling messages of the peer
    /// could add further ones. Returns immediately at the client's end of a connection.
    pub(crate) async fn wait_for_room(&self) {
        if let Side::Server(_) = self.side {
            self.outbox.wait_for_room().await;
        }
    }

    /// Ends the connection: fails every call with `error`, and drops the transport. Only the first
    /// call of this function has an effect.
    pub(crate) fn fail(&self, error: Error) {
        let error = match (&self.side, error) {
            (_, error @ (Error::Protocol { .. } | Error::Denied { .. })) => error,
            // The server has announced its shutdown before the end.
            (Side::Client(calls), _) if calls.is_closing() => Error::ShuttingDown,
            (_, error) => error,
        };
        if self.end.set(error.clone()).is_err() {
            return;
        }
        match (&error, &self.side) {
            (Error::Protocol { reason }, _) => {
                tracing::warn!(peer = %self.peer, reason, "a peer was disconnected");
                self.say_goodbye(1, reason);
            }
            (Error::Denied { reason }, Side::Server(_)) => {
                tracing::warn!(peer = %self.peer, reason, "a client was denied");
                self.say_goodbye(3, reason);
            }
            (error, _) => tracing::debug!(peer = %self.peer, %error, "a connection has ended"),
        }
        self.outbox.close();
        self.bulks.fail();
        match &self.side {
            Side::Client(calls) => calls.fail(&error),
            Side::Server(connection) => connection.fail(&error),
        }
        self.changed.notify_waiters();
    }

    /// Sends the reason for which this end closes the connection, so that the peer can report the
    /// reason. `status` is the kind of reason in the wire format: 1 for a violation of the
    /// protocol, 3 for a refused client. The values 0 and 2 announce a shutdown and are not sent by
    /// this function.
    fn say_goodbye(&self, status: u16, reason: &str) {
        let (goodbye, reason) = (Header::Goodbye { status }, reason.as_bytes());
        let reason = reason.get(..512).unwrap_or(reason);
        let appended = self
            .outbox
            .append(&goodbye, reason, MAX_BATCH_LEN, SendAt::NextFlush);
        drop(appended.map(|_| self.outbox.flush()));
    }

    /// Returns the error that ended the connection, or `None` while the connection is open.
    pub(crate) fn end(&self) -> Option<&Error> {
        self.end.get()
    }

    /// Waits until the connection has ended, and returns the error that ended it.
    pub(crate) async fn ended(&self) -> Error {
        self.wait_until(|| self.end.get().is_some()).await;
        self.end_error()
    }

    /// Returns the error that ended the connection. If the connection is still ending and this
    /// error is not stored yet, returns a general error.
    pub(crate) fn end_error(&self) -> Error {
        let unknown = || Error::disconnected("the reason was not recorded");
        self.end.get().cloned().unwrap_or_else(unknown)
    }

    /// Waits until `is_done` returns `true`. Calls `is_done` immediately, and again whenever the
    /// peer's settings have arrived or the connection has ended. The end of the connection alone
    /// does not end the wait.
    async fn wait_until(&self, is_done: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if is_done() {
                return;
            }
            changed.await;
        }
    }
}
