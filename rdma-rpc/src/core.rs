//! [`Core`]: the state of one connection, which its tasks and calls share.

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
use crate::outbox::{BATCH, Leaves, Outbox, Unplaced};
use crate::payload::Message;
use crate::server::Serving;
use crate::wire::{Header, Settings, Violation};

/// State of a connection.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) outbox: Outbox,
    pub(crate) deadlines: Arc<Deadlines>,
    pub(crate) peer: Peer,
    /// Runtime of the connection's tasks and handlers.
    pub(crate) runtime: Handle,
    pub(crate) side: Side,
    pub(crate) own: Settings,
    pub(crate) bulks: bulk::Table,
    others: OnceLock<Settings>,
    /// Incarnation of the server, at a client.
    incarnation: OnceLock<u64>,
    end: OnceLock<Error>,
    /// Notification of those who wait for the peer's settings, or for the end.
    changed: Notify,
}

/// Part of the state that only one of the two ends has.
#[derive(Debug)]
pub(crate) enum Side {
    Client(Calls),
    Server(Serving),
}

impl Core {
    /// Starts the protocol on a link: sends the settings of this end, and starts the tasks that
    /// receive, send, and watch the deadlines and the wait for the peer's settings.
    ///
    /// `bulk_limit` is the maximum length of a bulk of the peer in bytes. `hello` is the metadata
    /// of the connection; without it, [`Self::greet`] sends the settings later.
    pub(crate) fn start(
        link: Link,
        peer: Peer,
        own: Settings,
        bulk_limit: usize,
        hello: Option<&Metadata>,
        side: Side,
    ) -> Arc<Self> {
        let core = Arc::new(Self {
            outbox: Outbox::new(link),
            deadlines: Arc::new(Deadlines::new()),
            peer,
            runtime: Handle::current(),
            side,
            own,
            bulks: bulk::Table::new(bulk_limit),
            others: OnceLock::new(),
            incarnation: OnceLock::new(),
            end: OnceLock::new(),
            changed: Notify::new(),
        });
        if let Some(hello) = hello {
            core.greet(hello);
        }
        link::receive(&core);
        core.spawn(|core| async move {
            let end = core.outbox.run_flusher().await;
            core.fail(end);
        });
        core.spawn(|core| async move {
            if timeout(limits::CONNECT, core.greeted()).await.is_err() {
                let limit = limits::CONNECT;
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

    /// Sends the settings of this end, with the metadata of the connection.
    pub(crate) fn greet(self: &Arc<Self>, hello: &Metadata) {
        let header = Header::Settings(self.own);
        let placed = self
            .outbox
            .append(&header, hello.encoded(), BATCH, Leaves::WithFlush);
        let sent = placed
            .map_err(Unplaced::into_error)
            .and_then(|_| self.outbox.flush());
        if let Err(error) = sent {
            self.fail(error);
        }
    }

    /// Starts a task that is dropped at the end of the connection.
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

    /// Handles a received message, which may hold any bytes. Runs within the poll that found it.
    pub(crate) fn handle(self: &Arc<Self>, message: Message<'_>) {
        if self.end.get().is_some() {
            return;
        }
        let outcome = match &self.side {
            _ if message.bytes().len() > self.message_limit() => Err(Violation::TooLong.into()),
            Side::Client(calls) => calls.handle(self, message),
            Side::Server(serving) => serving
                .handle(self, message)
                .and_then(|()| self.outbox.flush()),
        };
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Ends the calls whose deadlines have passed at `now`, and returns the next deadline.
    fn expire(self: &Arc<Self>, now: u64) -> u64 {
        match &self.side {
            Side::Client(calls) => calls.expire(now),
            Side::Server(serving) => serving.expire(self, now),
        }
    }

    /// Takes over the incarnation of the server, which precedes its settings.
    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        // A second one comes with settings that come twice.
        let _ = self.incarnation.set(incarnation);
    }

    /// Returns the incarnation of the server, once its settings have arrived.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.get().copied().unwrap_or_default()
    }

    /// Takes over the peer's settings.
    pub(crate) fn set_others(&self, settings: Settings) -> Result<(), Violation> {
        self.others.set(settings).map_err(|_| Violation::Repeated)?;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Returns the peer's settings, once they have arrived.
    pub(crate) fn others(&self) -> Option<&Settings> {
        self.others.get()
    }

    /// Waits until the peer's settings have arrived.
    pub(crate) async fn greeted(&self) -> Result<()> {
        self.wait_until(|| self.others.get().is_some() || self.end.get().is_some())
            .await;
        self.end.get().cloned().map_or(Ok(()), Err)
    }

    /// Returns the maximum length of a received message in bytes.
    pub(crate) fn message_limit(&self) -> usize {
        self.own.message_limit as usize
    }

    /// Returns the maximum length of a message that the peer accepts in bytes.
    pub(crate) fn send_limit(&self) -> usize {
        let others = self
            .others
            .get()
            .map_or(u32::MAX, |others| others.message_limit);
        (self.own.message_limit.min(others) as usize).max(BATCH)
    }

    /// Returns whether messages of the peer are handled now. A server handles none while its
    /// answers wait for the peer.
    pub(crate) fn has_room(&self) -> bool {
        matches!(self.side, Side::Client(_)) || self.outbox.has_room()
    }

    /// Waits until messages of the peer are handled.
    pub(crate) async fn room(&self) {
        if let Side::Server(_) = self.side {
            self.outbox.room().await;
        }
    }

    /// Ends the connection: fails every call with this error, and drops the transport. Only the
    /// first call has an effect.
    pub(crate) fn fail(self: &Arc<Self>, error: Error) {
        let error = match (&self.side, error) {
            (_, error @ (Error::Protocol { .. } | Error::Denied { .. })) => error,
            // The server said goodbye before.
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
            Side::Server(serving) => serving.fail(&error),
        }
        self.changed.notify_waiters();
    }

    fn say_goodbye(&self, status: u16, reason: &str) {
        let (goodbye, reason) = (Header::Goodbye { status }, reason.as_bytes());
        let reason = reason.get(..512).unwrap_or(reason);
        let placed = self
            .outbox
            .append(&goodbye, reason, BATCH, Leaves::WithFlush);
        drop(placed.map(|_| self.outbox.flush()));
    }

    /// Returns the error that ended the connection.
    pub(crate) fn end(&self) -> Option<&Error> {
        self.end.get()
    }

    /// Waits until the connection has ended, and returns the error that ended it.
    pub(crate) async fn ended(&self) -> Error {
        self.wait_until(|| self.end.get().is_some()).await;
        self.ended_now()
    }

    /// Returns the error of a connection that has ended, or is about to.
    pub(crate) fn ended_now(&self) -> Error {
        let unknown = || Error::disconnected("it was closed");
        self.end.get().cloned().unwrap_or_else(unknown)
    }

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
