//! A connection: its queue pair, what is in flight, and what has arrived.

mod control;
mod credits;
mod frame;
mod handler;
mod handover;
mod inbox;
mod leases;
mod messages;
mod operation;
mod outbox;
mod progress;
mod replies;
mod results;
mod send_state;
mod sender;
mod waiters;
mod work;

use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, ready};

use crossbeam_queue::SegQueue;
use rdma_core::{Claim, QueuePair, RemoteMemory, WorkError, WorkStatus};
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;
use tokio::time::timeout;

pub(crate) use self::control::{Attached, ControlTask};
use self::credits::CreditCounter;
pub(crate) use self::frame::{HEADER_LEN, MAX_FRAME_LEN};
use self::handler::Handler;
pub use self::handler::{Message, Poster};
use self::inbox::Inbox;
use self::leases::Leases;
pub(crate) use self::messages::Incoming;
use self::operation::Operation;
use self::outbox::Outbox;
use self::replies::Replies;
use self::results::Place;
use self::send_state::{ATTENDED, NotAccepted};
use self::sender::Sender;
use self::waiters::Waiters;
use self::work::Memory;
pub(crate) use self::work::{Push, Work};
use crate::builder::Settings;
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, claim_read, claim_write,
};
use crate::shard::{Reservation, Shard};

/// Polls of futures that together count as one unit of tokio's budget of 128.
const POLLS_PER_UNIT: u32 = 4;

/// How many messages an end takes before it returns credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Messages that wait for the application.
    pub(crate) data: u16,
    /// Messages that the connection itself handles.
    pub(crate) control: u16,
}

/// Parts that a connection is made of.
pub(crate) struct Parts {
    pub(crate) queue_pair: QueuePair,
    pub(crate) device: RdmaDevice,
    pub(crate) reservation: Reservation,
    pub(crate) settings: Settings,
    /// What the peer takes.
    pub(crate) peer: Depths,
    /// The longest payload that the peer takes in one message.
    pub(crate) peer_payload: usize,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    // Before everything whose memory it may be using.
    sender: Sender,
    queue_pair: QueuePair,
    /// Largest number of bytes that a request copies.
    inline: usize,
    shard: Arc<Shard>,
    _reservation: Reservation,
    device: RdmaDevice,
    settings: Settings,

    data_credits: CreditCounter,
    control_credits: CreditCounter,
    peer_payload: usize,
    owed_data: AtomicU32,
    owed_control: AtomicU32,

    handler: Handler,
    messages: Inbox<Incoming>,
    write_immediates: Inbox<u32>,
    offers: Inbox<RemoteMr>,
    returned: SegQueue<LocalMr>,
    returned_arrived: Waiters,
    /// Messages whose receiving was given up halfway; they come before those of the inbox.
    deferred: SegQueue<Incoming>,
    leases: Leases,
    replies: Replies,
    outbox: Outbox,

