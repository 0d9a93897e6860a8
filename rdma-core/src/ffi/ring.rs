//! In-flight memory of a queue with one owner, in the order of posting.

use std::fmt;
use std::sync::Arc;

use super::posting::UsualQueuePair;
use super::queue_pair::QueuePairHandle;
use super::request_id::{BLOCK_BITS, Sequence};
use crate::queue_pair::{KeepAlive, Outcome};

/// Memory and objects that a request keeps until it has completed. The memory is `None` if the data
/// was copied.
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
    /// That of the queue pair, which is there for as long as the ring.
    usual: UsualQueuePair,
    /// `Held` values of requests: that of request `n` is at `n` modulo the length, which is a power
    /// of two.
    slots: Box<[Held<T>]>,
    /// Mask that gives the slot of a request: the length, less 1.
    mask: usize,
    /// The requests that have not been retired.
    order: Sequence,
    /// The requests that were staged: from the first number to before the second.
    ///
    /// The range begins at the tail of the order while a batch is being made, and is empty after
    /// the batch was posted or dropped. The requests of a batch that was forgotten stay until the
    /// next batch begins.
    staged: (u64, u64),
    /// Number of requests that can still be staged in the usual way: their slots are empty, and
    /// their ids follow each other.
    usual_staging: u64,
    /// Requests that were taken before older ones that are still in flight.
    gaps: usize,
    /// Set if usual requests may be posted in the usual way.
    is_usual: bool,
    /// Set if staged requests that were not posted were left behind in their slots.
    is_littered: bool,
}

