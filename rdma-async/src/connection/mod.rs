//! One end of a connection: its queue pair, its requests in flight, and its messages that have
//! arrived.
//!
//! [`crate::Rdma`] is the public handle. The submodules implement requests, messages, credits and
//! leases.

mod borrowed;
mod control;
mod credits;
mod farewell;
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
mod results;
mod send_state;
mod sender;
mod sync;
mod waiters;
mod work;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, ready};

use crossbeam_queue::SegQueue;
use rdma_core::memory::Claim;
use rdma_core::{QueuePair, RemoteMemory, WorkError, WorkStatus};
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;
use tokio::time::timeout;
use tracing::Span;

use self::borrowed::Borrowed;
pub(crate) use self::control::{Attached, ControlTask};
use self::credits::CreditCounter;
use self::farewell::Farewell;
pub(crate) use self::frame::{HEADER_LEN, MAX_FRAME_LEN};
use self::handler::Handler;
pub use self::handler::{Message, Poster};
use self::inbox::Inbox;
use self::leases::Leases;
pub(crate) use self::link::Link;
use self::operation::Operation;
use self::outbox::Outbox;
use self::outgoing::Outgoing;
pub use self::pipeline::Pipeline;
use self::rendezvous::Ahead;
pub(crate) use self::rendezvous::Incoming;
use self::replies::Replies;
use self::results::ResultSlot;
use self::send_state::{AWAITED, AwaitedBy, NotAccepted, PostTime};
use self::sender::Sender;
use self::waiters::Waiters;
use self::work::Memory;
pub(crate) use self::work::{Push, Work};
use crate::authentication::Authenticator;
use crate::builder::Settings;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, claim_read, claim_write,
};
use crate::shard::{Reservation, Shard};

/// Number of polls of futures that together count as one unit of tokio's budget of 128.
const POLLS_PER_UNIT: u32 = 4;

/// Number of messages of each class that an end accepts before it returns credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Maximum number of data messages, which wait for the application.
    pub(crate) data: u16,
    /// Maximum number of control messages, which the connection itself handles.
    pub(crate) control: u16,
}

/// Parts that a connection is made of.
pub(crate) struct Parts {
    pub(crate) queue_pair: QueuePair,
    pub(crate) device: RdmaDevice,
    pub(crate) reservation: Reservation,
    pub(crate) settings: Settings,
    /// Depths of the peer.
    pub(crate) peer: Depths,
    /// Maximum length, in bytes, of a message that the peer accepts in one piece.
    pub(crate) peer_payload: usize,
    /// Address of the peer's host.
    pub(crate) peer_address: IpAddr,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    // Dropped first: its requests may be using memory of the other fields.
    sender: Sender,
    queue_pair: QueuePair,
    /// Maximum number of bytes that a request copies (inline data).
    inline: usize,
    shard: Arc<Shard>,
    _reservation: Reservation,
    device: RdmaDevice,
    settings: Settings,
    span: Span,

    data_credits: CreditCounter,
    control_credits: CreditCounter,
    peer_payload: usize,
    /// Address of the peer's host, by which the device accounts for its memory.
    peer: IpAddr,
    owed_data: AtomicU32,
    owed_control: AtomicU32,

    handler: Handler,
    messages: Inbox<Incoming>,
    write_immediates: Inbox<u32>,
    offers: Inbox<RemoteMr>,
    borrowed: Borrowed,
    returned: SegQueue<LocalMr>,
    returned_arrived: Waiters,
    /// Messages that the application takes before those in `messages`.
    ahead: Ahead,
    leases: Leases,
    replies: Replies,
    outbox: Outbox,
    farewell: Arc<Farewell>,
    /// Outgoing bytes, if the connection is a stream.
    outgoing: OnceLock<Outgoing>,

