//! The shared receive queue of a shard: receives, with their memory, for the messages of all its
//! connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdma_core::memory::WriteClaim;
use rdma_core::{ProtectionDomain, QueuePairBuilder, SharedReceiveQueue, WorkCompletion};

use crate::error::{Error, Result};
use crate::memory::PieceLender;

/// Receives for the messages of all connections of a shard. As many are posted as the peers may
/// send messages, up to the capacity of the queue. If no receive is posted when a message arrives,
/// the device makes the sender repeat it.
#[derive(Debug)]
pub(super) struct Receives {
    queue: SharedReceiveQueue<WriteClaim>,
    memory: Arc<PieceLender>,
    /// Number of messages that the peers of all connections may send.
    wanted: Mutex<usize>,
    /// Number of posted receives below which more are posted, up to `target`.
    least: AtomicUsize,
    target: AtomicUsize,
    posted: AtomicUsize,
}

impl Receives {
    /// Creates an empty queue for at most `capacity` receives of `len` bytes each.
    pub(super) fn new(domain: &ProtectionDomain, len: usize, capacity: usize) -> Result<Self> {
        let most = domain.context().attributes()?.max_shared_receive_requests();
        let requests = u32::try_from(capacity.min(most)).unwrap_or(u32::MAX);
        Ok(Self {
            queue: domain.shared_receive_queue(requests).elements(1).build()?,
            memory: Arc::new(PieceLender::new(domain.clone(), len)),
            wanted: Mutex::new(0),
            least: AtomicUsize::new(0),
            target: AtomicUsize::new(0),
            posted: AtomicUsize::new(0),
        })
    }

    pub(super) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(super) fn memory(&self) -> &Arc<PieceLender> {
        &self.memory
    }

    pub(super) fn prepare(&self, builder: QueuePairBuilder) -> QueuePairBuilder {
        builder.shared_receive_queue(&self.queue)
    }

    /// Adds `messages` to the number of messages that the peers may send, and posts receives for
    /// them.
    pub(super) fn grow(&self, messages: usize) -> Result<()> {
        {
            let mut wanted = self.wanted.lock();
            *wanted += messages;
            self.aim(*wanted);
        }
        self.fill()
    }

    /// Subtracts `messages` from the number of messages that the peers may send. Posted receives
    /// remain.
    pub(super) fn shrink(&self, messages: usize) {
        let mut wanted = self.wanted.lock();
        *wanted -= messages;
        self.aim(*wanted);
    }

    fn aim(&self, wanted: usize) {
        // A quarter more than the peers may use, so that receives are posted in batches.
        let target = (wanted + wanted.div_ceil(4)).min(self.capacity());
        self.target.store(target, Ordering::Relaxed);
        self.least
            .store(wanted.min(target - target / 5), Ordering::Relaxed);
    }

    /// Returns the memory of the receive that has completed, or `None` if the completion is of a
    /// request. The caller counts the receives that have completed, for [`Self::replenish`].
    #[inline]
    pub(super) fn complete(&self, completion: &WorkCompletion) -> Option<WriteClaim> {
        self.queue.complete(completion)
    }

    /// Posts the memory of a completed receive again.
    #[inline]
    pub(super) fn post(&self, memory: WriteClaim) {
        self.posted.fetch_add(1, Ordering::Relaxed);
        if let Err(refused) = self.queue.post(memory) {
            self.posted.fetch_sub(1, Ordering::Relaxed);
            self.refused(&refused.error);
        }
    }

    #[cold]
    fn refused(&self, error: &rdma_core::Error) {
        // The senders repeat their messages until a receive is posted.
        tracing::warn!(%error, "a receive could not be posted");
    }

    /// Records that `completed` receives have completed. If too few are posted, posts new ones in
    /// place of receives whose memory the applications are holding.
    #[inline]
    pub(super) fn replenish(&self, completed: usize) {
        let posted = self.posted.fetch_sub(completed, Ordering::Relaxed) - completed;
        if posted < self.least.load(Ordering::Relaxed)
            && let Err(error) = self.fill()
        {
            tracing::warn!(%error, "no memory for a receive");
        }
    }

    /// Posts receives until as many are posted as wanted.
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
            // The thread that polls has meanwhile posted the receive that it had taken.
            Err(Error::Verbs(rdma_core::Error::QueueFull { .. })) => Ok(()),
            outcome => outcome,
        }
    }

    fn post_new(&self) -> Result<()> {
        let Ok(memory) = self.memory.take()?.into_claim(..) else {
            unreachable!("memory from the pool is unclaimed");
        };
        Ok(self.queue.post(memory).map_err(|refused| refused.error)?)
    }
}
