//! The requests in flight of a queue with a single owner, in the order of posting.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::posting::FastPathQueuePair;
use super::queue_pair::QueuePairHandle;
use super::request_id::{Admission, BLOCK_BITS, Removals, Sequence};
use crate::queue_pair::{KeepAlive, Outcome};

/// The memory and the objects that a request keeps until it has completed. Inline data is not kept.
pub(super) struct RequestResources<T> {
    pub(super) memory: Option<T>,
    pub(super) keep: KeepAlive,
}

impl<T> RequestResources<T> {
    pub(super) const NOTHING: Self = Self {
        memory: None,
        keep: KeepAlive::Nothing,
    };
}

/// A ring buffer of the requests of a queue. The ring owns the memory of each request while the
/// device uses the memory. The id of a request determines its position in the ring.
///
/// The requests in flight are followed by the staged requests of a batch, which are not posted yet.
pub(super) struct Ring<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    /// A pointer to the queue pair, by which the fast path posts requests.
    fast_path: FastPathQueuePair,
    /// The memory and objects of requests. The request with the number `n` is at index `n` modulo
    /// the length, which is a power of two.
    slots: Box<[RequestResources<T>]>,
    /// Mask that reduces a request's number to its slot: the length of `slots` less 1.
    mask: usize,
    /// Ids of the requests in flight, in the order of posting.
    order: Sequence,
    /// Range of the staged requests (added to a batch and not posted): the number of the first
    /// staged request, and the number after the last.
    ///
    /// While a batch is under construction, the range begins at the number of the next request to
    /// be posted. After the batch was posted or dropped, the range is empty. Requests of a leaked
    /// batch stay in the range until the next batch begins.
    staged: Range<u64>,
    /// Number of further requests that can be staged on the fast path, because their slots are
    /// empty and their ids are consecutive.
    fast_path_staging: u64,
    /// Number of completed requests that were removed although older requests are still in flight,
    /// and whose slots are therefore empty in between.
    gaps: usize,
    /// Set if the queue pair supports the fast path.
    is_fast_path: bool,
    /// Set if staged requests that were not posted may remain in their slots.
    has_unclaimed: bool,
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
    pub(super) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32, is_fast_path: bool) -> Self {
        let capacity = capacity.min(1 << BLOCK_BITS) as usize;
        let length = capacity.next_power_of_two();
        let mut ring = Self {
            fast_path: queue_pair.fast_path(),
            queue_pair,
            slots: (0..length).map(|_| RequestResources::NOTHING).collect(),
            mask: length - 1,
            order: Sequence::new(capacity),
            staged: 0..0,
            fast_path_staging: 0,
            gaps: 0,
            is_fast_path,
            has_unclaimed: false,
        };
        ring.update_fast_path();
        ring
    }

    #[inline]
    pub(super) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    #[inline]
    pub(super) fn fast_path(&self) -> FastPathQueuePair {
        self.fast_path
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.order.capacity()
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.order.outstanding()
    }

    /// Returns the id that the next posted request will have.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.order.next_id()
    }

    /// Returns whether the next request can be posted on the fast path: the ring has room, and the
    /// slot for the request is empty.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.order.is_open()
    }

    /// Returns whether the ring has room for the next request, and the slot (array element) for the
    /// request is empty. Unlike [`Self::is_ready`], does not require that the queue pair supports
    /// the fast path.
    #[inline]
    pub(super) fn has_empty_slot(&self) -> bool {
        self.in_flight() < self.capacity() && self.staged() == 0 && !self.has_unclaimed
    }

    /// Opens the fast path (posting with few checks) if the queue pair supports it and no slot
    /// contains a request that was not posted. Otherwise closes the fast path, so that every
    /// request takes the general path.
    fn update_fast_path(&mut self) {
        let is_clear = !self.has_unclaimed && self.staged() == 0;
        self.order.set_admission(if self.is_fast_path && is_clear {
            Admission::Open
        } else {
            Admission::Closed
        });
    }

    /// Records that the next request was posted to the device, and stores its memory until the
    /// request has completed.
    ///
    /// # Safety
    ///
    /// The slot of the next request must be empty: [`Self::is_ready`] must have returned `true`.
    #[inline]
    pub(super) unsafe fn keep_memory(&mut self, memory: T) {
        let slot = self.slot(self.order.next_id());
        // SAFETY: `slot` masks the id to less than the number of slots. The slot is empty: it is
        // not in use, because the ring is not full, and no staged request remains in it.
        unsafe { (&raw mut self.slots.get_unchecked_mut(slot).memory).write(Some(memory)) };
        self.order.advance_tail();
    }

    /// Records that the next request was posted, and stores its memory and the objects that the
    /// request keeps alive.
    ///
    /// # Safety
    ///
    /// [`Self::has_empty_slot`] must return `true`.
    #[inline]
    pub(super) unsafe fn keep_in_empty_slot(&mut self, memory: T, keep: KeepAlive) {
        let slot = self.slot(self.order.next_id());
        let held = RequestResources {
            memory: Some(memory),
            keep,
        };
        // SAFETY: `slot` masks the id to less than the number of slots. The slot is empty, because
        // the ring is not full and no staged request remains in it.
        unsafe { (&raw mut *self.slots.get_unchecked_mut(slot)).write(held) };
        self.order.advance_tail();
    }

    /// Records that the next request was posted to the device, and stores neither memory nor other
    /// objects for the request. Only advances the number of the next request. Used if the request
    /// needs no memory until it completes, for example because its data was copied.
    ///
    /// [`Self::is_ready`] must return `true`, so that the request's slot contains no memory of an
    /// earlier request.
    #[inline]
    pub(super) fn keep_nothing(&mut self) {
        debug_assert!(self.is_ready());
        self.order.advance_tail();
    }

    /// Records that the next request was posted, and stores its memory and the objects that the
    /// request keeps alive. If a batch was leaked (never dropped), the slot of the request can
    /// contain an unposted request of the batch. That request is then dropped.
    #[inline]
    pub(super) fn keep(&mut self, memory: Option<T>, keep: KeepAlive) {
        let slot = self.slot(self.order.tail());
        // This call comes first, because dropping the memory that a leaked batch left in the slot
        // may panic.
        self.order.advance_tail();
        self.slots[slot] = RequestResources { memory, keep };
    }

    /// Returns whether the completion with the id `id` belongs to the oldest request in flight. If
    /// no request is in flight, `id` is compared with the id of the next request, which no
    /// completion can have.
    #[inline]
    pub(super) fn is_oldest(&self, id: u64) -> bool {
        id == self.order.oldest_id()
    }

    /// Returns the number of requests that the completion with the id `id` completes: the request
    /// with this id, and all older requests in flight. Returns 0 if no request of this queue with
    /// this id is in flight.
    #[inline(never)]
    pub(super) fn completed(&self, id: u64) -> u64 {
        let number = self.order.number(id);
        number.map_or(0, |number| number - self.order.head() + 1)
    }

    /// Removes the oldest request in flight, and returns its memory. The caller must ensure that a
    /// request is in flight. Called for a completion of this request or of a later request, because
    /// unsignaled requests have no completion of their own. `left` is the number of requests from
    /// the removed request to the request with the completion, or 0 if the completion is that of
    /// the removed request. `outcome` is the outcome in the completion.
    #[inline]
    pub(super) fn retire(&mut self, outcome: Outcome, left: u64) -> Option<T> {
        let slot = self.slot(self.order.oldest_id());
        self.order.advance_head();
        self.take_slot(slot, outcome, left)
    }

    /// Removes the oldest request in flight, and returns its memory, or `None` if the request had
    /// no memory. The caller must ensure that a request is in flight. The request must use no other
    /// object, such as an address handle.
    #[inline]
    pub(super) fn take_oldest(&mut self) -> Option<T> {
        let slot = self.slot(self.order.oldest_id());
        self.order.advance_head();
        debug_assert!(matches!(self.slots[slot].keep, KeepAlive::Nothing));
        // SAFETY: `slot` masks the id to less than the number of slots.
        unsafe { self.slots.get_unchecked_mut(slot) }.memory.take()
    }

    /// Removes only the request with the id `id`, and returns its memory. Returns `None` if no
    /// request of this queue with this id is in flight.
    pub(super) fn take(&mut self, id: u64) -> Option<T> {
        if self.is_oldest(id) {
            self.order.advance_head();
            return self.take_slot(self.slot(id), Outcome::Succeeded, 0);
        }
        self.pick(id)
    }

    /// Removes the request with the id `id`, which need not be the oldest, and returns its memory.
    /// Returns `None` if no such request with memory is in flight.
    ///
    /// If an older request stays in flight, the state becomes [`Removals::OutOfOrder`]. Until that
    /// request is removed, [`Self::take`] calls this function for every request.
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
        self.order.set_removals(if self.gaps > 0 {
            Removals::OutOfOrder
        } else {
            Removals::InOrder
        });
        self.take_slot(slot, Outcome::Succeeded, 0)
    }

    #[inline]
    fn take_slot(&mut self, slot: usize, outcome: Outcome, left: u64) -> Option<T> {
        debug_assert!(slot < self.slots.len());
        // SAFETY: [`Self::slot`] has masked `slot` to less than the number of slots.
        let held = unsafe { self.slots.get_unchecked_mut(slot) };
        if !matches!(held.keep, KeepAlive::Nothing) {
            settle(&mut held.keep, outcome, left, &self.queue_pair);
        }
        held.memory.take()
    }

    /// Returns the index in `slots` of the request with this number (counted from 0 in the order of
    /// posting), or with this work request id. The index is the low bits, which number and id have
    /// in common.
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

