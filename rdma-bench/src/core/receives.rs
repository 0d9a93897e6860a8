//! Posts the receives of a test, and posts them again after they have completed.

use rdma_core::{ExposedMemory, QueuePairMap, ReceiveQueue, SharedReceiveQueue, WorkCompletion};

use super::Connection;
use super::send::unposted;
use crate::error::Result;

/// The posted receives of a test. Their number is the depth of the test, or the number of messages
/// still expected if that is lower. A completed receive is posted again.
pub(super) enum Receives {
    /// The receives of queue pairs that have a receive queue each.
    Own(QueuePairMap<QueueReceives>),
    /// The receives of queue pairs that share one receive queue.
    Shared {
        queue: SharedReceiveQueue<ExposedMemory>,
        /// The number of receives that this process has yet to post.
        remaining: usize,
    },
}

/// The posted receives of one queue pair that has a receive queue of its own.
pub(super) struct QueueReceives {
    queue: ReceiveQueue<ExposedMemory>,
    /// The number of receives that this process has yet to post on the queue pair.
    remaining: usize,
}

impl Receives {
    /// Posts the first receives of a test, for messages of `size` bytes. Returns a value that posts
    /// further receives when these have completed. All receives of a queue pair use the same
    /// memory, because the test does not read the messages.
    pub(super) fn post(connection: &Connection, size: usize) -> Result<Self> {
        let depth = connection.receive_depth;
        let memory = connection.allocate_scratch(size)?;
        if let Some(queue) = &connection.shared_receives {
            for memory in memory.iter().cycle().take(depth) {
                let posted = queue.post(memory.clone());
                posted.map_err(rdma_core::Error::from)?;
            }
            return Ok(Self::Shared {
                queue: queue.clone(),
                remaining: connection.total_messages() - depth,
            });
        }
        let mut queues = QueuePairMap::new();
        for (queue_pair, memory) in connection.queue_pairs().zip(memory) {
            let mut queue = queue_pair.receive_queue();
            for _ in 0..depth {
                let posted = queue.post(memory.clone());
                posted.map_err(rdma_core::Error::from)?;
            }
            let remaining = connection.message_count() - depth;
            queues.insert(queue_pair.number(), QueueReceives { queue, remaining });
        }
        Ok(Self::Own(queues))
    }

    /// Completes the receive of `completion`. Posts a receive with the same memory again, except if
    /// enough receives for all expected messages are already posted.
    #[inline]
    pub(super) fn repost(&mut self, completion: &WorkCompletion) -> Result<()> {
        match self {
            Self::Own(queues) => {
                let own = queues.get_mut(completion.queue_pair());
                let QueueReceives { queue, remaining } = own.ok_or_else(unposted)?;
                let memory = queue.complete(completion);
                if *remaining > 0 {
                    let posted = queue.post(memory.ok_or_else(unposted)?);
                    posted.map_err(rdma_core::Error::from)?;
                    *remaining -= 1;
                }
            }
            Self::Shared { queue, remaining } => {
                let memory = queue.complete(completion);
                if *remaining > 0 {
                    let posted = queue.post(memory.ok_or_else(unposted)?);
                    posted.map_err(rdma_core::Error::from)?;
                    *remaining -= 1;
                }
            }
        }
        Ok(())
    }
}
