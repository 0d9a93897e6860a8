//! [`ServerConnection`]: the server's state of a connection, and the handling of received frames.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::authorization::CallInfo;
use super::handler::IncomingRequest;
use super::slots::Slots;
use super::{CallLimit, Shared};
use crate::core::{Core, Side};
use crate::deadlines::NO_DEADLINE;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::observe;
use crate::once::{self, ConnectionClient};
use crate::outbox::{AppendError, MAX_BATCH_LEN, SendAt};
use crate::payload::{Body, Message};
use crate::status::Status;
use crate::stream::Window;
use crate::wire::{CallId, Frame, FrameReader, Header, ONE_WAY, Violation};

/// State of one connection at the server: the client's identity and its running calls.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(super) shared: Arc<Shared>,
    /// Slots of the running calls.
    pub(super) slots: Slots,
    /// Identity of the client. Not set before the authentication.
    identity: OnceLock<Metadata>,
    /// Client of the connection, whose answers are stored for calls that are executed at most once.
    pub(super) once_client: ConnectionClient,
    /// Limit of running one-way calls. Needed because the number of slots does not limit calls
    /// without a slot.
    pub(super) one_way: Arc<CallLimit>,
    /// Number of running handlers.
    running: AtomicUsize,
    /// Wakes the shutdown when the last handler has ended.
    idle: Notify,
    /// Set once new calls are refused.
    is_closing: AtomicBool,
    /// Number of responses longer than a batch that were sent to the client.
    long_responses: AtomicU64,
}