impl<T: Send + 'static> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("queue_pair", &self.queue_pair.number())
            .field("capacity", &self.capacity())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl<T: Send + 'static> Ring<T> {
    pub(super) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32, is_usual: bool) -> Self {
        let capacity = capacity.min(1 << BLOCK_BITS) as usize;
        let length = capacity.next_power_of_two();
        let mut ring = Self {
            usual: queue_pair.usual(),
            queue_pair,
            slots: (0..length).map(|_| Held::NOTHING).collect(),
            mask: length - 1,
            order: Sequence::new(capacity),
            staged: (0, 0),
            usual_staging: 0,
            gaps: 0,
            is_usual,
            is_littered: false,
        };
        ring.look_around();
        ring
    }

    #[inline]
    pub(super) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    #[inline]
    pub(super) fn usual(&self) -> UsualQueuePair {
        self.usual
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.order.capacity()
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.order.outstanding()
    }

    /// Returns the id of the next request to be posted.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.order.next_id()
    }

    /// Returns whether one more request can be posted in the usual way, and its slot is empty.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.order.is_open()
    }

    /// Returns whether one more request can be posted, and its slot is empty, even if the [usual
    /// way](Self::is_ready) is closed.
    #[inline]
    pub(super) fn has_empty_slot(&self) -> bool {
        self.in_flight() < self.capacity() && self.staged() == 0 && !self.is_littered
    }

    /// Opens or closes the usual way, after a change of the requests that are staged or left
    /// behind.
    fn look_around(&mut self) {
        let is_clear = !self.is_littered && self.staged() == 0;
        self.order.close(!self.is_usual || !is_clear);
    }

    /// Keeps the memory of the next request, which was posted.
    ///
    /// # Safety
    ///
    /// The ring [is ready](Self::is_ready).
    #[inline]
    pub(super) unsafe fn keep_memory(&mut self, memory: T) {
        let slot = self.slot(self.order.next_id());
        // SAFETY: there are as many slots as the mask of `slot` leaves numbers. This one is empty:
        // it is in no use, or the ring would be full, and nothing was left behind in it.
        unsafe { (&raw mut self.slots.get_unchecked_mut(slot).memory).write(Some(memory)) };
        self.order.advance_tail();
    }

    /// Keeps the memory and objects that the next request needs, which was posted.
    ///
    /// # Safety
    ///
    /// The ring must [have an empty slot](Self::has_empty_slot).
    #[inline]
    pub(super) unsafe fn keep_in_empty_slot(&mut self, memory: T, keep: KeepAlive) {
        let slot = self.slot(self.order.next_id());
        let held = Held {
            memory: Some(memory),
            keep,
        };
        // SAFETY: as in `keep_memory`.
        unsafe { (&raw mut *self.slots.get_unchecked_mut(slot)).write(held) };
        self.order.advance_tail();
    }

    /// Counts the next request, which was posted, and needs nothing.
    ///
    /// The ring [is ready](Self::is_ready), so that the request's slot is empty.
    #[inline]
    pub(super) fn keep_nothing(&mut self) {
        debug_assert!(self.is_ready());
        self.order.advance_tail();
    }

    /// Keeps what the next request, which was posted, needs.
    #[inline]
    pub(super) fn keep(&mut self, memory: Option<T>, keep: KeepAlive) {
        let slot = self.slot(self.order.tail());
        // First: what a forgotten batch left in the slot may panic when it is dropped.
        self.order.advance_tail();
        self.slots[slot] = Held { memory, keep };
    }

    /// Returns whether this id of a completion is that of the oldest request in flight. While no
    /// request is in flight, no completion has the id that the next request will have.
    #[inline]
    pub(super) fn is_oldest(&self, id: u64) -> bool {
        id == self.order.oldest_id()
    }

    /// Returns the number of requests that are completed by the completion with this id: that
    /// request and the older ones; 0 if it is not one of this queue's and in flight.
    #[inline(never)]
    pub(super) fn completed(&self, id: u64) -> u64 {
        let number = self.order.number(id);
        number.map_or(0, |number| number - self.order.head() + 1)
    }

    /// Takes the memory of the oldest request, of which there is one. `outcome` is that of the last
    /// request that ends with it, behind so many others.
    #[inline]
    pub(super) fn retire(&mut self, outcome: Outcome, left: u64) -> Option<T> {
        let slot = self.slot(self.order.oldest_id());
        self.order.advance_head();
        self.take_slot(slot, outcome, left)
    }

    /// Takes the memory of the oldest request, of which there is one, and which keeps nothing else.
    #[inline]
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        let slot = self.slot(self.order.oldest_id());
        self.order.advance_head();
        debug_assert!(matches!(self.slots[slot].keep, KeepAlive::Nothing));
        // SAFETY: as in `take_slot`.
        unsafe { self.slots.get_unchecked_mut(slot) }.memory.take()
    }

    /// Takes the memory of the request with this id alone, if it is one of this queue's and in
    /// flight.
    pub(super) fn take(&mut self, id: u64) -> Option<T> {
        if self.is_oldest(id) {
            self.order.advance_head();
            return self.take_slot(self.slot(id), Outcome::Succeeded, 0);
        }
        self.pick(id)
    }

    /// Takes the memory of a request as [`Self::take`] does; the request need not be the oldest.
    ///
    /// As long as there are gaps the sequence is marked, so that all requests come here.
    fn pick(&mut self, id: u64) -> Option<T> {
        let number = self.order.number(id)?;
        let slot = self.slot(number);
        self.slots[slot].memory.as_ref()?;
        if number == self.order.head() {
            self.order.advance_head();
            while self.gaps > 0 && self.slots[self.slot(self.order.head())].memory.is_none() {
                self.order.advance_head();
                self.gaps -= 1;
            }
        } else {
            self.gaps += 1;
        }
        self.order.mark(self.gaps > 0);
        self.take_slot(slot, Outcome::Succeeded, 0)
    }

    #[inline]
    fn take_slot(&mut self, slot: usize, outcome: Outcome, left: u64) -> Option<T> {
        debug_assert!(slot < self.slots.len());
        // SAFETY: the slot is a result of `slot`, whose mask leaves fewer numbers than there are slots.
        let held = unsafe { self.slots.get_unchecked_mut(slot) };
        if !matches!(held.keep, KeepAlive::Nothing) {
            settle(&mut held.keep, outcome, left, &self.queue_pair);
        }
        held.memory.take()
    }

    /// Returns the slot of the request with this number or this id: they are the same in their low
    /// bits.
    #[inline]
    fn slot(&self, number: u64) -> usize {
        number as usize & self.mask
    }
}