    /// Approximate number of polls of futures.
    polls: AtomicU32,
    /// Set while the peer has not proved that it may connect, and gets no memory.
    withholds_memory: AtomicBool,
    failure: OnceLock<Error>,
    /// Notifies the control task of the failure, or of the first lease that has an end.
    has_news: Arc<Notify>,
    itself: Weak<Connection>,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            queue_pair,
            device,
            reservation,
            settings,
            peer,
            peer_payload,
            peer_address,
        } = parts;
        let own = settings.depths();
        Arc::new_cyclic(|itself| Self {
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
            borrowed: Borrowed::default(),
            returned: SegQueue::new(),
            returned_arrived: Waiters::default(),
            ahead: Ahead::default(),
            leases: Leases::new(settings.remote_access),
            replies: Replies::default(),
            outbox: Outbox::new(),
            farewell: Arc::default(),
            outgoing: OnceLock::new(),
            polls: AtomicU32::new(0),
            withholds_memory: AtomicBool::new(false),
            failure: OnceLock::new(),
            has_news: Arc::default(),
            itself: itself.clone(),
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

    /// Returns the authenticator of the settings.
    pub(crate) fn authenticator(&self) -> Option<Arc<dyn Authenticator>> {
        self.settings.authenticator.clone()
    }

    /// Refuses requests of the peer for memory until [`Self::release_memory`].
    pub(crate) fn withhold_memory(&self) {
        self.withholds_memory.store(true, Ordering::Release);
    }

    /// Grants requests of the peer for memory.
    pub(crate) fn release_memory(&self) {
        self.withholds_memory.store(false, Ordering::Release);
    }

    /// Returns the span of the connection.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns another handle of the connection, or `None` while the connection is being dropped.
    pub(crate) fn to_arc(&self) -> Option<Arc<Self>> {
        self.itself.upgrade()
    }

    /// Returns the error that ended the connection, or `None` while it is open.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Waits until the connection has ended, and returns the error that ended it.
    pub(crate) async fn wait_for_end(&self) -> Error {
        // `fail` wakes these waiters, and few other events do.
        let waiters = &self.returned_arrived;
        waiters.wait_for(|| self.failure().cloned()).await
    }

    /// Ends the connection with this error: requests in flight are flushed, and all waiters are
    /// woken.
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_err() {
            return;
        }
        tracing::debug!(parent: &self.span, queue_pair = self.queue_pair.number(), error = ?self.failure(), "connection ended");
        let moved = self.queue_pair.fail();
        self.sender.give_up();
        if let Err(error) = moved {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
            // Requests in flight may then never complete.
            self.end_waits();
        }
        self.replies
            .fail(self.failure.get().expect("it was set above"));
        self.outbox.clear();
        if let Some(outgoing) = self.outgoing.get() {
            outgoing.clear();
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
            &self.returned_arrived,
        ] {
            waiters.wake();
        }
        self.has_news.notify_one();
        // Makes the driver poll for the flushed requests.
        self.shard.wake_driver();
    }

    /// Ends the connection because a request failed.
    fn fail_with(&self, error: WorkError) {
        self.fail(match error.status {
            // The request was only flushed, and the device reported no cause.
            WorkStatus::Flushed => Error::disconnected(
                "the device ended it, as it does when it refuses an access of the peer's",
            ),
            _ => error.into(),
        });
    }

    /// Returns whether a future waits for a request of this connection.
    fn awaits_completions(&self) -> bool {
        self.sender.lock().is_awaited()
    }

    /// Returns whether the peer has received everything: the outbox is empty, and every request has
    /// completed.
    fn is_settled(&self) -> bool {
        let has_outgoing = self
            .outgoing
            .get()
            .is_some_and(|outgoing| !outgoing.is_empty());
        self.outbox.is_empty() && !has_outgoing && self.sender.lock().is_settled()
    }

    /// Waits until the peer has received everything that was sent, and has read the messages that
    /// are too long for one piece.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.post_staged();
        let limit = self.settings.response_timeout;
        let attempt = || {
            let is_settled = || self.is_settled() && self.replies.lent_bytes() == 0;
            self.failed().or_else(|| is_settled().then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.shard.wake_driver();
        let [room, _] = self.sender.waiters();
        timeout(limit, room.wait_for(attempt))
            .await
            .unwrap_or(Err(Error::Timeout {
                what: "the peer's taking of what was sent",
                limit,
            }))
    }

    /// Wakes all futures that wait for completions, because completions are no longer announced.
    /// Called after the connection has failed. Requests in flight keep their memory until the queue
    /// pair is destroyed.
    pub(crate) fn end_waits(&self) {
        self.sender.end_waits();
    }

    /// Returns the failure of the connection as the result of a wait, or `None` while it is open.
    fn failed<T>(&self) -> Option<Result<T>> {
        self.failure().map(|error| Err(error.clone()))
    }

    fn checked(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Begins a write. Returns `None`, without a request, if the send queue is full.
    #[inline]
    pub(crate) fn try_write(
        &self,
        local: &impl LocalMrReadAccess,
        remote: RemoteMemory,
    ) -> Result<Option<Operation<'_>>> {
        self.checked()?;
        let push = Push::Write {
            remote,
            immediate: None,
        };
        if local.length() <= self.inline {
            let bytes = local.try_as_slice()?;
            return self.begun(self.submit_copied(push, [bytes, &[]], AWAITED));
        }
        let memory = (None, Some(claim_read(local)?.into()));
        let submitted = self.submit_held(Work::Push(push), memory, AWAITED, None);
        self.begun(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Begins a read. Returns `None`, without a request, if the send queue is full.
    #[inline]
    pub(crate) fn try_read(
        &self,
        local: &mut impl LocalMrWriteAccess,
        remote: RemoteMemory,
    ) -> Result<Option<Operation<'_>>> {
        self.checked()?;
        let memory = (None, Some(claim_write(local)?.into()));
        let submitted = self.submit_held(Work::Read { remote }, memory, AWAITED, None);
        self.begun(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Returns the future of an accepted request, or `None` if the send queue was full.
    #[inline]
    fn begun(&self, submitted: Result<u64, NotAccepted>) -> Result<Option<Operation<'_>>> {
        match submitted {
            Ok(number) => Ok(Some(self.operation(number, None))),
            Err(NotAccepted::Full) => Ok(None),
            Err(NotAccepted::Refused(error)) => Err(*error),
        }
    }

    /// Writes memory of this end to memory of the peer, and waits until that has completed.
    pub(crate) async fn write(&self, local: &impl LocalMrReadAccess, push: Push) -> Result<()> {
        if local.length() > self.inline {
            return self
                .perform_held(Work::Push(push), claim_read(local)?.into())
                .await;
        }
        let bytes = local.try_as_slice()?;
        self.checked()?;
        let attempt = || self.submit_copied(push, [bytes, &[]], AWAITED);
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        self.operation(number, None).await.map(drop)
    }

    /// Writes with immediate data. Waits for a credit first, since the immediate data consumes a
    /// receive of the peer.
    pub(crate) async fn write_and_tell(
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
            (None, memory) => self.submit_kept(Work::Push(push), memory, AWAITED, None),
        };
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        credit.spend();
        self.operation(number, None).await.map(drop)
    }

    /// Reads memory of the peer into memory of this end, and waits until that has completed.
    pub(crate) async fn read(&self, local: &mut impl LocalMrWriteAccess, work: Work) -> Result<()> {
        self.perform_held(work, claim_write(local)?.into()).await
    }

    /// Performs an operation that claims memory of the application and has no result.
    async fn perform_held(&self, work: Work, claim: Claim) -> Result<()> {
        let number = self.begin_held(work, claim).await?;
        self.operation(number, None).await.map(drop)
    }

    /// Submits an operation that claims memory of the application. Waits for room, and returns the
    /// number of the request.
    pub(crate) async fn begin_held(&self, work: Work, claim: Claim) -> Result<u64> {
        self.checked()?;
        let mut memory = Some((None, Some(claim)));
        let mut attempt = || self.submit_kept(work, &mut memory, AWAITED, None);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Waits until the request with this number, and therefore all before it, has completed.
    /// Returns at once for `None`.
    pub(crate) async fn finish(&self, last: Option<u64>) -> Result<()> {
        match last {
            Some(number) => self.operation(number, None).await.map(drop),
            None => Ok(()),
        }
    }

    /// Submits a request that takes `memory`. If the request is not accepted, puts the memory back.
    #[inline]
    fn submit_kept(
        &self,
        work: Work,
        memory: &mut Option<Memory>,
        how: (AwaitedBy, PostTime),
        place: Option<ResultSlot>,
    ) -> Result<u64, NotAccepted> {
        let taken = memory.take().unwrap_or_default();
        self.submit_held(work, taken, how, place)
            .map_err(|(not_accepted, again)| {
                *memory = Some(again);
                not_accepted
            })
    }

    /// Performs an atomic, and returns the previous value of the remote memory.
    pub(crate) async fn perform_atomic(&self, work: Work) -> Result<u64> {
        let place = self.reserve_result().await?;
        let unused = ReleaseUnlessUsed {
            sender: &self.sender,
            place,
        };
        let mut memory = Some((
            Some(self.device.pool().take_header(size_of::<u64>())?),
            None,
        ));
        let mut attempt = || self.submit_kept(work, &mut memory, AWAITED, Some(place));
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        std::mem::forget(unused);
        self.operation(number, Some(place)).await
    }

    /// Returns the error of a failed operation, which is its own, or else the error that ended the
    /// connection.
    fn cause(&self, number: u64) -> Error {
        match self.sender.own_failure(number) {
            Some(own) => own.into(),
            None if self.sender.was_given_up(number) => self.ended(),
            None => self.ended().of_posted(),
        }
    }

    /// Counts a poll of a future. Returns whether it is charged to tokio's budget: every fourth is,
    /// since operations are short.
    #[inline]
    fn counts(&self) -> bool {
        // A count that is lost between two threads does no harm.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls.is_multiple_of(POLLS_PER_UNIT)
    }

    /// Polls for a short time until `attempt` returns a value, unless a future waits for a request
    /// of this connection or other tasks would be delayed.
    #[inline(never)]
    fn poll_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if self.awaits_completions() {
            return None;
        }
        self.post_and_poll_briefly(attempt)
    }

    /// Posts the staged requests and polls for a short time, if nobody else polls: the driver,
    /// which posts them at the end of the turn, does not run meanwhile.
    pub(super) fn post_and_poll_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.shard.may_poll_briefly() {
            return None;
        }
        self.post_staged();
        self.shard.poll_briefly(attempt)
    }

    /// Waits until `attempt` returns a value or the connection has ended.
    async fn wait<T>(
        &self,
        waiters: &Waiters,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let found = poll_fn(|cx| {
            // Tokio's budget lets other tasks run even if this task always finds a value.
            let turn = match self.counts() {
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
        let _waiting = self.shard.waiting();
        self.shard.wake_driver();
        waiters
            .wait_for(|| attempt().map(Ok).or_else(|| self.failed()))
            .await
    }
}

/// Guard that releases the place of an atomic unless the request was accepted.
struct ReleaseUnlessUsed<'c> {
    sender: &'c Sender,
    place: ResultSlot,
}

impl Drop for ReleaseUnlessUsed<'_> {
    fn drop(&mut self) {
        self.sender.release_result(self.place);
    }
}
