//! [`Serving`]: the server's side of one connection, and the frames that it receives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::guards::CallInfo;
use super::handler::Incoming;
use super::slots::Slots;
use super::{Gate, Shared};
use crate::core::{Core, Side};
use crate::deadlines::NEVER;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::observe;
use crate::once;
use crate::outbox::{BATCH, Leaves};
use crate::payload::{Body, Message};
use crate::status::Status;
use crate::stream::Window;
use crate::wire::{CallId, Head, Header, ONE_WAY, Reader, Violation};

/// Calls of one connection that a server runs.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(super) shared: Arc<Shared>,
    pub(super) slots: Slots,
    /// Identity of the client, once it is authenticated.
    identity: OnceLock<Metadata>,
    /// Number of the client in its calls that are executed at most once, set by the first one.
    pub(super) session: OnceLock<u128>,
    /// Limit of the one-way calls that run, which occupy no slots.
    pub(super) one_way: Arc<Gate>,
    /// Number of handlers that run.
    running: AtomicUsize,
    /// Notification of the end of the last handler.
    idle: Notify,
    is_closing: AtomicBool,
}

impl Serving {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let slots = shared.concurrency;
        Self {
            shared,
            slots: Slots::new(slots),
            identity: OnceLock::new(),
            session: OnceLock::new(),
            one_way: Arc::new(Gate::new(slots)),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Returns the serving side of a server's connection.
    pub(super) fn of(core: &Core) -> &Self {
        match &core.side {
            Side::Server(serving) => serving,
            Side::Client(_) => unreachable!("a server's connection is on the server's side"),
        }
    }

    /// Handles a received message, which may hold any bytes.
    pub(crate) fn handle(&self, core: &Arc<Core>, mut message: Message<'_>) -> Result<()> {
        let mut reader = Reader::begin(message.bytes())?;
        let mut clock = Instant::now();
        loop {
            let is_last = reader.is_last();
            let Some(head) = reader.next(message.bytes())? else {
                return Ok(());
            };
            if is_last {
                // Checks that nothing follows, before the memory of the message is given away.
                reader.next(message.bytes())?;
            }
            match head {
                Head::Request {
                    id,
                    codec,
                    method,
                    limit,
                    metadata,
                    body,
                } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let incoming = Incoming {
                        core,
                        id,
                        codec,
                        limit,
                        metadata: Metadata::decode(metadata).ok_or(Violation::Fields)?,
                        body: Body::take(&mut message, body, is_last),
                        clock: &mut clock,
                    };
                    self.start(method, incoming)?;
                }
                Head::Items {
                    id,
                    codec,
                    first,
                    count,
                    body,
                } => {
                    let body = Body::take(&mut message, body, is_last);
                    if let Some(inlet) = self.slots.stream(id, |streams| streams.inlet.clone())? {
                        inlet.push(first, codec, count, body, core.message_limit())?;
                    }
                }
                Head::End { id, items } => self.slots.end_input(id, items)?,
                Head::Window { id, items, bytes } => {
                    if let Some(outlet) = self.slots.stream(id, |streams| streams.outlet.clone())? {
                        outlet.grant(Window { items, bytes })?;
                    }
                }
                Head::Cancel { id } => self.slots.cancel(id)?,
                Head::Settings { settings, metadata } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let metadata = Metadata::decode(metadata).ok_or(Violation::Fields)?;
                    core.set_others(settings)?;
                    self.admit(core, &metadata)?;
                }
                Head::Goodbye { body, .. } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let reason = String::from_utf8_lossy(body.get(..512).unwrap_or(body));
                    let reason = format!("the peer ended it: {reason}");
                    return Err(Error::disconnected(reason));
                }
                Head::Bulk(head) => core.bulks.handle(core, head, &mut message, is_last)?,
                Head::Response { .. } | Head::Status { .. } => {
                    return Err(Violation::Direction.into());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Authenticates the client, whose settings have this metadata, and sends it the settings of
    /// the server.
    fn admit(&self, core: &Arc<Core>, hello: &Metadata) -> Result<()> {
        let Some(authenticate) = &self.shared.guards.authenticate else {
            return Ok(());
        };
        let judged = catch_unwind(AssertUnwindSafe(|| authenticate(&core.peer, hello)));
        let judged = judged.unwrap_or_else(|_| Err("the authentication panicked".to_owned()));
        let identity = judged.map_err(|reason| Error::Denied { reason })?;
        // Settings come once.
        drop(self.identity.set(identity));
        core.greet(&once::hello(self.shared.once.incarnation()));
        Ok(())
    }

    /// Starts the handler of a request, or refuses the request.
    fn start(&self, method: u32, incoming: Incoming<'_>) -> Result<()> {
        let (core, id) = (incoming.core, incoming.id);
        if id.index != ONE_WAY && id.index >= self.slots.count() {
            return Err(Violation::Index.into());
        }
        let handler = self.shared.methods.get(method);
        if !self.shared.guards.admit(self.identity.get()) {
            // Before the method is looked at: only authenticated clients learn which methods there
            // are.
            if let Some(handler) = handler {
                observe::refused(self.shared.observed, handler.info().name);
            }
            let reason = "the connection is not authenticated";
            refuse(core, id, &Status::Denied(reason.into()));
            return Ok(());
        }
        let Some(handler) = handler else {
            refuse(core, id, &Status::UnknownMethod);
            return Ok(());
        };
        if self.is_closing() {
            refuse(core, id, &Status::ShuttingDown);
            return Ok(());
        }
        let info = CallInfo {
            method: handler.info().name,
            peer: &core.peer,
            identity: self.identity(),
            metadata: &incoming.metadata,
        };
        if let Err(reason) = self.shared.guards.allow(&info) {
            observe::refused(self.shared.observed, info.method);
            refuse(core, id, &Status::Denied(reason.into()));
            return Ok(());
        }
        handler.start(incoming)
    }

    /// Returns the identity of the client, which is empty without authentication.
    pub(super) fn identity(&self) -> &Metadata {
        static NOBODY: Metadata = Metadata::EMPTY;
        self.identity.get().unwrap_or(&NOBODY)
    }

    /// Ends the calls whose deadline has passed at `now`, and returns the next deadline.
    pub(crate) fn expire(&self, core: &Arc<Core>, now: u64) -> u64 {
        let expired = |id| refuse(core, id, &Status::DeadlineExceeded);
        let next = self
            .slots
            .stop(|deadline| deadline <= now, &Error::Cancelled, expired);
        core.outbox.schedule();
        next
    }

    /// Ends all calls, because the connection has ended.
    pub(crate) fn fail(&self, error: &Error) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.slots.stop(|_| true, error, drop);
    }

    /// Accepts no more calls, and tells the client.
    pub(super) fn close(&self, core: &Core) {
        self.is_closing.store(true, Ordering::SeqCst);
        // A connection that has ended needs no goodbye.
        drop(core.outbox.append_bare(&Header::Goodbye { status: 0 }));
    }

    /// Ends the calls that run, because the server shuts down. The status is not that of a call
    /// that was not started.
    pub(super) fn stop(&self, core: &Core) {
        let stopped = |id| refuse(core, id, &Status::Cancelled);
        let next = self.slots.stop(|_| true, &Error::ShuttingDown, stopped);
        debug_assert_eq!(next, NEVER);
        core.outbox.schedule();
    }

    /// Tells the client that each call that was started has its answer, so that the client can
    /// repeat the others. No handler may run any more.
    pub(super) fn part(&self, core: &Core) {
        drop(core.outbox.append_bare(&Header::Goodbye { status: 2 }));
    }

    /// Counts a handler that runs, until [`Self::ended`]. Returns `false`, without counting, if the
    /// server accepts no more calls.
    pub(super) fn begin(&self) -> bool {
        // Counted first: either this function sees the end, or those who wait for the last handler
        // see this one.
        self.running.fetch_add(1, Ordering::SeqCst);
        let may_run = !self.is_closing();
        if !may_run {
            self.ended();
        }
        may_run
    }

    /// Counts the end of a handler.
    pub(super) fn ended(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_closing() {
            self.idle.notify_waiters();
        }
    }

    /// Returns whether at most one handler runs.
    pub(super) fn has_one(&self) -> bool {
        self.running.load(Ordering::Relaxed) <= 1
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Waits until no handler runs, after [`Self::close`].
    pub(super) async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Sends the reason why a call has no response. A one-way caller waits for no reason: it is logged.
pub(super) fn refuse(core: &Core, id: CallId, status: &Status) {
    if id.index == ONE_WAY {
        tracing::warn!(peer = %core.peer, ?status, "a one-way call was dropped");
        return;
    }
    let (number, body) = status.to_parts();
    let header = Header::Status { id, status: number };
    let placed = core
        .outbox
        .append(&header, &*body, BATCH, Leaves::AtTurnEnd);
    if let Err(error) = placed {
        tracing::debug!(peer = %core.peer, ?error, ?status, "a status could not be sent");
    }
}