#[cold]
#[inline(never)]
fn settle(keep: &mut KeepAlive, last: Outcome, left: u64, queue_pair: &QueuePairHandle) {
    let outcome = if left == 0 {
        last
    } else {
        keep.inferred(last, queue_pair)
    };
    keep.settle(outcome);
}

/// Requests that are described and not posted.
impl<T: Send + 'static> Ring<T> {
    /// Returns the number of staged requests.
    #[inline]
    pub(super) fn staged(&self) -> usize {
        (self.staged.1 - self.staged.0) as usize
    }

    /// Returns whether one more request can be staged.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight() + self.staged() < self.capacity()
    }

    /// Gives up what a forgotten batch had staged, before another one begins.
    #[inline]
    pub(super) fn begin_staging(&mut self) {
        let forgotten = self.staged;
        let tail = self.order.tail();
        self.usual_staging = 0;
        self.staged = (tail, tail);
        if forgotten.0 < forgotten.1 {
            // Until all of it is dropped: a drop may panic.
            let was_littered = std::mem::replace(&mut self.is_littered, true);
            self.clear(forgotten);
            self.is_littered = was_littered;
            self.look_around();
        }
        if self.is_usual && !self.is_littered {
            let room = self.capacity() - self.in_flight();
            self.usual_staging = self.order.left_in_block().min(room as u64);
        }
    }

    /// Returns the id of the next request to be staged, if that may be in the usual way.
    #[inline]
    pub(super) fn usual_staged_id(&self) -> Option<u64> {
        let behind = self.staged.1 - self.staged.0;
        (self.usual_staging > 0).then(|| self.order.next_id() + behind)
    }

    /// Keeps the memory of the next staged request.
    ///
    /// # Safety
    ///
    /// The request must have a [usual id](Self::usual_staged_id).
    #[inline]
    pub(super) unsafe fn stage_memory(&mut self, memory: T) {
        let slot = self.slot(self.staged.1);
        self.staged.1 += 1;
        self.usual_staging -= 1;
        self.order.close(true);
        // SAFETY: as in `keep_memory`: there is room behind what is in flight and staged, and nothing was
        // left behind in it.
        unsafe { (&raw mut self.slots.get_unchecked_mut(slot).memory).write(Some(memory)) };
    }

    /// Counts the next staged request, which needs nothing, and has a
    /// [usual id](Self::usual_staged_id), so that its slot is empty.
    #[inline]
    pub(super) fn stage_nothing(&mut self) {
        debug_assert!(self.usual_staging > 0);
        self.staged.1 += 1;
        self.usual_staging -= 1;
        self.order.close(true);
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

    /// Returns the id of the next request to be staged.
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
        self.usual_staging = self.usual_staging.saturating_sub(1);
        self.order.close(true);
        self.slots[slot] = Held { memory, keep };
    }

    /// Counts the first `count` staged requests as posted.
    #[inline]
    pub(super) fn launch_staged(&mut self, count: usize) {
        if (count as u64) < self.order.left_in_block() {
            self.order.advance_tail_within(count as u64);
        } else {
            for _ in 0..count {
                self.order.advance_tail();
            }
        }
        self.staged.0 += count as u64;
        self.look_around();
    }

    /// Ends the staging; what was staged is to be taken from its slots.
    pub(super) fn end_staging(&mut self) -> Unstaged<'_, T> {
        let (next, end) = self.staged;
        let tail = self.order.tail();
        self.staged = (tail, tail);
        self.usual_staging = 0;
        let was_littered = self.is_littered;
        // Until all of it is taken.
        self.is_littered |= next < end;
        self.look_around();
        Unstaged {
            ring: self,
            next,
            end,
            was_littered,
        }
    }
}

