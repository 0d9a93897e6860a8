//! The receives of one end.

use rdma_core::{ExposedMemory, QueuePair, ReceiveQueue, WorkCompletion};

use super::Connection;
use super::numbers::Numbers;
use super::send::foreign;
use crate::error::Result;

/// Posted receives: as many at once on each queue pair as the depth allows, and no more than
/// messages come.
pub(super) struct Receives {
    numbers: Numbers,
    queues: Vec<Queue>,
}

struct Queue {
    receives: ReceiveQueue<ExposedMemory>,
    /// The number of receives that are still to be posted.
    left: usize,
}

impl Receives {
    /// Posts receives on every queue pair, each queue pair's into memory of its own.
    pub(super) fn post(connection: &Connection, size: usize) -> Result<Self> {
        let left = connection.count() - connection.receive_depth;
        let mut queues = Vec::new();
        for (queue_pair, memory) in connection.queue_pairs().zip(connection.scratches(size)?) {
            let mut receives = queue_pair.receive_queue();
            for _ in 0..connection.receive_depth {
                let posted = receives.post(memory.clone());
                posted.map_err(rdma_core::Error::from)?;
            }
            queues.push(Queue { receives, left });
        }
        Ok(Self {
            numbers: Numbers::new(connection.queue_pairs().map(QueuePair::number)),
            queues,
        })
    }

    /// Takes a completed receive's memory, and posts it again on the same queue pair if more
    /// messages come there than receives are posted.
    #[inline]
    pub(super) fn turn(&mut self, completion: &WorkCompletion) -> Result<()> {
        let position = self.numbers.position(completion.queue_pair());
        let queue = self.queues.get_mut(position).ok_or_else(foreign)?;
        let memory = queue.receives.complete(completion);
        if queue.left > 0 {
            let memory = memory.ok_or_else(foreign)?;
            let posted = queue.receives.post(memory);
            posted.map_err(rdma_core::Error::from)?;
            queue.left -= 1;
        }
        Ok(())
    }
}