/// Methods for staging requests: filling them in for a batch, before they are posted.
impl<T: Send + 'static> Ring<T> {
    /// Returns the number of staged requests, which were added to a batch and not posted yet.
    #[inline]
    pub(super) fn staged(&self) -> usize {
        (self.staged.end - self.staged.start) as usize
    }

    /// Returns whether the ring has room for one more request of a batch.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.in_flight() + self.staged() < self.capacity()
    }

    /// Prepares the ring for a new batch. Discards the unposted requests of an earlier batch that
    /// was leaked (not dropped).
    #[inline]
    pub(super) fn begin_staging(&mut self) {
        let forgotten = self.staged.clone();
        let tail = self.order.tail();
        self.fast_path_staging = 0;
        self.staged = tail..tail;
        if !forgotten.is_empty() {
            // The flag stays set until the memory of all discarded requests is dropped, because a
            // drop may panic.
            let had_unclaimed = std::mem::replace(&mut self.has_unclaimed, true);
            self.clear(forgotten);
            self.has_unclaimed = had_unclaimed;
            self.update_fast_path();
        }
        if self.is_fast_path && !self.has_unclaimed {
            let room = self.capacity() - self.in_flight();
            self.fast_path_staging = self.order.left_in_block().min(room as u64);
        }
    }

    /// Returns the id of the next request to be added to the batch if few checks suffice. Returns
    /// `None` if the request needs all checks, for example because the ring is full or needs new
    /// ids.
    #[inline]
    pub(super) fn fast_path_staged_id(&self) -> Option<u64> {
        let behind = self.staged.end - self.staged.start;
        (self.fast_path_staging > 0).then(|| self.order.next_id() + behind)
    }

    /// Records that the next request was added to the batch, and stores its memory in this ring of
    /// requests.
    ///
    /// # Safety
    ///
    /// The slot of the next request must be empty: [`Self::fast_path_staged_id`] must have returned
    /// an id for the request.
    #[inline]
    pub(super) unsafe fn stage_memory(&mut self, memory: T) {
        let slot = self.slot(self.staged.end);
        self.staged.end += 1;
        self.fast_path_staging -= 1;
        self.order.set_admission(Admission::Closed);
        // SAFETY: `slot` masks the number to less than the number of slots. The slot is empty,
        // because there is room after the requests in flight and staged, and no other staged
        // request remains in it.
        unsafe { (&raw mut self.slots.get_unchecked_mut(slot).memory).write(Some(memory)) };
    }

    /// Records that the next request was added to the batch, and stores nothing. The request must
    /// need neither memory nor other objects until it completes. [`Self::fast_path_staged_id`] must
    /// have returned an id for the request.
    #[inline]
    pub(super) fn stage_nothing(&mut self) {
        debug_assert!(self.fast_path_staging > 0);
        self.staged.end += 1;
        self.fast_path_staging -= 1;
        self.order.set_admission(Admission::Closed);
    }

    /// Drops the memory and objects of unposted requests of a batch: the requests with the numbers
    /// `numbers`, except requests that were posted. The number of a posted request is below the
    /// number of the next request to be posted.
    #[cold]
    fn clear(&mut self, numbers: Range<u64>) {
        for number in numbers.start.max(self.order.tail())..numbers.end {
            let slot = self.slot(number);
            self.slots[slot] = RequestResources::NOTHING;
        }
    }

    /// Returns the id of the next request to be added to the batch.
    #[inline]
    pub(super) fn staged_id(&mut self) -> u64 {
        self.order.open(self.staged.end);
        self.order.id(self.staged.end)
    }

    /// Records that the next request was added to the batch. Stores its memory and the objects in
    /// `keep` in the ring until the request has completed.
    #[inline]
    pub(super) fn stage(&mut self, memory: Option<T>, keep: KeepAlive) {
        let slot = self.slot(self.staged.end);
        self.staged.end += 1;
        self.fast_path_staging = self.fast_path_staging.saturating_sub(1);
        self.order.set_admission(Admission::Closed);
        self.slots[slot] = RequestResources { memory, keep };
    }

    /// Records that the first `count` staged requests (requests of the batch) were posted. These
    /// requests are then in flight.
    #[inline]
    pub(super) fn launch_staged(&mut self, count: usize) {
        if (count as u64) < self.order.left_in_block() {
            self.order.advance_tail_within(count as u64);
        } else {
            for _ in 0..count {
                self.order.advance_tail();
            }
        }
        self.staged.start += count as u64;
        self.update_fast_path();
    }

    /// Ends the batch. Returns an iterator over the staged requests that were not posted, so that
    /// the caller can take their memory back.
    pub(super) fn end_staging(&mut self) -> Unstaged<'_, T> {
        let Range { start: next, end } = self.staged.clone();
        let tail = self.order.tail();
        self.staged = tail..tail;
        self.fast_path_staging = 0;
        let had_unclaimed = self.has_unclaimed;
        // The flag stays set until the memory of all staged requests has been taken.
        self.has_unclaimed |= next < end;
        self.update_fast_path();
        Unstaged {
            ring: self,
            next,
            end,
            had_unclaimed,
        }
    }
}

