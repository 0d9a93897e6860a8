//! A connection: its queue pair, what is in flight, and what has arrived.

mod credits;
mod driver;
mod frame;
mod handover;
mod inbox;
mod leases;
mod messages;
mod operation;
mod outbox;
mod progress;
mod replies;
mod waiters;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Context;
use std::time::{Duration, Instant};

use crossbeam_queue::{ArrayQueue, SegQueue};
use rdma_core::{
    Buffer, Claim, CompletionQueue, ConcurrentReceiveQueue, ConcurrentSendQueue, Part,
    ProtectionDomain, QueuePair, ReservedSlot, SendRequest, WorkError, WorkStatus, WriteClaim,
};
use tokio::sync::Notify;
use tokio::task::consume_budget;

use self::credits::CreditCounter;
pub(crate) use self::driver::Driver;
pub(crate) use self::frame::{HEADER_LEN, MAX_FRAME_LEN};
use self::inbox::Inbox;
use self::leases::Leases;
pub(crate) use self::messages::Incoming;
use self::operation::{Operation, OperationSlot};
pub(crate) use self::outbox::OWN_SLOTS;
use self::outbox::Outbox;
use self::replies::Replies;
use self::waiters::Waiters;
use crate::builder::{CompletionMode, Settings};
use crate::error::{Error, Result};
use crate::memory::{LocalMr, PieceLender, Pool, RemoteMr};

/// The memory of a request: a message's header or an atomic's result, and the application's.
pub(crate) type Memory = (Option<Part<Buffer>>, Option<Claim>);

/// How many messages an end takes before it returns credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// Messages that wait for the application.
    pub(crate) data: u16,
    /// Messages that the connection itself handles.
    pub(crate) control: u16,
}

