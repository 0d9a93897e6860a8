//! Posts the receives of a test, and posts them again after they completed.

use rdma_core::{ExposedMemory, QueuePairMap, ReceiveQueue, SharedReceiveQueue, WorkCompletion};

use super::Connection;
use super::send::foreign;
use crate::error::Result;

/// The receives that this process has posted: as many as the test's depth allows, but not more than
/// messages are still expected. A completed receive is posted again.
pub(super) enum Receives {
    /// The receives of queue pairs that have a receive queue each.
    Own(QueuePairMap<Own>),
    /// The receives of queue pairs that share one receive queue.
    Shared {
        queue: SharedReceiveQueue<ExposedMemory>,
        /// The number of receives that this process has yet to post.
        left: usize,
    },
}

/// The receives of one queue pair.
pub(super) struct Own {
    queue: ReceiveQueue<ExposedMemory>,
    /// The number of receives that this process has yet to post on the queue pair.
    left: usize,
}

impl Receives {
    /// Posts the first receives of a test. All receives of a queue pair use the same memory.
    pub(super) fn post(connection: &Connection, size: usize) -> Result<Self> {
        let depth = connection.receive_depth;
        let memory = connection.scratches(size)?;
        if let Some(queue) = &connection.shared_receives {
            for memory in memory.iter().cycle().take(depth) {
                let posted = queue.post(memory.clone());
                posted.map_err(rdma_core::Error::from)?;
            }
            return Ok(Self::Shared {
                queue: queue.clone(),
                left: connection.messages_in_all() - depth,
            });
        }
        let mut queues = QueuePairMap::new();
        for (queue_pair, memory) in connection.queue_pairs().zip(memory) {
            let mut queue = queue_pair.receive_queue();
            for _ in 0..depth {
                let posted = queue.post(memory.clone());
                posted.map_err(rdma_core::Error::from)?;
            }
            let left = connection.count() - depth;
            queues.insert(queue_pair.number(), Own { queue, left });
        }
        Ok(Self::Own(queues))
    }

    /// Completes a receive, and posts its memory again if more messages are expected than receives are
    /// posted.
    #[inline]
    pub(super) fn turn(&mut self, completion: &WorkCompletion) -> Result<()> {
        match self {
            Self::Own(queues) => {
                let own = queues.get_mut(completion.queue_pair());
                let Own { queue, left } = own.ok_or_else(foreign)?;
                let memory = queue.complete(completion);
                if *left > 0 {
                    let posted = queue.post(memory.ok_or_else(foreign)?);
                    posted.map_err(rdma_core::Error::from)?;
                    *left -= 1;
                }
            }
            Self::Shared { queue, left } => {
                let memory = queue.complete(completion);
                if *left > 0 {
                    let posted = queue.post(memory.ok_or_else(foreign)?);
                    posted.map_err(rdma_core::Error::from)?;
                    *left -= 1;
                }
            }
        }
        Ok(())
    }
}