/// An iterator over the memory of the requests of a batch that were not posted before the batch
/// ended.
#[derive(Debug)]
pub(crate) struct Unstaged<'a, T: Send + 'static> {
    ring: &'a mut Ring<T>,
    next: u64,
    end: u64,
    /// Set if an earlier leaked batch had left requests in the slots when this batch ended.
    had_unclaimed: bool,
}

impl<T: Send + 'static> Unstaged<'_, T> {
    /// Returns the memory of the next request that was not posted, so that the program gets it
    /// back. Skips requests without memory, and returns `None` if no request is left.
    pub(crate) fn next(&mut self) -> Option<T> {
        while self.next < self.end {
            let slot = self.ring.slot(self.next);
            self.next += 1;
            if let Some(memory) = self.ring.take_slot(slot, Outcome::NotPosted, 0) {
                return Some(memory);
            }
        }
        self.ring.has_unclaimed = self.had_unclaimed;
        self.ring.update_fast_path();
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

    /// Memory for the tests. Dropping the value panics if its flag is set.
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

    /// Adds requests to the batch while [`Ring::fast_path_staged_id`] returns an id, which means
    /// that few checks suffice. Asserts that each id is right, and returns the number of added
    /// requests.
    fn stage_fast_path(ring: &mut Ring<Memory>) -> usize {
        let mut count = 0;
        while let Some(id) = ring.fast_path_staged_id() {
            assert_eq!(id, ring.staged_id());
            // SAFETY: the request has an id of the fast path.
            unsafe { ring.stage_memory(Memory(false)) };
            count += 1;
        }
        count
    }

    #[test]
    fn the_fast_path_stages_requests_unless_slots_are_unclaimed() {
        let mut ring = ring();
        assert_eq!(ring.fast_path_staged_id(), None, "no batch");
        for round in 0..3 {
            ring.begin_staging();
            ring.stage(Some(Memory(false)), KeepAlive::Nothing);
            assert_eq!(stage_fast_path(&mut ring), 3, "round {round}");
            assert!(!ring.has_room());
            ring.launch_staged(4);
            ring.begin_staging();
            assert_eq!(ring.fast_path_staged_id(), None, "it is full");
            ring.retire(Outcome::Succeeded, 0).unwrap();
            ring.begin_staging();
            assert_eq!(stage_fast_path(&mut ring), 1);
            ring.launch_staged(1);
            for _ in 0..4 {
                ring.retire(Outcome::Succeeded, 0).unwrap();
            }
        }
        ring.begin_staging();
        assert_eq!(stage_fast_path(&mut ring), 4);
        // Posts two of the staged requests; two others remain in their slots.
        ring.launch_staged(2);
        ring.end_staging();
        assert_eq!(ring.fast_path_staged_id(), None);
        ring.begin_staging();
        assert_eq!(ring.fast_path_staged_id(), None);
        assert_eq!(ring.in_flight(), 2);
    }

    #[test]
    fn a_slot_left_full_by_a_panic_is_not_used_as_empty() {
        let mut ring = ring();
        ring.begin_staging();
        ring.stage(Some(Memory(true)), KeepAlive::Nothing);
        ring.stage(Some(Memory(false)), KeepAlive::Nothing);
        // Begins a second batch after the first batch was leaked. A drop of the leaked memory
        // panics.
        catch_unwind(AssertUnwindSafe(|| ring.begin_staging())).unwrap_err();
        assert_eq!((ring.staged(), ring.fast_path_staged_id()), (0, None));
        ring.launch_staged(0);
        assert!(!ring.is_ready());
        ring.keep(Some(Memory(false)), KeepAlive::Nothing);
        assert!(ring.take(ring.order.oldest_id()).is_some());
    }
}
