//! One end of a connection: its queue pair, the requests in flight, and the messages that have
//! arrived.
//!
//! [`crate::Rdma`] is the public handle of a connection. The submodules implement requests,
//! messages, credits and leases.

mod borrowed;
mod close_notice;
mod control;
mod credits;
mod exposed;
mod frame;
mod handler;
mod handover;
mod inbox;
mod leases;
mod link;
mod messages;
#[cfg(all(test, loom_models))]
mod models;
mod operation;
mod outbox;
mod outgoing;
mod pipeline;
mod progress;
mod rendezvous;
mod replies;
mod requests;
mod results;
mod returned;
mod ring;
mod send_state;
mod sender;
mod sync;
mod waiters;
mod windows;
mod work;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rdma_core::memory::Claim;
use rdma_core::{QueuePair, RemoteMemory, WorkError, WorkStatus};
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;
use tokio::time::timeout;
use tracing::Span;

use self::borrowed::BorrowedLeases;
use self::close_notice::CloseNotice;
pub(crate) use self::control::{Attached, ControlTask};
use self::credits::CreditCounter;
pub(crate) use self::frame::{HEADER_LEN, MAX_FRAME_LEN};
use self::handler::Handler;
pub use self::handler::{Message, Poster};
pub(crate) use self::handover::Loan;
use self::inbox::Inbox;
use self::leases::Leases;
pub(crate) use self::link::Link;
use self::operation::Operation;
use self::outbox::Outbox;
pub(crate) use self::outgoing::LONG_LEN;
use self::outgoing::Outgoing;
pub use self::pipeline::Pipeline;
use self::rendezvous::FrontQueue;
pub(crate) use self::rendezvous::{IncomingMessage, StreamPiece};
use self::replies::PendingReplies;
use self::requests::Requests;
use self::results::ResultSlot;
use self::returned::ReturnedRegions;
pub(crate) use self::ring::RingPiece;
use self::ring::{OwnRing, PeerRing};
use self::send_state::{AWAITED, AwaitedBy, NotAccepted, PostTime};
use self::sender::Sender;
use self::waiters::Waiters;
pub(crate) use self::windows::{EndedAccess, Windows};
use self::work::Memory;
pub(crate) use self::work::{Push, Work};
use crate::authentication::Authenticator;
use crate::builder::Settings;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, claim_read, claim_write};
use crate::shard::{BRIEF_POLL, Reservation, Shard};

/// Number of polls of a connection's futures that use up one unit of tokio's cooperative budget. A
/// task may use 128 units before it must let other tasks run. A unit stands for more work than one
/// such poll.
const POLLS_PER_UNIT: u32 = 4;

/// Receive depths: the number of messages of each class that an end accepts before it returns
/// credits (permissions to send).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Maximum number of data messages, which wait for the application.
    pub(crate) data: u16,
    /// Maximum number of control messages, which the connection itself handles.
    pub(crate) control: u16,
}

/// Arguments of [`Connection::new`]: the connected queue pair with its device, the reserved room
/// for its completions and receives, the settings, and the limits and the address of the peer.
pub(crate) struct ConnectionParts {
    pub(crate) queue_pair: QueuePair,
    pub(crate) device: RdmaDevice,
    pub(crate) reservation: Reservation,
    pub(crate) settings: Settings,
    /// Receive depths of the peer.
    pub(crate) peer: Depths,
    /// Maximum length, in bytes, of a message that the peer accepts in one piece.
    pub(crate) peer_payload: usize,
    /// Address of the peer's host.
    pub(crate) peer_address: IpAddr,
}

/// One end of a connection: the state that the public handle, the futures of operations and the
/// driver (the task that polls for completions) share.
#[derive(Debug)]
pub(crate) struct Connection {
    // Dropped first, because requests may be using memory that other fields own.
    sender: Sender,
    // Dropped before the queue pair, to which memory windows are bound.
    leases: Leases,
    queue_pair: QueuePair,
    /// Maximum number of bytes that the device copies into a request (inline data).
    inline: usize,
    shard: Arc<Shard>,
    _reservation: Reservation,
    device: RdmaDevice,
    settings: Settings,
    span: Span,

