//! A lock-free table of slots that many threads use at the same time.
//!
//! The slots contain the memory of requests in flight. The table serves queues to which several
//! threads post.

use std::fmt;
use std::sync::atomic::Ordering;

use super::request_id::{BLOCK_BITS, next_block};
use super::slot_sync::{AtomicU64, FreeList, SharedCell};

/// Number of low bits of a request id that are the index of the slot. The other bits count the uses
/// of the slot.
const INDEX_BITS: u32 = 16;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Number of requests that can use a slot before the slot needs a new block of 2^24 consecutive
/// ids. In a block, a slot uses only the ids whose low bits equal the index of the slot.
const USES_OF_BLOCK: u64 = 1 << (BLOCK_BITS - INDEX_BITS);

/// The state of a slot that no request uses. The low bits of a slot's atomic word contain the state
/// of the slot. The higher bits count how often the slot was used.
const FREE: u64 = 0;
const RESERVED: u64 = 1;
const IN_FLIGHT: u64 = 2;
const COMPLETING: u64 = 3;
const DONE: u64 = 4;
const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// A table with a fixed number of slots, each of which contains the memory of one request.
///
/// The states of a slot are free -> reserved -> in flight -> completing -> done -> free, or from
/// completing back to reserved if the device did not accept the request. The memory is accessed in
/// two states only: "reserved", by the holder of the [`Reserved`] for that use of the slot, and
/// "completing", by the one thread whose compare-and-swap set that state.
pub(super) struct SlotTable<T> {
    free: FreeList,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    word: AtomicU64,
    memory: SharedCell<Option<T>>,
}

// SAFETY: only one thread at a time accesses the memory in a slot, as the states ensure. The memory
// moves between threads, which `T: Send` allows, and is never shared.
unsafe impl<T: Send> Sync for Slot<T> {}

/// The exclusive right to use a reserved slot (a place in a [`SlotTable`]) for one request. The
/// right contains the unique id of this request, and is valid only for the table that created it.
#[derive(Debug)]
pub(crate) struct Reserved {
    id: u64,
}

impl Reserved {
    /// Returns the id of the request for which the slot is reserved.
    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the index of the reserved slot in its table.
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        (self.id & INDEX_MASK) as u32
    }

    /// Returns a duplicate of this right to use the reserved slot. The caller must afterwards use
    /// only the original or only the duplicate.
    #[inline]
    pub(super) fn duplicate(&self) -> Self {
        Self { id: self.id }
    }

    #[inline]
    fn word(&self, state: u64) -> u64 {
        word(self.id, state)
    }
}

/// Returns the word that encodes the state `state` of a slot that the request with the id `id`
/// uses.
#[inline]
fn word(id: u64, state: u64) -> u64 {
    ((id >> INDEX_BITS) << STATE_BITS) | state
}

impl<T> fmt::Debug for SlotTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable")
            .field("capacity", &self.slots.len())
            .field("free", &self.free.len())
            .finish()
    }
}

impl<T> SlotTable<T> {
    /// Creates a table with `capacity` slots: at least one, and at most 2^16.
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.clamp(1, 1 << INDEX_BITS);
        let free = FreeList::of(capacity);
        let slot = |_| Slot {
            // The initial count stands for the last use of a block of ids, so that the first use of
            // the slot allocates a block.
            word: AtomicU64::new(((USES_OF_BLOCK - 1) << STATE_BITS) | FREE),
            memory: SharedCell::new(None),
        };
        let slots = (0..capacity).map(slot).collect();
        Self { free, slots }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Reserves a free slot for one request. Returns `None` if every slot is in use.
    #[inline]
    pub(super) fn reserve(&self) -> Option<Reserved> {
        let index = self.free.take()?;
        let slot = &self.slots[index as usize];
        // This thread has taken the index from the free list, so no other thread uses the slot.
        let mut serial = (slot.word.load(Ordering::Relaxed) >> STATE_BITS) + 1;
        if serial.is_multiple_of(USES_OF_BLOCK) {
            serial = next_block() >> INDEX_BITS;
        }
        let reserved = Reserved {
            id: (serial << INDEX_BITS) | u64::from(index),
        };
        slot.word.store(reserved.word(RESERVED), Ordering::Relaxed);
        Some(reserved)
    }

    /// Returns the slot that is reserved by `reserved`, or `None` if that slot belongs to another
    /// table.
    #[inline]
    fn slot(&self, reserved: &Reserved) -> Option<&Slot<T>> {
        let slot = self.slots.get(reserved.index() as usize)?;
        let own = slot.word.load(Ordering::Relaxed) == reserved.word(RESERVED);
        own.then_some(slot)
    }