impl ServerConnection {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let slots = shared.concurrency;
        Self {
            once_client: shared.once.connection_client(),
            shared,
            slots: Slots::new(slots),
            identity: OnceLock::new(),
            one_way: Arc::new(CallLimit::new(slots)),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            is_closing: AtomicBool::new(false),
            long_responses: AtomicU64::new(0),
        }
    }

    /// Returns the state that a server stores for the connection `core`. Panics if this process is
    /// the client of the connection.
    pub(super) fn of(core: &Core) -> &Self {
        match &core.side {
            Side::Server(connection) => connection,
            Side::Client(_) => unreachable!("a server's connection has the server's state"),
        }
    }

    /// Handles the frames of a message from the client, which can contain arbitrary bytes. Starts a
    /// call for each request, passes other frames of calls (such as stream items) to their calls,
    /// and handles frames about the connection. Fails if the message violates the protocol, if the
    /// authentication refuses the client, or if the client closes the connection. The caller must
    /// then end the connection.
    pub(crate) fn handle(&self, core: &Arc<Core>, mut message: Message<'_>) -> Result<()> {
        let mut reader = FrameReader::new(message.bytes())?;
        let mut clock = Instant::now();
        loop {
            let is_last = reader.is_last();
            let Some(frame) = reader.next(message.bytes())? else {
                return Ok(());
            };
            if is_last {
                // Checks that no bytes follow, before a body takes the memory of the message.
                reader.next(message.bytes())?;
            }
            match frame {
                Frame::Request {
                    id,
                    codec,
                    method,
                    limit,
                    metadata,
                    body,
                } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let incoming = IncomingRequest {
                        core,
                        id,
                        codec,
                        limit,
                        metadata: Metadata::decode(metadata).ok_or(Violation::Fields)?,
                        body: Body::take(&mut message, body, is_last),
                        clock: &mut clock,
                    };
                    self.start_call(method, incoming)?;
                }
                Frame::Items {
                    id,
                    codec,
                    first,
                    count,
                    body,
                } => {
                    let body = Body::take(&mut message, body, is_last);
                    if let Some(incoming) =
                        self.slots.stream(id, |streams| streams.incoming.clone())?
                    {
                        incoming.push(first, codec, count, body, core.message_limit())?;
                    }
                }
                Frame::End { id, items } => self.slots.end_input(id, items)?,
                Frame::Window { id, items, bytes } => {
                    if let Some(outgoing) =
                        self.slots.stream(id, |streams| streams.outgoing.clone())?
                    {
                        outgoing.grant(Window { items, bytes })?;
                    }
                }
                Frame::Cancel { id } => self.slots.cancel(id)?,
                Frame::Settings { settings, metadata } => {
                    let metadata = message.bytes().get(metadata).unwrap_or_default();
                    let metadata = Metadata::decode(metadata).ok_or(Violation::Fields)?;
                    core.set_peer_settings(settings)?;
                    self.authenticate(core, &metadata)?;
                }
                Frame::Goodbye { body, .. } => {
                    let body = message.bytes().get(body).unwrap_or_default();
                    let reason = String::from_utf8_lossy(body.get(..512).unwrap_or(body));
                    let reason = format!("closed by the peer: {reason}");
                    return Err(Error::disconnected(reason));
                }
                Frame::Bulk(frame) => core.bulks.handle(core, frame, &mut message, is_last)?,
                Frame::Response { .. } | Frame::Status { .. } => {
                    return Err(Violation::Direction.into());
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Authenticates a client by `credentials`, the metadata in the client's settings. Then sends
    /// the settings of the server. Fails with [`Error::Denied`] if the client is refused. Does
    /// nothing if the server requires no authentication, because the server's settings were then
    /// already sent.
    fn authenticate(&self, core: &Arc<Core>, credentials: &Metadata) -> Result<()> {
        let Some(authenticate) = &self.shared.authorization.authenticate else {
            return Ok(());
        };
        let identity = catch_unwind(AssertUnwindSafe(|| authenticate(&core.peer, credentials)));
        let identity = identity.unwrap_or_else(|_| Err("the authentication panicked".to_owned()));
        let identity = identity.map_err(|reason| Error::Denied { reason })?;
        // Settings arrive once, so the identity is not set yet.
        drop(self.identity.set(identity));
        core.send_settings(&once::server_metadata(self.shared.once.instance_id()));
        Ok(())
    }

    /// Starts the handler of the request `incoming` for the method with the number `method`, or
    /// refuses the request with a status, for example because of missing authentication. Fails only
    /// if the client has violated the protocol.
    fn start_call(&self, method: u32, incoming: IncomingRequest<'_>) -> Result<()> {
        let (core, id) = (incoming.core, incoming.id);
        if id.index != ONE_WAY && id.index >= self.slots.count() {
            return Err(Violation::Index.into());
        }
        let handler = self.shared.methods.get(method);
        if !self.shared.authorization.admits(self.identity.get()) {
            // Checked before an unknown method is refused: only authenticated clients may learn the
            // methods.
            if let Some(handler) = handler {
                observe::count_refused(self.shared.observe, handler.info().name);
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
        if let Err(reason) = self.shared.authorization.check(&info) {
            observe::count_refused(self.shared.observe, info.method);
            refuse(core, id, &Status::Denied(reason.into()));
            return Ok(());
        }
        handler.start(incoming)
    }

    /// Returns the metadata with which the program's authentication function has identified the
    /// client. Empty without authentication.
    pub(super) fn identity(&self) -> &Metadata {
        static NO_IDENTITY: Metadata = Metadata::EMPTY;
        self.identity.get().unwrap_or(&NO_IDENTITY)
    }

    /// Ends the calls whose deadlines have passed at `now`, a time in microseconds since the
    /// creation of the connection. Returns the earliest deadline of the remaining calls, or
    /// [`NO_DEADLINE`] if no call with a deadline remains.
    pub(crate) fn expire(&self, core: &Arc<Core>, now: u64) -> u64 {
        let expired = |id| refuse(core, id, &Status::DeadlineExceeded);
        let next = self
            .slots
            .stop(|deadline| deadline <= now, &Error::Cancelled, expired);
        core.outbox.schedule();
        next
    }

    /// Ends the running calls of this connection. Drops their handlers, and fails their streams
    /// with `error`, the error that ended the connection. Refuses new calls from now on. The tasks
    /// of one-way calls are not in the table of calls, and end by themselves after the end of the
    /// connection.
    pub(crate) fn fail(&self, error: &Error) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.slots.stop(|_| true, error, drop);
    }

    /// Begins the shutdown of the connection: refuses new calls from now on, and announces this to
    /// the client.
    pub(super) fn close(&self, core: &Core) {
        self.is_closing.store(true, Ordering::SeqCst);
        core.send_control(&Header::Goodbye { status: 0 });
    }

    /// Ends the calls of the connection that still run at the end of a shutdown's grace period.
    /// Sends the client [`Status::Cancelled`] for each of these calls. The status
    /// [`Status::ShuttingDown`] would mean that the calls were not started. One-way calls are not
    /// in the table of calls, and run until the connection ends.
    pub(super) fn stop(&self, core: &Core) {
        let stopped = |id| refuse(core, id, &Status::Cancelled);
        let next = self.slots.stop(|_| true, &Error::ShuttingDown, stopped);
        debug_assert_eq!(next, NO_DEADLINE);
        core.outbox.schedule();
    }

    /// Announces to the client that the server has answered every call that the server has started.
    /// The client can then send its unanswered calls to another server. Includes the number of long
    /// responses, because a long response can arrive later than the announcement. The caller must
    /// ensure that no handler is running.
    pub(super) fn announce_all_answered(&self, core: &Core) {
        let header = Header::Goodbye { status: 2 };
        let sent = self.long_responses.load(Ordering::Relaxed).to_be_bytes();
        let appended = core
            .outbox
            .append(&header, &sent[..], MAX_BATCH_LEN, SendAt::TurnEnd);
        if let Err(error) = appended {
            core.fail(error.into_error());
        }
    }

    /// Counts a sent response that was too long to share a message with other frames.
    pub(super) fn count_long_response(&self) {
        self.long_responses.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a handler as running until [`Self::end_handler`], so that a shutdown waits for the
    /// handler. Returns `false`, without counting the handler, if new calls are refused.
    pub(super) fn begin_handler(&self) -> bool {
        // The handler is counted before `is_closing` is read. Otherwise `wait_for_handlers` could
        // miss the handler.
        self.running.fetch_add(1, Ordering::SeqCst);
        let may_run = !self.is_closing();
        if !may_run {
            self.end_handler();
        }
        may_run
    }

    /// Counts a handler as ended, and notifies a shutdown that waits for the last handler.
    pub(super) fn end_handler(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_closing() {
            self.idle.notify_waiters();
        }
    }

    /// Returns whether at most one handler is running. The server then sends the response of this
    /// handler immediately, because no other response can share the message.
    pub(super) fn has_one_handler(&self) -> bool {
        self.running.load(Ordering::Relaxed) <= 1
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Waits until no handler of the connection is running. The caller must call [`Self::close`]
    /// first, which refuses new calls.
    pub(super) async fn wait_for_handlers(&self) {
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

/// Answers the call `id` with `status` instead of a response. A one-way call gets no answer: the
/// status is only logged. Ends the connection if no memory is left to queue the status, because the
/// client would otherwise wait until the deadline of the call.
pub(super) fn refuse(core: &Core, id: CallId, status: &Status) {
    if id.index == ONE_WAY {
        tracing::warn!(peer = %core.peer, ?status, "a one-way call was dropped");
        return;
    }
    let (number, body) = status.to_parts();
    let header = Header::Status { id, status: number };
    let appended = core
        .outbox
        .append(&header, &*body, MAX_BATCH_LEN, SendAt::TurnEnd);
    match appended {
        Ok(_) => {}
        Err(AppendError::Transport(error)) => core.fail(error),
        Err(error) => {
            tracing::debug!(peer = %core.peer, ?error, ?status, "a status could not be sent");
        }
    }
}