    /// Credits for data messages to the peer.
    data_credits: CreditCounter,
    /// Credits for control messages to the peer.
    control_credits: CreditCounter,
    peer_payload: usize,
    /// Address of the peer's host. The device counts the memory granted to each address.
    peer: IpAddr,
    /// Number of data credits to be returned to the peer.
    owed_data: AtomicU32,
    /// Number of control credits to be returned to the peer.
    owed_control: AtomicU32,

    handler: Handler,
    messages: Inbox<IncomingMessage>,
    /// Immediate data of RDMA writes of the peer.
    write_immediates: Inbox<u32>,
    /// Memory that the peer has offered.
    offers: Inbox<RemoteMr>,
    borrowed: BorrowedLeases,
    /// Lent memory that the peer has returned.
    returned: ReturnedRegions,
    /// Messages that the application receives before the messages in `messages`.
    front: FrontQueue,
    // Dropped after the queue pair, because requests in flight use windows.
    windows: Arc<Windows>,
    requests: Requests,
    replies: PendingReplies,
    outbox: Outbox,
    close_notice: Arc<CloseNotice>,
    /// Outgoing bytes of a stream, set only if the connection is used as a stream.
    outgoing: OnceLock<Outgoing>,
    /// Ring for long pieces of a stream that this end has advertised.
    own_ring: OnceLock<OwnRing>,
    /// Ring for long pieces of a stream that the peer has advertised.
    peer_ring: OnceLock<PeerRing>,

    /// Approximate number of polls of this connection's futures.
    polls: AtomicU32,
    /// Set until the peer is authenticated. While set, the peer gets no memory.
    withholds_memory: AtomicBool,
    /// Error that ended the connection.
    failure: OnceLock<Error>,
    /// Notification that wakes the control task after a failure, after a request of the peer for
    /// memory, or when the first lease gets an expiry.
    control_wakeup: Arc<Notify>,
    /// Weak handle of this connection.
    weak: Weak<Connection>,
}

impl Connection {
    pub(crate) fn new(parts: ConnectionParts) -> Arc<Self> {
        let ConnectionParts {
            queue_pair,
            device,
            reservation,
            settings,
            peer,
            peer_payload,
            peer_address,
        } = parts;
        let own = settings.depths();
        let control_wakeup: Arc<Notify> = Arc::default();
        Arc::new_cyclic(|weak| Self {
            sender: Sender::new(queue_pair.send_queue(), settings.send_depth as usize),
            inline: queue_pair.inline_limit(),
            data_credits: CreditCounter::new(peer.data),
            control_credits: CreditCounter::new(peer.control),
            peer_payload,
            peer: peer_address,
            owed_data: AtomicU32::new(0),
            owed_control: AtomicU32::new(0),
            handler: Handler::default(),
            messages: Inbox::new(own.data),
            write_immediates: Inbox::new(own.data),
            offers: Inbox::new(own.data),
            borrowed: BorrowedLeases::default(),
            returned: ReturnedRegions::default(),
            front: FrontQueue::default(),
            leases: Leases::new(settings.remote_access, device.clone()),
            windows: Arc::new(Windows::new(Arc::clone(&control_wakeup), device.clone())),
            requests: Requests::default(),
            replies: PendingReplies::default(),
            outbox: Outbox::new(),
            close_notice: Arc::default(),
            outgoing: OnceLock::new(),
            own_ring: OnceLock::new(),
            peer_ring: OnceLock::new(),
            polls: AtomicU32::new(0),
            withholds_memory: AtomicBool::new(false),
            failure: OnceLock::new(),
            control_wakeup,
            weak: weak.clone(),
            span: tracing::info_span!(
                "rdma_connection",
                device = device.context().name(),
                queue_pair = queue_pair.number(),
                peer = tracing::field::Empty,
            ),
            queue_pair,
            device,
            shard: Arc::clone(reservation.shard()),
            _reservation: reservation,
            settings,
        })
    }