    /// Returns whether the slot that is reserved by `reserved` belongs to this table.
    #[inline]
    pub(super) fn owns(&self, reserved: &Reserved) -> bool {
        self.slot(reserved).is_some()
    }

    /// Frees a reserved slot that no request has used. Has no effect if the slot belongs to another
    /// table.
    #[cold]
    pub(super) fn cancel(&self, reserved: Reserved) {
        if let Some(slot) = self.slot(&reserved) {
            slot.word.store(reserved.word(FREE), Ordering::Relaxed);
            self.put_back(reserved.index());
        }
    }

    /// Stores the memory of a request in a reserved slot, whose state becomes "in flight".
    ///
    /// # Panics
    ///
    /// Panics if the slot belongs to another table.
    #[inline]
    pub(super) fn launch(&self, reserved: &Reserved, memory: T) {
        let slot = self.slot(reserved).expect("a slot of this table");
        // SAFETY: the slot is reserved, and this thread holds its only `reserved`, so no other
        // thread accesses the memory.
        unsafe { slot.memory.with(|place| *place = Some(memory)) };
        slot.word.store(reserved.word(IN_FLIGHT), Ordering::Release);
    }

    /// Takes the memory of the request with the id `id`, and returns the memory and the index of
    /// the request's slot. The slot stays in use until [`Self::release`]. Returns `None` if no
    /// request with this id is in flight.
    #[inline]
    pub(super) fn complete(&self, id: u64) -> Option<(u32, T)> {
        self.take(id, DONE)
    }

    /// Takes the memory of the request with the id `id` out of its slot, whose state becomes
    /// `next`. Returns the index of the slot and the memory, or `None` if no request with this id
    /// is in flight.
    #[inline]
    fn take(&self, id: u64, next: u64) -> Option<(u32, T)> {
        let index = (id & INDEX_MASK) as u32;
        let slot = self.slots.get(index as usize)?;
        slot.word
            .compare_exchange(
                word(id, IN_FLIGHT),
                word(id, COMPLETING),
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()?;
        // SAFETY: this thread has entered the state "completing", which only one thread does in
        // each use of a slot, and only the store below leaves that state.
        let memory = unsafe { slot.memory.with(Option::take) };
        slot.word.store(word(id, next), Ordering::Release);
        memory.map(|memory| (index, memory))
    }

    /// Takes back the memory of a request that the device did not accept, and frees the slot.
    #[cold]
    pub(super) fn withdraw(&self, reserved: Reserved) -> T {
        let memory = self.recall(&reserved);
        self.cancel(reserved);
        memory
    }

    /// Takes back the memory of a request that the device did not accept. The slot of the request
    /// stays reserved for another attempt.
    #[cold]
    pub(super) fn recall(&self, reserved: &Reserved) -> T {
        let taken = self.take(reserved.id, RESERVED);
        let (_, memory) = taken.expect("what did not get to the device is not completed");
        memory
    }

    /// Frees the slot at `index` if its request has completed. Has no effect on a slot in another
    /// state.
    #[inline]
    pub(super) fn release(&self, index: u32) {
        let Some(slot) = self.slots.get(index as usize) else {
            return;
        };
        let done = slot.word.load(Ordering::Acquire);
        if done & STATE_MASK != DONE {
            return;
        }
        let free = (done & !STATE_MASK) | FREE;
        let freed = slot
            .word
            .compare_exchange(done, free, Ordering::AcqRel, Ordering::Relaxed);
        if freed.is_ok() {
            self.put_back(index);
        }
    }

    #[inline]
    fn put_back(&self, index: u32) {
        self.free.put(index);
    }
}

impl<T: Send + 'static> SlotTable<T> {
    /// Removes all slots from the table if a request is in flight, and returns the slots as one
    /// opaque value. The caller must keep the value until the device no longer uses the requests'
    /// memory. Returns `None` if no request is in flight.
    pub(super) fn abandon(&mut self) -> Option<Box<dyn std::any::Any + Send>> {
        let in_flight =
            |slot: &Slot<T>| slot.word.load(Ordering::Acquire) & STATE_MASK == IN_FLIGHT;
        if self.slots.iter().any(in_flight) {
            Some(Box::new(std::mem::take(&mut self.slots)))
        } else {
            None
        }
    }
}