/// Requests that were staged and are not to be posted, by their numbers.
#[derive(Debug)]
pub(crate) struct Unstaged<'a, T: Send + 'static> {
    ring: &'a mut Ring<T>,
    next: u64,
    end: u64,
    /// Set if an earlier forgotten batch had left something behind.
    was_littered: bool,
}

impl<T: Send + 'static> Unstaged<'_, T> {
    /// Takes the memory of the first of them that has some.
    pub(crate) fn next(&mut self) -> Option<T> {
        while self.next < self.end {
            let slot = self.ring.slot(self.next);
            self.next += 1;
            if let Some(memory) = self.ring.take_slot(slot, Outcome::NotPosted, 0) {
                return Some(memory);
            }
        }
        self.ring.is_littered = self.was_littered;
        self.ring.look_around();
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::context::Context;

    /// Memory that panics when it is dropped, if the flag is set.
    struct Memory(bool);

    impl Drop for Memory {
        fn drop(&mut self) {
            assert!(!self.0, "dropped");
        }
    }

    fn ring() -> Ring<Memory> {
        let domain = Context::open("softroce0").unwrap().protection_domain();
        let prepared = domain.unwrap().queue_pair().build().unwrap();
        let handle = prepared.manual().into_parts().handle;
        Ring::new(handle, 4, true)
    }

    /// Stages as many as can be in the usual way, each with the id that it would have in the other.
    fn stage_usual(ring: &mut Ring<Memory>) -> usize {
        let mut count = 0;
        while let Some(id) = ring.usual_staged_id() {
            assert_eq!(id, ring.staged_id());
            // SAFETY: it has a usual id.
            unsafe { ring.stage_memory(Memory(false)) };
            count += 1;
        }
        count
    }

    #[test]
    fn requests_are_staged_in_the_usual_way_where_nothing_was_left_behind() {
        let mut ring = ring();
        assert_eq!(ring.usual_staged_id(), None, "no batch");
        for round in 0..3 {
            ring.begin_staging();
            ring.stage(Some(Memory(false)), KeepAlive::Nothing);
            assert_eq!(stage_usual(&mut ring), 3, "round {round}");
            assert!(!ring.has_room());
            ring.launch_staged(4);
            ring.begin_staging();
            assert_eq!(ring.usual_staged_id(), None, "it is full");
            ring.retire(Outcome::Succeeded, 0).unwrap();
            ring.begin_staging();
            assert_eq!(stage_usual(&mut ring), 1);
            ring.launch_staged(1);
            for _ in 0..4 {
                ring.retire(Outcome::Succeeded, 0).unwrap();
            }
        }
        ring.begin_staging();
        assert_eq!(stage_usual(&mut ring), 4);
        // Two are posted, and two stay where they are.
        ring.launch_staged(2);
        ring.end_staging();
        assert_eq!(ring.usual_staged_id(), None);
        ring.begin_staging();
        assert_eq!(ring.usual_staged_id(), None);
        assert_eq!(ring.in_flight(), 2);
    }

    #[test]
    fn what_a_panic_left_behind_is_not_taken_for_an_empty_slot() {
        let mut ring = ring();
        ring.begin_staging();
        ring.stage(Some(Memory(true)), KeepAlive::Nothing);
        ring.stage(Some(Memory(false)), KeepAlive::Nothing);
        // The batch is forgotten, and another one begins.
        catch_unwind(AssertUnwindSafe(|| ring.begin_staging())).unwrap_err();
        assert_eq!((ring.staged(), ring.usual_staged_id()), (0, None));
        ring.launch_staged(0);
        assert!(!ring.is_ready());
        ring.keep(Some(Memory(false)), KeepAlive::Nothing);
        assert!(ring.take(ring.order.oldest_id()).is_some());
    }
}