    /// Number of polls of futures, about.
    polls: AtomicU32,
    failure: OnceLock<Error>,
    /// Tells the control task of the failure.
    has_failed: Arc<Notify>,
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
        } = parts;
        let own = settings.depths();
        Arc::new_cyclic(|itself| Self {
            sender: Sender::new(queue_pair.send_queue(), settings.send_depth as usize),
            inline: queue_pair.inline_limit(),
            data_credits: CreditCounter::new(peer.data),
            control_credits: CreditCounter::new(peer.control),
            peer_payload,
            owed_data: AtomicU32::new(0),
            owed_control: AtomicU32::new(0),
            handler: Handler::default(),
            messages: Inbox::new(own.data),
            write_immediates: Inbox::new(own.data),
            offers: Inbox::new(own.data),
            returned: SegQueue::new(),
            returned_arrived: Waiters::default(),
            deferred: SegQueue::new(),
            leases: Leases::new(settings.remote_access),
            replies: Replies::default(),
            outbox: Outbox::new(),
            polls: AtomicU32::new(0),
            failure: OnceLock::new(),
            has_failed: Arc::default(),
            itself: itself.clone(),
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

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Returns a second handle of the connection; `None` while it is dropped.
    pub(crate) fn to_arc(&self) -> Option<Arc<Self>> {
        self.itself.upgrade()
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Waits until the connection has ended.
    pub(crate) async fn wait_for_end(&self) -> Error {
        // Of those whom an end wakes, the ones that little else does.
        let waiters = &self.returned_arrived;
        waiters.wait_for(|| self.failure().cloned()).await
    }

    /// Ends the connection: what is in flight is flushed, and everyone who waits is told.
    pub(crate) fn fail(&self, error: Error) {
        if self.failure.set(error).is_err() {
            return;
        }
        tracing::debug!(queue_pair = self.queue_pair.number(), error = ?self.failure(), "connection ended");
        let moved = self.queue_pair.fail();
        self.sender.give_up();
        if let Err(error) = moved {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
            // Then nothing may be flushed either.
            self.forsake();
        }
        self.replies
            .fail(self.failure.get().expect("it was set above"));
        self.outbox.clear();
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
        self.has_failed.notify_one();
        // What is flushed is looked for, whoever waits for it.
        self.shard.attend();
    }

    /// Ends the connection because of a request that the device did not do.
    fn fail_with(&self, error: WorkError) {
        self.fail(match error.status {
            // Not the request's fault, and nobody else said whose.
            WorkStatus::Flushed => Error::disconnected(
                "the device ended it, as it does when it refuses an access of the peer's",
            ),
            _ => error.into(),
        });
    }

    /// Returns whether a future waits for an operation in flight.
    fn awaits_completions(&self) -> bool {
        self.sender.lock().is_attended()
    }

    /// Returns whether the peer has everything that this end sent: no message waits to be posted, and
    /// the device has completed every request.
    fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.sender.lock().is_settled()
    }

    /// Waits until the peer has everything that was sent, and has read the messages that are too long for
    /// one piece.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.leave();
        let limit = self.settings.response_timeout;
        let attempt = || {
            let is_settled = || self.is_settled() && !self.replies.has_lent();
            self.failed().or_else(|| is_settled().then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.shard.attend();
        let [room, _] = self.sender.waiters();
        timeout(limit, room.wait_for(attempt))
            .await
            .unwrap_or(Err(Error::Timeout {
                what: "the peer's taking of what was sent",
                limit,
            }))
    }

    /// Has nobody wait for completions any more, which are not announced from here on. The connection
    /// has failed; what is in flight keeps its memory until the queue pair is destroyed.
    pub(crate) fn forsake(&self) {
        self.sender.forsake();
    }

    /// The failure as an outcome, for those who wait for something else.
    fn failed<T>(&self) -> Option<Result<T>> {
        self.failure().map(|error| Err(error.clone()))
    }

    fn checked(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Begins a write, if that needs no wait.
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
            return self.begun(self.submit_copied(push, [bytes, &[]], ATTENDED));
        }
        let memory = (None, Some(claim_read(local)?.into()));
        let submitted = self.submit_held(Work::Push(push), memory, ATTENDED, None);
        self.begun(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Begins a read, if that needs no wait.
    #[inline]
    pub(crate) fn try_read(
        &self,
        local: &mut impl LocalMrWriteAccess,
        remote: RemoteMemory,
    ) -> Result<Option<Operation<'_>>> {
        self.checked()?;
        let memory = (None, Some(claim_write(local)?.into()));
        let submitted = self.submit_held(Work::Read { remote }, memory, ATTENDED, None);
        self.begun(submitted.map_err(|(not_accepted, _)| not_accepted))
    }

    /// Returns the future of a request, unless it was not accepted because it has to wait.
    #[inline]
    fn begun(&self, submitted: Result<u64, NotAccepted>) -> Result<Option<Operation<'_>>> {
        match submitted {
            Ok(number) => Ok(Some(self.operation(number, None))),
            Err(NotAccepted::Full) => Ok(None),
            Err(NotAccepted::Refused(error)) => Err(*error),
        }
    }

    /// Writes memory of this end into memory of the peer.
    pub(crate) async fn write(&self, local: &impl LocalMrReadAccess, push: Push) -> Result<()> {
        if local.length() > self.inline {
            return self
                .perform_held(Work::Push(push), claim_read(local)?.into())
                .await;
        }
        let bytes = local.try_as_slice()?;
        self.checked()?;
        let attempt = || self.submit_copied(push, [bytes, &[]], ATTENDED);
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        self.operation(number, None).await.map(drop)
    }

    /// Writes as [`Self::write`] does, with immediate data, which takes a receive of the peer's and so a
    /// credit.
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
            (Some(bytes), _) => self.submit_copied(push, [bytes, &[]], ATTENDED),
            (None, memory) => self.submit_kept(Work::Push(push), memory, None),
        };
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        credit.spend();
        self.operation(number, None).await.map(drop)
    }

    /// Reads memory of the peer into memory of this end.
    pub(crate) async fn read(&self, local: &mut impl LocalMrWriteAccess, work: Work) -> Result<()> {
        self.perform_held(work, claim_write(local)?.into()).await
    }

    /// Does an operation without a result that keeps memory of the application.
    async fn perform_held(&self, work: Work, claim: Claim) -> Result<()> {
        let number = self.begin_held(work, claim).await?;
        self.operation(number, None).await.map(drop)
    }

    /// Has an operation accepted that keeps memory of the application. Returns its number.
    pub(crate) async fn begin_held(&self, work: Work, claim: Claim) -> Result<u64> {
        self.checked()?;
        let mut memory = Some((None, Some(claim)));
        let mut attempt = || self.submit_kept(work, &mut memory, None);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Waits until the operation of a number has ended, and so those before it; `None` is no operation.
    pub(crate) async fn finish(&self, last: Option<u64>) -> Result<()> {
        match last {
            Some(number) => self.operation(number, None).await.map(drop),
            None => Ok(()),
        }
    }

    /// Accepts a request that takes `memory`. If it is not accepted, the memory stays there.
    #[inline]
    fn submit_kept(
        &self,
        work: Work,
        memory: &mut Option<Memory>,
        place: Option<Place>,
    ) -> Result<u64, NotAccepted> {
        let taken = memory.take().unwrap_or_default();
        self.submit_held(work, taken, ATTENDED, place)
            .map_err(|(not_accepted, again)| {
                *memory = Some(again);
                not_accepted
            })
    }

    /// Does an atomic. The result is the value that it found.
    pub(crate) async fn perform_atomic(&self, work: Work) -> Result<u64> {
        let place = self.reserve_place().await?;
        let unused = ReleaseUnlessUsed {
            sender: &self.sender,
            place,
        };
        let mut memory = Some((
            Some(self.device.pool().take_header(size_of::<u64>())?),
            None,
        ));
        let mut attempt = || self.submit_kept(work, &mut memory, Some(place));
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.retry(first, attempt).await?,
        };
        std::mem::forget(unused);
        self.operation(number, Some(place)).await
    }

    /// A failed operation's error: of those flushed because of another, the other's.
    fn cause(&self, number: u64) -> Error {
        match self.sender.own_failure(number) {
            Some(own) => own.into(),
            None if self.sender.was_given_up(number) => self.ended(),
            None => self.ended().of_posted(),
        }
    }

    /// Returns whether the next poll of a future counts against tokio's budget: one of several does, since
    /// operations are short.
    #[inline]
    fn counts(&self) -> bool {
        // Threads that overwrite each other's count do no harm.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls.is_multiple_of(POLLS_PER_UNIT)
    }

    /// Polls for a short time, if no operation of this end is in flight and nobody else polls.
    #[inline(never)]
    fn linger<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if self.awaits_completions() {
            return None;
        }
        self.linger_with_all_posted(attempt)
    }

    /// Posts the staged requests and polls for a short time, if nobody else polls: the driver, which posts
    /// them at the end of the turn, does not run meanwhile.
    pub(super) fn linger_with_all_posted<T>(
        &self,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !self.shard.lingers() {
            return None;
        }
        self.leave();
        self.shard.linger(attempt)
    }

    /// Waits until `attempt` gives something, or for the connection to end.
    async fn wait<T>(
        &self,
        waiters: &Waiters,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let found = poll_fn(|cx| {
            // A task that receives what is there already lets others run too.
            let turn = match self.counts() {
                true => Some(ready!(poll_proceed(cx))),
                false => None,
            };
            let found = attempt().or_else(|| {
                self.shard.poll();
                attempt()
            });
            let found = found.or_else(|| self.linger(&mut attempt));
            if let (Some(_), Some(turn)) = (&found, turn) {
                turn.made_progress();
            }
            Poll::Ready(found)
        });
        if let Some(value) = found.await {
            return Ok(value);
        }
        let _waiting = self.shard.waiting();
        self.shard.attend();
        waiters
            .wait_for(|| attempt().map(Ok).or_else(|| self.failed()))
            .await
    }
}

/// Releases the place of an atomic that was not accepted.
struct ReleaseUnlessUsed<'c> {
    sender: &'c Sender,
    place: Place,
}

impl Drop for ReleaseUnlessUsed<'_> {
    fn drop(&mut self) {
        self.sender.release_place(self.place);
    }
}
