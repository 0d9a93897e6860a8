//! In-flight memory of a queue with one owner, in the order of posting.

use std::fmt;
use std::sync::Arc;

use super::queue_pair::QueuePairHandle;
use super::request_id::{BLOCK_BITS, Sequence};
use crate::queue_pair::{KeepAlive, Outcome};

/// What a request keeps until it has completed. No memory where the data was copied.
pub(super) struct Held<T> {
    pub(super) memory: Option<T>,
    pub(super) keep: KeepAlive,
}

impl<T> Held<T> {
    pub(super) const NOTHING: Self = Self {
        memory: None,
        keep: KeepAlive::Nothing,
    };
}

/// A bounded queue of memory that the device uses; a request's id tells its place in the order.
///
/// Behind the requests in flight stand those that are staged: described, not posted yet.
pub(super) struct Ring<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    /// What request `n` keeps stands at `n` modulo the length, a power of two.
    slots: Box<[Held<T>]>,
    capacity: usize,
    /// The requests that have not been retired.
    order: Sequence,
    /// The requests that were staged: from the first number to before the second.
    ///
    /// They begin at the tail of the order while a batch is being made, and after it was posted or
    /// dropped there are none. Those of a batch that was forgotten stay until the next one begins.
    staged: (u64, u64),
}

impl<T: Send + 'static> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("queue_pair", &self.queue_pair.number())
            .field("capacity", &self.capacity)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl<T: Send + 'static> Ring<T> {
    pub(super) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let capacity = capacity.min(1 << BLOCK_BITS) as usize;
        let slots = (0..capacity.next_power_of_two()).map(|_| Held::NOTHING);
        Self {
            queue_pair,
            slots: slots.collect(),
            capacity,
            order: Sequence::new(),
            staged: (0, 0),
        }
    }

    #[inline]
    pub(super) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.order.outstanding()
    }

    /// The id of the next request to be posted.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.order.id(self.order.tail())
    }

    /// Keeps what the next request, which was posted, needs.
    #[inline]
    pub(super) fn keep(&mut self, memory: Option<T>, keep: KeepAlive) {
        let slot = self.slot(self.order.tail());
        // First: what a forgotten batch left in the slot may panic when it is dropped.
        self.order.advance_tail();
        self.slots[slot] = Held { memory, keep };
    }

    /// The number of the request with this id, if it is one of this queue's and in flight.
    #[inline]
    pub(super) fn number(&self, id: u64) -> Option<u64> {
        self.order.number(id)
    }

    /// Takes the oldest request's memory, if the request is numbered `last`, which ended so, or lower.
    #[inline]
    pub(super) fn retire(&mut self, last: u64, outcome: Outcome) -> Option<T> {
        while self.order.head() <= last && self.in_flight() > 0 {
            let (number, slot) = (self.order.head(), self.slot(self.order.head()));
            self.order.advance_head();
            let outcome = if number == last {
                outcome
            } else {
                self.slots[slot].keep.inferred(outcome, &self.queue_pair)
            };
            if let Some(memory) = self.take_slot(slot, outcome) {
                return Some(memory);
            }
        }
        None
    }

    /// Takes the memory of the request numbered `number` alone.
    #[inline]
    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let memory = self.take_slot(self.slot(number), Outcome::Succeeded);
        while self.in_flight() > 0 && self.slots[self.slot(self.order.head())].memory.is_none() {
            self.order.advance_head();
        }
        memory
    }

    #[inline]
    fn take_slot(&mut self, slot: usize, outcome: Outcome) -> Option<T> {
        let held = &mut self.slots[slot];
        held.keep.settle(outcome);
        held.memory.take()
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }
}

/// Requests that are described and not posted.
impl<T: Send + 'static> Ring<T> {
    /// How many are staged.
    #[inline]
    pub(super) fn staged(&self) -> usize {
        (self.staged.1 - self.staged.0) as usize
    }

    /// Whether one more can be staged.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight() + self.staged() < self.capacity
    }

    /// Gives up what a forgotten batch had staged, before another one begins.
    #[inline]
    pub(super) fn begin_staging(&mut self) {
        let forgotten = self.staged;
        let tail = self.order.tail();
        self.staged = (tail, tail);
        if forgotten.0 < forgotten.1 {
            self.clear(forgotten);
        }
    }

    /// Empties the slots of requests that were staged, but for those where others went since, in the
    /// same order.
    #[cold]
    fn clear(&mut self, (first, end): (u64, u64)) {
        for number in first.max(self.order.tail())..end {
            let slot = self.slot(number);
            self.slots[slot] = Held::NOTHING;
        }
    }

    /// The id of the next request to be staged.
    #[inline]
    pub(super) fn staged_id(&mut self) -> u64 {
        self.order.open(self.staged.1);
        self.order.id(self.staged.1)
    }

    /// Keeps what the next staged request needs.
    #[inline]
    pub(super) fn stage(&mut self, memory: Option<T>, keep: KeepAlive) {
        let slot = self.slot(self.staged.1);
        self.staged.1 += 1;
        self.slots[slot] = Held { memory, keep };
    }

    /// Counts the first `count` staged requests as posted.
    #[inline]
    pub(super) fn launch_staged(&mut self, count: usize) {
        for _ in 0..count {
            self.order.advance_tail();
        }
        self.staged.0 += count as u64;
    }

    /// Ends the staging; what was staged is to be taken from its slots.
    pub(super) fn end_staging(&mut self) -> Unstaged<'_, T> {
        let (next, end) = self.staged;
        let tail = self.order.tail();
        self.staged = (tail, tail);
        Unstaged {
            ring: self,
            next,
            end,
        }
    }
}

/// Requests that were staged and are not to be posted, by their numbers.
#[derive(Debug)]
pub(crate) struct Unstaged<'a, T: Send + 'static> {
    ring: &'a mut Ring<T>,
    next: u64,
    end: u64,
}

impl<T: Send + 'static> Unstaged<'_, T> {
    /// Takes the memory of the first of them that has some.
    pub(crate) fn next(&mut self) -> Option<T> {
        while self.next < self.end {
            let slot = self.ring.slot(self.next);
            self.next += 1;
            if let Some(memory) = self.ring.take_slot(slot, Outcome::NotPosted) {
                return Some(memory);
            }
        }
        None
    }
}

impl<T: Send + 'static> Drop for Ring<T> {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            self.queue_pair
                .abandon(Box::new(std::mem::take(&mut self.slots)));
        }
    }
}