    pub(crate) fn device(&self) -> &RdmaDevice {
        &self.device
    }

    /// Returns the [`Authenticator`] of the settings, with which both ends prove that they may
    /// connect. Returns `None` if the connection needs no authentication.
    pub(crate) fn authenticator(&self) -> Option<Arc<dyn Authenticator>> {
        self.settings.authenticator.clone()
    }

    /// Refuses the peer's requests for memory, and its long messages, until
    /// [`Self::release_memory`] is called. Called before the peer is authenticated.
    pub(crate) fn withhold_memory(&self) {
        self.withholds_memory.store(true, Ordering::Release);
    }

    /// Permits the peer to get memory of this end: from now on, accepts the peer's requests for
    /// memory and its long messages, which also need memory. Called when the peer is authenticated.
    /// Ends the effect of [`Self::withhold_memory`].
    pub(crate) fn release_memory(&self) {
        self.withholds_memory.store(false, Ordering::Release);
    }

    /// Returns the tracing span of the connection, the parent of its log events.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns a reference-counted handle of this connection, or `None` while the connection is
    /// being dropped.
    pub(crate) fn to_arc(&self) -> Option<Arc<Self>> {
        self.weak.upgrade()
    }

    /// Returns the error that ended the connection, or `None` while it is open.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Waits until the connection has ended, and returns the error that ended it.
    pub(crate) async fn wait_for_end(&self) -> Error {
        // `fail` wakes these waiters, and few other events wake them.
        let waiters = self.returned.waiters();
        waiters.wait_for(|| self.failure().cloned()).await
    }