/// What a connection is made of.
pub(crate) struct Parts {
    pub(crate) queue_pair: QueuePair,
    pub(crate) receives: ConcurrentReceiveQueue<WriteClaim>,
    pub(crate) receive_memory: Arc<PieceLender>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) pool: Arc<Pool>,
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
    sends: ConcurrentSendQueue<Memory>,
    receives: ConcurrentReceiveQueue<WriteClaim>,
    queue_pair: QueuePair,
    completions: CompletionQueue,
    operations: Box<[OperationSlot]>,
    /// Wakes those who wait for a slot of the send queue.
    slot_free: Waiters,
    /// Pieces of [`MAX_FRAME_LEN`] bytes or more, one for each slot.
    headers: ArrayQueue<Buffer>,
    receive_memory: Arc<PieceLender>,
    pool: Arc<Pool>,
    settings: Settings,

    data_credits: CreditCounter,
    control_credits: CreditCounter,
    peer_payload: usize,
    owed_data: AtomicU32,
    owed_control: AtomicU32,

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

    /// Whether a thread is taking completions at this moment.
    polling: AtomicBool,
    failure: OnceLock<Error>,
    /// Tells the driver of the failure.
    has_failed: Arc<Notify>,
    /// Whether completions are not announced any more: who waits for one must not.
    forsaken: AtomicBool,
    itself: Weak<Connection>,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Result<Arc<Self>> {
        let Parts {
            queue_pair,
            receives,
            settings,
            peer,
            ..
        } = parts;
        let sends = queue_pair.concurrent_send_queue();
        let slots = sends.capacity();
        let headers = ArrayQueue::new(slots);
        let mut rest = parts
            .domain
            .allocate(slots * MAX_FRAME_LEN.next_multiple_of(64))?;
        while !rest.is_empty() {
            let (header, tail) = rest.split_at(MAX_FRAME_LEN.next_multiple_of(64));
            drop(headers.push(header));
            rest = tail;
        }
        let own = settings.depths();
        let connection = Arc::new_cyclic(|itself| Self {
            completions: queue_pair.send_completions().clone(),
            operations: (0..slots).map(|_| OperationSlot::new()).collect(),
            slot_free: Waiters::default(),
            headers,
            receive_memory: parts.receive_memory,
            pool: parts.pool,
            data_credits: CreditCounter::new(peer.data),
            control_credits: CreditCounter::new(peer.control),
            peer_payload: parts.peer_payload,
            owed_data: AtomicU32::new(0),
            owed_control: AtomicU32::new(0),
            messages: Inbox::new(own.data),
            write_immediates: Inbox::new(own.data),
            offers: Inbox::new(own.data),
            returned: SegQueue::new(),
            returned_arrived: Waiters::default(),
            deferred: SegQueue::new(),
            leases: Leases::new(settings.remote_access),
            replies: Replies::default(),
            outbox: Outbox::new(),
            polling: AtomicBool::new(false),
            failure: OnceLock::new(),
            has_failed: Arc::default(),
            forsaken: AtomicBool::new(false),
            itself: itself.clone(),
            sends,
            receives,
            queue_pair,
            settings,
        });
        connection.restore_own_slots();
        Ok(connection)
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
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
        if let Err(error) = self.queue_pair.fail() {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
            // Then nothing may be flushed either.
            self.forsake();
        }
        self.replies
            .fail(self.failure.get().expect("it was set above"));
        self.outbox.clear();
        for waiters in [
            &self.slot_free,
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
        self.operations.iter().any(OperationSlot::is_pending)
    }

    /// Returns whether the peer has everything that this end sent: no message waits to be posted, and
    /// the device has completed every request.
    fn is_settled(&self) -> bool {
        self.outbox.is_empty() && !self.operations.iter().any(OperationSlot::is_in_flight)
    }

    /// Has nobody wait for completions any more, which are not announced from here on. The connection
    /// has failed; what is in flight keeps its memory until the queue pair is destroyed.
    fn forsake(&self) {
        self.forsaken.store(true, Ordering::SeqCst);
        for operation in &self.operations {
            operation.wake();
        }
    }

    /// The failure as an outcome, for those who wait for something else.
    fn failed<T>(&self) -> Option<Result<T>> {
        self.failure().map(|error| Err(error.clone()))
    }

    fn checked(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Does a one-sided operation; what an atomic found is the result.
    pub(crate) async fn perform(&self, request: SendRequest<Memory>) -> Result<u64> {
        let slot = self.reserve_slot().await?;
        self.post(slot, request)?.await
    }

    /// Does an atomic, which `request` makes of eight bytes for what it finds; the result is that.
    pub(crate) async fn perform_atomic(
        &self,
        request: impl FnOnce(Memory) -> SendRequest<Memory>,
    ) -> Result<u64> {
        let slot = self.reserve_slot().await?;
        // The place comes with the slot: there are as many of either.
        let result = match self.header(size_of::<u64>()) {
            Ok(result) => result,
            Err(error) => {
                self.cancel_slot(slot);
                return Err(error);
            }
        };
        self.post(slot, request((Some(result), None)))?.await
    }

    /// Posts in a reserved slot, with a future that waits for it.
    fn post(&self, slot: ReservedSlot<'_>, request: SendRequest<Memory>) -> Result<Operation<'_>> {
        let index = slot.index();
        self.operation(index).begin();
        match self.sends.post(slot, request) {
            Ok(()) => Ok(Operation::new(self, index)),
            Err(refused) => {
                let rdma_core::PostError { error, memory, .. } = refused;
                self.recycle(memory);
                self.operation(index).withdraw();
                self.slot_is_free();
                Err(error.into())
            }
        }
    }

    /// A failed operation's error: of those flushed because of another, the other's.
    fn cause(&self, error: WorkError) -> Error {
        match self.failure() {
            Some(cause) if error.status == WorkStatus::Flushed => cause.clone(),
            _ => error.into(),
        }
    }

    /// Waits for a slot of the send queue: a full queue is backpressure, not an error.
    async fn reserve_slot(&self) -> Result<ReservedSlot<'_>> {
        self.checked()?;
        let attempt = || self.sends.reserve().map(Ok).or_else(|| self.failed());
        self.slot_free.wait_for(attempt).await
    }

    fn operation(&self, index: u32) -> &OperationSlot {
        &self.operations[index as usize]
    }

    fn release_slot(&self, index: u32) {
        self.sends.release(index);
        self.slot_is_free();
    }

    fn cancel_slot(&self, slot: ReservedSlot<'_>) {
        drop(slot);
        self.slot_is_free();
    }

    /// Gives a slot that has become free to who waits for one.
    fn slot_is_free(&self) {
        self.restore_own_slots();
        self.slot_free.wake();
        self.flush_outbox();
    }

    /// Gives a request's own memory back for the next one; the application's is let go.
    fn recycle(&self, (header, _claim): Memory) {
        if let Some(header) = header {
            drop(self.headers.push(header.into_inner()));
        }
    }

    /// `len` bytes of a request's own, at most [`MAX_FRAME_LEN`], for who has reserved a slot.
    fn header(&self, len: usize) -> Result<Part<Buffer>> {
        let buffer = self.headers.pop().ok_or_else(|| {
            Error::disconnected("every header is in use, which more requests than slots would take")
        })?;
        Ok(Part::new(buffer, 0..len)?)
    }

    /// Takes completions until `attempt` gives something or the time to spin is over.
    fn spin<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let budget = match self.settings.completion {
            CompletionMode::Event => Duration::ZERO,
            CompletionMode::Adaptive { spin } => spin,
            // A turn of the executor at a time.
            CompletionMode::Busy => Duration::ZERO,
        };
        let mut deadline = None;
        loop {
            self.progress();
            if let Some(value) = attempt() {
                return Some(value);
            }
            if budget.is_zero() {
                return None;
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + budget) {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// In busy mode, has the task polled again at once.
    fn stay_awake(&self, cx: &Context<'_>) {
        if self.settings.completion == CompletionMode::Busy {
            cx.waker().wake_by_ref();
        }
    }

    /// Waits until `attempt` gives something, spinning first; or for the connection to end.
    async fn wait<T>(
        &self,
        waiters: &Waiters,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        // A task that receives what is there already lets others run too.
        consume_budget().await;
        if let Some(value) = self.spin(&mut attempt) {
            return Ok(value);
        }
        let arrival = waiters.wait_for(|| attempt().map(Ok).or_else(|| self.failed()));
        if self.settings.completion != CompletionMode::Busy {
            return arrival.await;
        }
        let mut arrival = std::pin::pin!(arrival);
        std::future::poll_fn(|cx| {
            self.progress();
            let polled = arrival.as_mut().poll(cx);
            if polled.is_pending() {
                cx.waker().wake_by_ref();
            }
            polled
        })
        .await
    }
}
