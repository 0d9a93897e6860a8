use std::collections::VecDeque;
use std::time::Duration;

use crate::proto::{GatherList, ReceiveRequest, Segment};

use super::buffer::Buffer;
use super::random::Random;
use super::world::{QpId, World};

/// Receive queue to which a [`ReceivePool`] posts receives: the queue of one queue pair, or a
/// shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Receive queue of a queue pair.
    Own(QpId),
    /// Shared receive queue with the number `number` of the node `node`.
    Shared { node: usize, number: usize },
}

/// Receives that the simulation keeps posted to one receive queue, with their buffers.
#[derive(Debug)]
pub(crate) struct ReceivePool {
    pub(crate) queue: Queue,
    /// Length of each receive in bytes.
    pub(crate) length: usize,
    /// Number of receives that are kept posted.
    pub(crate) depth: usize,
    /// Delay from the completion of a receive to the posting of the next receive.
    pub(crate) refill: Duration,
    /// Set when no more receives may be posted.
    pub(crate) stopped: bool,
    posted: VecDeque<(u64, Option<Buffer>)>,
    random: Random,
}

impl ReceivePool {
    pub(crate) fn new(queue: Queue, length: usize, depth: usize, random: Random) -> Self {
        Self {
            queue,
            length,
            depth,
            refill: Duration::ZERO,
            stopped: false,
            posted: VecDeque::new(),
            random,
        }
    }

    fn node(&self) -> usize {
        match self.queue {
            Queue::Own(place) => place.node,
            Queue::Shared { node, .. } => node,
        }
    }

    /// Posts a receive with the ID `id` to the pool's queue, if fewer than [`depth`](Self::depth)
    /// receives are posted.
    pub(crate) fn refill(&mut self, world: &mut World<'_>, id: u64) {
        if !self.stopped && self.posted.len() < self.depth {
            self.post(world, id, self.length);
        }
    }

    /// Posts a receive with the ID `id` and a buffer of `length` bytes to the receive queue of this
    /// pool.
    pub(crate) fn post(&mut self, world: &mut World<'_>, id: u64, length: usize) {
        let memory = world.memory(self.node());
        let buffer = Buffer::zeroed(memory, &mut self.random, length);
        let request = ReceiveRequest {
            id,
            segments: buffer.segments().clone(),
            length: length as u64,
        };
        self.push(world, request);
        self.posted.push_back((id, Some(buffer)));
    }

    /// Posts a receive with the ID `id` whose memory has no valid key. A message that consumes this
    /// receive fails.
    pub(crate) fn post_bad(&mut self, world: &mut World<'_>, id: u64) {
        let length = self.length.max(1) as u32;
        let segment = Segment {
            address: 64,
            length,
            key: 0x77,
        };
        let request = ReceiveRequest {
            id,
            segments: GatherList::from_slice(&[segment]),
            length: length.into(),
        };
        self.push(world, request);
        self.posted.push_back((id, None));
    }

    fn push(&self, world: &mut World<'_>, request: ReceiveRequest) {
        match self.queue {
            Queue::Own(place) => world.post_receive(place, request),
            Queue::Shared { node, number } => world.post_shared_receive(node, number, request),
        }
    }

    /// Discards all receives of this pool that have not completed, and prevents that further
    /// receives are posted.
    pub(crate) fn stop(&mut self, world: &mut World<'_>) {
        if let Queue::Own(place) = self.queue {
            world.drop_receives(place);
        }
        self.stopped = true;
        let memory = world.memory(self.node());
        for buffer in self.posted.drain(..).filter_map(|(_, buffer)| buffer) {
            buffer.release(memory);
        }
    }

    /// Removes the completed receive with the ID `id` from the pool, and returns its buffer.
    /// Returns `None` if the receive was posted by [`post_bad`](Self::post_bad), with an invalid
    /// memory key. Fails if the pool has no such receive, or if a queue pair completes its receives
    /// out of order.
    pub(crate) fn take(&mut self, id: u64) -> Result<Option<Buffer>, String> {
        let place = self.posted.iter().position(|(posted, _)| *posted == id);
        let place =
            place.ok_or_else(|| format!("receive {id} is not posted here, or ended twice"))?;
        if place > 0 && matches!(self.queue, Queue::Own(_)) {
            return Err(format!("receive {id} ended before {}", self.posted[0].0));
        }
        let taken = self.posted.remove(place);
        Ok(taken.and_then(|(_, buffer)| buffer))
    }

    /// Returns the number of receives of this pool that are posted and have not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.posted.len()
    }
}