#[cfg(all(test, loom))]
#[path = "slot_model.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_slot_is_used_by_one_request_after_the_other() {
        let table = SlotTable::new(1);
        let reserved = table.reserve().unwrap();
        assert!(table.reserve().is_none());
        table.launch(&reserved, 7);
        let id = reserved.id();
        assert_eq!(table.complete(id ^ (1 << INDEX_BITS)), None, "another use");
        assert_eq!(table.complete(id ^ 1), None, "another slot");
        assert_eq!(table.complete(0), None, "the id of an empty completion");
        assert_eq!(table.complete(id), Some((0, 7)));
        assert_eq!(table.complete(id), None, "once only");
        assert!(table.reserve().is_none(), "in use until it is released");
        table.release(0);
        table.release(0);
        assert!(table.reserve().is_some() && table.reserve().is_none());
    }

    #[test]
    fn an_id_is_never_given_out_again() {
        let table = SlotTable::new(1);
        let mut seen = HashSet::new();
        for round in 0..5 * USES_OF_BLOCK {
            let reserved = table.reserve().unwrap();
            assert!(seen.insert(reserved.id()));
            table.launch(&reserved, round);
            for &id in seen.iter().filter(|&&id| id != reserved.id()).take(3) {
                assert_eq!(table.complete(id), None);
            }
            assert_eq!(table.complete(reserved.id()), Some((0, round)));
            table.release(0);
        }
    }

    #[test]
    fn a_reservation_of_another_table_is_known() {
        let (one, other) = (SlotTable::<u8>::new(2), SlotTable::<u8>::new(1));
        let reserved = one.reserve().unwrap();
        assert!(one.owns(&reserved) && !other.owns(&reserved));
        other.cancel(reserved);
        assert!(other.reserve().is_some() && other.reserve().is_none());
        one.cancel(one.reserve().unwrap());
        assert!(one.reserve().is_some() && one.reserve().is_none());
    }

    #[test]
    fn what_is_recalled_can_be_launched_again() {
        let table = SlotTable::new(1);
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, 7);
        assert_eq!(table.recall(&reserved), 7);
        assert!(table.owns(&reserved));
        assert_eq!(table.complete(reserved.id()), None);
        table.launch(&reserved, 8);
        assert_eq!(table.complete(reserved.id()), Some((0, 8)));
        table.release(0);
        let reserved = table.reserve().unwrap();
        table.launch(&reserved, 9);
        assert_eq!(table.withdraw(reserved), 9);
        assert!(table.reserve().is_some());
    }

    #[test]
    fn what_is_in_flight_is_kept_when_abandoned() {
        let mut table = SlotTable::new(2);
        let reserved = table.reserve().unwrap();
        assert!(
            table.abandon().is_none(),
            "a reservation is nothing in flight"
        );
        let memory = std::sync::Arc::new(());
        table.launch(&reserved, memory.clone());
        let kept = table.abandon().expect("it is in flight");
        drop(table);
        assert_eq!(std::sync::Arc::strong_count(&memory), 2);
        drop(kept);
        assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    }

    /// Checks that the memory of each request is returned exactly once, and unchanged, while
    /// threads post and complete requests and another thread releases slots at wrong times.
    #[test]
    fn wrong_releases_lose_no_memory() {
        const THREADS: usize = 3;
        const EACH: usize = if cfg!(miri) { 200 } else { 30_000 };
        let table = SlotTable::<Box<usize>>::new(2);
        let (ids, completions) = mpsc::channel();
        let completions = Mutex::new(completions);
        let sum = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let (ids, table) = (ids.clone(), &table);
                scope.spawn(move || {
                    for index in 0..EACH {
                        let deadline = Instant::now() + Duration::from_secs(100);
                        let reserved = loop {
                            match table.reserve() {
                                Some(reserved) => break reserved,
                                None => thread::yield_now(),
                            }
                            assert!(Instant::now() < deadline, "no slot becomes free");
                        };
                        table.launch(&reserved, Box::new(number * EACH + index));
                        ids.send(reserved.id()).unwrap();
                    }
                });
            }
            drop(ids);
            let completers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let next = || completions.lock().unwrap().recv();
                        while let Ok(id) = next() {
                            let (index, memory) = table.complete(id).unwrap();
                            sum.fetch_add(*memory, Ordering::Relaxed);
                            table.release(index);
                            assert!(table.complete(id).is_none());
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    (0..3).for_each(|index| table.release(index));
                }
            });
            let outcomes: Vec<_> = completers.into_iter().map(|it| it.join()).collect();
            over.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(Result::is_ok));
        });
        let all = THREADS * EACH;
        assert_eq!(sum.into_inner(), all * (all - 1) / 2);
        let free = std::iter::from_fn(|| table.reserve()).count();
        assert_eq!(free, table.capacity());
    }
}
