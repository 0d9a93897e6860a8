//! The shared receive queue of a shard: receives for the messages of all its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdma_core::memory::WriteClaim;
use rdma_core::{ProtectionDomain, QueuePairBuilder, SharedReceiveQueue, WorkCompletion};

use crate::error::{Error, Result};
use crate::memory::PieceLender;

/// Interval between attempts to post receives for which memory could not be allocated. Long enough
/// that the attempts take little processor time, and short enough that a retransmitted message soon
/// finds a receive.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Shared receive queue, with the memory of its receives. Keeps one receive posted for each message
/// that the peers may send, up to the capacity of the queue. If a message arrives when no receive
/// is posted, the device makes the sender retransmit the message (RNR NAK).
#[derive(Debug)]
pub(super) struct Receives {
    queue: SharedReceiveQueue<WriteClaim>,
    memory: Arc<PieceLender>,
    /// Number of messages that the peers of all connections may send before they get further
    /// credits.
    allowed: Mutex<usize>,
    /// Number of posted receives below which further receives are posted, up to `target`.
    refill_below: AtomicUsize,
    /// Number of receives that should be posted, a quarter more than messages may arrive.
    target: AtomicUsize,
    posted: AtomicUsize,
    /// Set while too few receives are posted because memory could not be allocated.
    is_short: AtomicBool,
    /// Time of the next attempt to post the missing receives while `is_short` is set. Locked by the
    /// thread that posts missing receives.
    retry_at: Mutex<Option<Instant>>,
}

impl Receives {
    /// Creates a shared receive queue without posted receives. Requests room for `capacity`
    /// receives of `len` bytes each, or for the maximum of the device if the device supports fewer
    /// receives.
    pub(super) fn new(domain: &ProtectionDomain, len: usize, capacity: usize) -> Result<Self> {
        let max = domain.context().attributes()?.max_shared_receive_requests();
        let requests = u32::try_from(capacity.min(max)).unwrap_or(u32::MAX);
        Ok(Self {
            queue: domain.shared_receive_queue(requests).elements(1).build()?,
            memory: Arc::new(PieceLender::new(domain.clone(), len)),
            allowed: Mutex::new(0),
            refill_below: AtomicUsize::new(0),
            target: AtomicUsize::new(0),
            posted: AtomicUsize::new(0),
            is_short: AtomicBool::new(false),
            retry_at: Mutex::default(),
        })
    }

    /// Returns the capacity of the queue: the maximum number of receives that can be posted.
    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Returns the pool (lender) from which the receives take their memory. The memory of a
    /// received message returns to this pool when the message is dropped.
    pub(super) fn memory(&self) -> &Arc<PieceLender> {
        &self.memory
    }

    /// Sets this queue as the receive queue in the builder of a new queue pair.
    pub(super) fn prepare(&self, builder: QueuePairBuilder) -> QueuePairBuilder {
        builder.shared_receive_queue(&self.queue)
    }

    /// Permits `messages` further messages to arrive, and posts the receives that are missing for
    /// them.
    pub(super) fn grow(&self, messages: usize) -> Result<()> {
        {
            let mut allowed = self.allowed.lock();
            *allowed += messages;
            self.set_targets(*allowed);
        }
        let _filling = self.retry_at.lock();
        self.fill()
    }

    /// Lowers the number of receives to keep posted by the share of a connection that has ended.
    /// The peer of this connection could send `messages` messages. Receives that are already posted
    /// remain.
    pub(super) fn shrink(&self, messages: usize) {
        let mut allowed = self.allowed.lock();
        *allowed -= messages;
        self.set_targets(*allowed);
    }

    /// Sets the number of receives to keep posted, so that the peers can send `allowed` messages.
    /// Keeps a quarter more than `allowed`, but at most the capacity of the queue, so that new
    /// receives are posted in batches. A batch is posted when the number of posted receives is
    /// below `allowed` and below four fifths of the number to keep.
    fn set_targets(&self, allowed: usize) {
        // A quarter more than may arrive, so that receives are posted in batches.
        let target = (allowed + allowed.div_ceil(4)).min(self.capacity());
        self.target.store(target, Ordering::Relaxed);
        self.refill_below
            .store(allowed.min(target - target / 5), Ordering::Relaxed);
    }