    /// Ends the connection with `error`. The device then flushes the requests in flight, and all
    /// waiting tasks are woken. Does nothing if the connection has already ended.
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.end_after_failure();
        }
    }

    /// Shuts the connection down after a failure: moves the queue pair to the error state, cancels
    /// the requests that are not posted, and wakes all waiting tasks. The caller must have stored
    /// the error in the field `failure`.
    fn end_after_failure(&self) {
        tracing::debug!(parent: &self.span, queue_pair = self.queue_pair.number(), error = ?self.failure(), "connection ended");
        let moved = self.queue_pair.fail();
        let has_cancelled = self.sender.cancel_staged();
        if let Err(error) = moved {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
            // Without the error state, requests in flight may never complete.
            self.end_waits();
        }
        self.replies
            .fail(self.failure.get().expect("the error was set above"));
        self.outbox.clear();
        if let Some(outgoing) = self.outgoing.get() {
            outgoing.clear(has_cancelled);
            outgoing.waiters().wake();
        }
        let [room, result_free] = self.sender.waiters();
        for waiters in [
            room,
            result_free,
            self.data_credits.waiters(),
            self.control_credits.waiters(),
            self.messages.waiters(),
            self.write_immediates.waiters(),
            self.offers.waiters(),
            self.returned.waiters(),
        ] {
            waiters.wake();
        }
        self.control_wakeup.notify_one();
        // Makes the driver poll for the flushed requests.
        self.shard.wake_driver();
    }

    /// Stores the error that ends the connection after the device has reported the failure `error`
    /// of a request. If this function returns `true`, the caller must call
    /// [`Self::end_after_failure`]. Returns `false`, and stores nothing, if the connection has
    /// failed before.
    #[cold]
    fn set_work_failure(&self, error: WorkError) -> bool {
        let failure = match error.status {
            // The request was only flushed. The device has not reported the cause.
            WorkStatus::Flushed => Error::disconnected(
                "the device flushed its requests, for example after it refused an access of the peer",
            ),
            _ => error.into(),
        };
        self.failure.set(failure).is_ok()
    }

    /// Returns whether any future waits for the completion of a request on this connection.
    fn awaits_completions(&self) -> bool {
        self.sender.lock().is_awaited()
    }

    /// Returns whether all messages and data were delivered to the peer: no message is queued, and
    /// every request has completed.
    fn has_delivered_all(&self) -> bool {
        let has_outgoing = self
            .outgoing
            .get()
            .is_some_and(|outgoing| !outgoing.is_empty());
        self.outbox.is_empty() && !has_outgoing && self.sender.lock().is_idle()
    }

    /// Waits until the peer has received all messages, and has read the long messages that were
    /// sent by rendezvous (lent to the peer). Fails after the response timeout of the settings.
    pub(crate) async fn wait_until_delivered(&self) -> Result<()> {
        self.post_staged();
        let limit = self.settings.response_timeout;
        let attempt = || {
            let is_done = || self.has_delivered_all() && self.replies.lent_bytes() == 0;
            self.failed().or_else(|| is_done().then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.shard.wake_driver();
        let [room, _] = self.sender.waiters();
        timeout(limit, room.wait_for(attempt))
            .await
            .unwrap_or(Err(Error::Timeout {
                what: "the delivery of the last messages to the peer",
                limit,
            }))
    }

    /// Wakes all futures that wait for completions, so that the futures fail. Called after the
    /// connection has failed, if completions perhaps never arrive: no task polls for them, or the
    /// queue pair could not be moved to the error state. Requests in flight keep their memory until
    /// the queue pair is destroyed.
    pub(crate) fn end_waits(&self) {
        self.sender.end_waits();
    }

    /// Returns the error that ended the connection, as the result of a wait (`Some(Err(error))`).
    /// Returns `None` while the connection is open.
    fn failed<T>(&self) -> Option<Result<T>> {
        self.failure().map(|error| Err(error.clone()))
    }

    /// Fails, with the error that ended the connection, if the connection has ended.
    fn check_open(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Submits an RDMA write of the bytes of `local` to `remote`, and returns the future of its
    /// completion. Returns `None`, and submits no request, if the send queue is full.
    #[inline]
    pub(crate) fn try_write(
        &self,
        local: &impl LocalMrReadAccess,
        remote: RemoteMemory,
    ) -> Result<Option<Operation<'_>>> {
        self.check_open()?;
        let push = Push::Write {
            remote,
            immediate: None,
        };
        if local.length() <= self.inline {
            let bytes = local.try_as_slice()?;
            return self.operation_of(self.submit_copied(push, [bytes, &[]], AWAITED));
        }
        let memory = (None, Some(claim_read(local)?.into()));
        let submitted = self.submit_held(Work::Push(push), memory, AWAITED, None);
        self.operation_of(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Submits an RDMA read from `remote` into `local`, and returns the future of its completion.
    /// Returns `None`, and submits no request, if the send queue is full.
    #[inline]
    pub(crate) fn try_read(
        &self,
        local: &mut impl LocalMrWriteAccess,
        remote: RemoteMemory,
    ) -> Result<Option<Operation<'_>>> {
        self.check_open()?;
        let memory = (None, Some(claim_write(local)?.into()));
        let submitted = self.submit_held(Work::Read { remote }, memory, AWAITED, None);
        self.operation_of(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Converts `submitted`, the result of submitting a request to the send queue, to a future that
    /// waits for the completion of that request. Returns `None` if the send queue is full.
    #[inline]
    fn operation_of(&self, submitted: Result<u64, NotAccepted>) -> Result<Option<Operation<'_>>> {
        match submitted {
            Ok(number) => Ok(Some(self.operation(number, None))),
            Err(NotAccepted::Full) => Ok(None),
            Err(NotAccepted::Refused(error)) => Err(*error),
        }
    }

    /// Performs an RDMA write with the bytes of `local`, and waits until the write has completed.
    /// `push` is the description of the write, with the remote address and key. Waits for room if
    /// the send queue is full.
    pub(crate) async fn write(&self, local: &impl LocalMrReadAccess, push: Push) -> Result<()> {
        if local.length() > self.inline {
            return self
                .perform_held(Work::Push(push), claim_read(local)?.into())
                .await;
        }
        let bytes = local.try_as_slice()?;
        self.check_open()?;
        let attempt = || self.submit_copied(push, [bytes, &[]], AWAITED);
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        self.operation(number, None).await.map(drop)
    }

    /// Performs an RDMA write with immediate data, with the bytes of `local`, and waits until the
    /// write has completed. `push` contains the remote address and key, and the immediate data.
    /// First waits until the peer has a free receive, because immediate data uses up a receive.
    pub(crate) async fn write_with_immediate(
        &self,
        local: &impl LocalMrReadAccess,
        push: Push,
    ) -> Result<()> {
        let (bytes, mut memory) = if local.length() > self.inline {
            (None, Some((None, Some(claim_read(local)?.into()))))
        } else {
            (Some(local.try_as_slice()?), None)
        };
        let credit = self.data_credit().await?;
        let mut attempt = || match (bytes, &mut memory) {
            (Some(bytes), _) => self.submit_copied(push, [bytes, &[]], AWAITED),
            (None, memory) => self.submit_or_restore(Work::Push(push), memory, AWAITED, None),
        };
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        credit.spend();
        self.operation(number, None).await.map(drop)
    }

    /// Performs the RDMA read `work` into `local`, and waits until the read has completed. Waits
    /// for room if the send queue is full.
    pub(crate) async fn read(&self, local: &mut impl LocalMrWriteAccess, work: Work) -> Result<()> {
        self.perform_held(work, claim_write(local)?.into()).await
    }

    /// Performs the operation `work` and waits for its completion. The request holds `claim`, which
    /// reserves the application's memory, until the operation completes.
    async fn perform_held(&self, work: Work, claim: Claim) -> Result<()> {
        let number = self.begin_held(work, claim).await?;
        self.operation(number, None).await.map(drop)
    }

    /// Submits the operation `work`, whose request holds `claim`, the right to use the
    /// application's memory, until it completes. Returns the number of the request, by which the
    /// caller can wait for its completion. Waits while the send queue is full.
    pub(crate) async fn begin_held(&self, work: Work, claim: Claim) -> Result<u64> {
        self.check_open()?;
        let mut memory = Some((None, Some(claim)));
        let mut attempt = || self.submit_or_restore(work, &mut memory, AWAITED, None);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Waits until the request with the number `last`, and thus every earlier request, has
    /// completed. Returns immediately for `None`. Fails if that request fails.
    pub(crate) async fn finish(&self, last: Option<u64>) -> Result<()> {
        match last {
            Some(number) => self.operation(number, None).await.map(drop),
            None => Ok(()),
        }
    }

    /// Submits the operation `work` with `memory`, which the request holds until it completes. If
    /// the send queue does not accept the request, leaves the memory in `memory`, so that the
    /// caller can try again.
    #[inline]
    fn submit_or_restore(
        &self,
        work: Work,
        memory: &mut Option<Memory>,
        how: (AwaitedBy, PostTime),
        slot: Option<ResultSlot>,
    ) -> Result<u64, NotAccepted> {
        let taken = memory.take().unwrap_or_default();
        self.submit_held(work, taken, how, slot)
            .map_err(|(not_accepted, unused)| {
                *memory = Some(unused);
                not_accepted
            })
    }

    /// Performs the atomic operation `work`, and returns the previous value of the remote memory.
    /// Waits while no slot for the result of the operation is free, or while the send queue is
    /// full.
    pub(crate) async fn perform_atomic(&self, work: Work) -> Result<u64> {
        let slot = self.reserve_result().await?;
        let guard = ReleaseUnlessUsed {
            sender: &self.sender,
            slot,
        };
        let mut memory = Some((
            Some(self.device.pool().take_header(size_of::<u64>())?),
            None,
        ));
        let mut attempt = || self.submit_or_restore(work, &mut memory, AWAITED, Some(slot));
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        std::mem::forget(guard);
        self.operation(number, Some(slot)).await
    }

    /// Returns the error of the failed request with the number `number`: the error that the device
    /// reported for this request, or else the error that ended the connection. The error also
    /// states whether the request was posted.
    fn operation_error(&self, number: u64) -> Error {
        match self.sender.own_failure(number) {
            Some(own) => own.into(),
            None if self.sender.was_cancelled(number) => self.end_reason(),
            None => self.end_reason().of_posted(),
        }
    }

    /// Counts a poll of one of the connection's futures. Returns whether the caller must charge
    /// this poll to tokio's cooperative budget. Only one of every [`POLLS_PER_UNIT`] polls is
    /// charged, because one poll is short compared with a unit of the budget.
    #[inline]
    fn count_poll(&self) -> bool {
        // Two threads may lose a count, which does no harm: the number is approximate.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls.is_multiple_of(POLLS_PER_UNIT)
    }

    /// Polls the completion queue until `attempt` returns a value, for at most [`BRIEF_POLL`].
    /// Returns `None` after this time: the caller then sleeps. Also returns `None`, without
    /// polling, if another future waits for a request of this connection, or if the poll would
    /// delay other tasks.
    #[inline(never)]
    fn poll_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if self.awaits_completions() {
            return None;
        }
        self.post_and_poll_briefly(attempt)
    }

    /// Posts the staged requests (accepted, but not yet posted), and polls the completion queue
    /// until `attempt` returns a value, for at most [`BRIEF_POLL`]. Returns `None` after this time.
    /// Does nothing, and returns `None`, if [`Shard::may_poll_briefly`] returns `false`. The driver
    /// task usually posts staged requests, but does not run during the poll.
    pub(super) fn post_and_poll_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.shard.may_poll_briefly() {
            return None;
        }
        self.post_staged();
        self.shard.poll_briefly(BRIEF_POLL, attempt)
    }

    /// Posts the staged requests (accepted, but not yet posted), and polls the completion queue
    /// until `attempt` returns a value, for at most `limit`. Returns `None` after this time. Does
    /// nothing, and returns `None`, if a poll could delay other tasks: for example if the previous
    /// call came from another task than that of `cx`.
    pub(crate) fn poll_as_lone_task<T>(
        &self,
        cx: &Context<'_>,
        limit: Duration,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !self.shard.may_poll_briefly() || !self.shard.is_lone_task(cx.waker()) {
            return None;
        }
        self.post_staged();
        let found = self.shard.poll_briefly(limit, attempt);
        if found.is_none() {
            self.shard.lone_poll_failed();
        }
        found
    }

    /// Waits until `attempt` returns a value, and returns the value. Fails if the connection ends.
    /// First polls the completion queue, at most for a short time. Then sleeps, and calls `attempt`
    /// again whenever the tasks in the list `waiters` are woken.
    async fn wait<T>(
        &self,
        waiters: &Waiters,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let found = poll_fn(|cx| {
            // Tokio's budget lets other tasks run even if `attempt` always returns a value
            // immediately.
            let turn = match self.count_poll() {
                true => Some(ready!(poll_proceed(cx))),
                false => None,
            };
            let found = attempt().or_else(|| {
                self.shard.poll();
                attempt()
            });
            let found = found.or_else(|| self.poll_briefly(&mut attempt));
            if let (Some(_), Some(turn)) = (&found, turn) {
                turn.made_progress();
            }
            Poll::Ready(found)
        });
        if let Some(value) = found.await {
            return Ok(value);
        }
        let _waiting = (!self.handler.is_set()).then(|| self.shard.waiting());
        self.shard.wake_driver();
        let attempt_or_failure = || {
            attempt().map(Ok).or_else(|| {
                let failed = self.failed()?;
                // The value may have arrived between the attempt and the failure.
                Some(attempt().map_or(failed, Ok))
            })
        };
        waiters.wait_for(attempt_or_failure).await
    }
}

/// Guard of a reserved slot for the result of an atomic operation. Dropping the guard frees the
/// slot. The caller forgets the guard once the send queue has accepted the request.
struct ReleaseUnlessUsed<'c> {
    sender: &'c Sender,
    slot: ResultSlot,
}

impl Drop for ReleaseUnlessUsed<'_> {
    fn drop(&mut self) {
        self.sender.release_result(self.slot);
    }
}