    /// Returns the memory of a completed receive. Returns `None` if `completion` is not the
    /// completion of a receive. The caller must count completed receives and pass their number to
    /// [`Self::replenish`].
    #[inline]
    pub(super) fn complete(&self, completion: &WorkCompletion) -> Option<WriteClaim> {
        self.queue.complete(completion)
    }

    /// Posts a new receive. `memory` is the memory of a completed receive, which is used again. If
    /// the device refuses the receive, logs the error and drops the memory.
    #[inline]
    pub(super) fn post(&self, memory: WriteClaim) {
        self.posted.fetch_add(1, Ordering::Relaxed);
        if let Err(refused) = self.queue.post(memory) {
            self.posted.fetch_sub(1, Ordering::Relaxed);
            self.refused(&refused.error);
        }
    }

    /// Logs `error`, with which the device refused to post a receive.
    #[cold]
    fn refused(&self, error: &rdma_core::Error) {
        // The senders retransmit their messages until a receive is posted.
        tracing::warn!(%error, "a receive could not be posted");
    }

    /// Subtracts `completed` receives from the number of posted receives. If too few are posted,
    /// because the application still holds the memory of received messages, posts receives with
    /// other memory.
    #[inline]
    pub(super) fn replenish(&self, completed: usize) {
        let posted = self.posted.fetch_sub(completed, Ordering::Relaxed) - completed;
        if posted < self.refill_below.load(Ordering::Relaxed) {
            self.refill();
        }
    }

    /// Posts the missing receives. If memory cannot be allocated, sets the time of the next
    /// attempt.
    #[inline(never)]
    fn refill(&self) {
        let mut retry_at = self.retry_at.lock();
        let outcome = self.fill();
        self.is_short.store(outcome.is_err(), Ordering::Relaxed);
        let Err(error) = outcome else {
            *retry_at = None;
            return;
        };
        if retry_at.is_none() {
            // Logged once, although attempts follow until one succeeds.
            tracing::warn!(%error, "memory for a receive could not be allocated");
        }
        *retry_at = Some(Instant::now() + RETRY_INTERVAL);
    }

    /// Returns the time of the next attempt, by [`Self::retry`], to post receives for which memory
    /// could not be allocated. Returns `None` if no attempt is needed. The timed attempt is
    /// necessary because other attempts happen only when a message arrives, and no message arrives
    /// without receives.
    pub(super) fn retry_time(&self) -> Option<Instant> {
        match self.is_short.load(Ordering::Relaxed) {
            true => *self.retry_at.lock(),
            false => None,
        }
    }

    /// Tries again to post the missing receives, if [`Self::retry_time`] is not after `now`.
    pub(super) fn retry(&self, now: Instant) {
        if self.retry_time().is_some_and(|time| time <= now) {
            self.refill();
        }
    }

    /// Posts receives with memory of the pool until the number that [`Self::set_targets`] has set
    /// is posted. The caller must hold the lock of `retry_at`, so that only one thread posts. A
    /// second thread could otherwise count receives as posted that the first thread then fails to
    /// post.
    fn fill(&self) -> Result<()> {
        let target = self.target.load(Ordering::Relaxed);
        let mut missing = target.saturating_sub(self.posted.load(Ordering::Relaxed));
        self.posted.fetch_add(missing, Ordering::Relaxed);
        let mut outcome = Ok(());
        while missing > 0 && outcome.is_ok() {
            outcome = self.post_new();
            missing -= usize::from(outcome.is_ok());
        }
        if missing > 0 {
            self.posted.fetch_sub(missing, Ordering::Relaxed);
        }
        match outcome {
            // Meanwhile the polling thread has posted a completed receive again.
            Err(Error::Verbs(rdma_core::Error::QueueFull { .. })) => Ok(()),
            outcome => outcome,
        }
    }

    /// Posts one further receive, with memory of the pool, so that another message can arrive.
    fn post_new(&self) -> Result<()> {
        let Ok(memory) = self.memory.take()?.into_claim(..) else {
            unreachable!("memory from the pool is unclaimed");
        };
        Ok(self.queue.post(memory).map_err(|refused| refused.error)?)
    }
}
