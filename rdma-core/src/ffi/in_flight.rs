//! In-flight memory of a queue that many threads post to, without a lock.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

use super::queue_pair::QueuePairHandle;
use super::request::{ReceiveElements, SendElements};
use super::tag::{OWN_BITS, Tag};
use crate::error::Error;
use crate::memory::{Gather, Scatter};
use crate::queue_pair::SendRequest;

/// How many low bits of a request's own id bits are its slot; the rest is the slot's generation.
const INDEX_BITS: u32 = 16;
const GENERATION_MASK: u32 = (1 << (OWN_BITS - INDEX_BITS)) - 1;

/// The states of a slot, in the low bits of its word; the generation stands above.
const FREE: u32 = 0;
const RESERVED: u32 = 1;
const IN_FLIGHT: u32 = 2;
const DONE: u32 = 3;
const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// A fixed table of slots; a request's id is its slot, with a generation against late completions.
///
/// A slot goes free -> reserved -> in flight -> done -> free. Only the thread that made the step
/// into a state may touch the memory there: reserving gives a [`Reserved`], which is not `Clone`;
/// completing is a compare-and-swap that one thread wins.
pub(crate) struct Slots<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    tag: Tag,
    free: ArrayQueue<u32>,
    slots: Box<[Slot<T>]>,
}

struct Slot<T> {
    word: AtomicU32,
    memory: UnsafeCell<Option<T>>,
}

// SAFETY: the memory in a slot is touched by one thread at a time, as the states say; it moves
// between threads, which `T: Send` allows, and is never shared.
unsafe impl<T: Send> Sync for Slot<T> {}

/// A slot that will hold the next request of whoever has this.
#[derive(Debug)]
pub(crate) struct Reserved(u32);

impl Reserved {
    #[inline]
    pub(crate) fn index(&self) -> u32 {
        self.0
    }
}

impl<T: Send + 'static> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("queue_pair", &self.queue_pair.number())
            .field("capacity", &self.slots.len())
            .field("free", &self.free.len())
            .finish()
    }
}

impl<T: Send + 'static> Slots<T> {
    /// A table of `capacity` slots, at most 2^16.
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let capacity = capacity.clamp(1, 1 << INDEX_BITS);
        let free = ArrayQueue::new(capacity as usize);
        let slot = |index| {
            let pushed = free.push(index);
            debug_assert!(pushed.is_ok(), "the queue has room for every index");
            Slot {
                word: AtomicU32::new(FREE),
                memory: UnsafeCell::new(None),
            }
        };
        let slots = (0..capacity).map(slot).collect();
        Self {
            queue_pair,
            tag: Tag::next(),
            free,
            slots,
        }
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot; `None` when every one is in use.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<Reserved> {
        let index = self.free.pop()?;
        let word = &self.slots[index as usize].word;
        // Popping the index made this thread the slot's only user.
        let generation = (word.load(Ordering::Relaxed) >> STATE_BITS).wrapping_add(1);
        word.store(
            ((generation & GENERATION_MASK) << STATE_BITS) | RESERVED,
            Ordering::Relaxed,
        );
        Some(Reserved(index))
    }

    /// Gives a reserved slot back unused.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        let word = &self.slots[reserved.0 as usize].word;
        word.store(
            (word.load(Ordering::Relaxed) & !STATE_MASK) | FREE,
            Ordering::Relaxed,
        );
        self.put_back(reserved.0);
    }

    /// Posts a send request in a reserved slot; on failure the slot is free again.
    #[inline]
    pub(crate) fn post_send(
        &self,
        reserved: Reserved,
        request: SendRequest<T>,
    ) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let mut elements = match SendElements::gather(&request) {
            Ok(elements) => elements,
            Err(error) => {
                self.cancel(reserved);
                return Err((error, request.into_memory()));
            }
        };
        let mut wr = elements.work_request(&request, self.id(&reserved));
        self.launch(&reserved, request.into_memory());
        // SAFETY: `elements` outlives the call. The memory is in the slot, where nobody can reach
        // it until `complete` wins it for a completion with this id, or the queue pair is destroyed.
        let posted = unsafe { self.queue_pair.post_send(&mut wr) };
        posted.map_err(|error| (error, self.withdraw(reserved)))
    }

    /// Posts a receive request in a reserved slot; on failure the slot is free again.
    #[inline]
    pub(crate) fn post_receive(&self, reserved: Reserved, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let mut elements = match ReceiveElements::scatter(&memory) {
            Ok(elements) => elements,
            Err(error) => {
                self.cancel(reserved);
                return Err((error, memory));
            }
        };
        let mut wr = elements.work_request(self.id(&reserved));
        self.launch(&reserved, memory);
        // SAFETY: as in `post_send`.
        let posted = unsafe { self.queue_pair.post_receive(&mut wr) };
        posted.map_err(|error| (error, self.withdraw(reserved)))
    }

    /// Takes the memory of the request with this id, once, and the index of its slot, which stays
    /// in use until [`Self::release`].
    #[inline]
    pub(crate) fn complete(&self, id: u64) -> Option<(u32, T)> {
        let own = self.tag.own(id)?;
        let index = (own & ((1 << INDEX_BITS) - 1)) as u32;
        let generation = (own >> INDEX_BITS) as u32;
        let slot = self.slots.get(index as usize)?;
        let (in_flight, done) = (
            (generation << STATE_BITS) | IN_FLIGHT,
            (generation << STATE_BITS) | DONE,
        );
        slot.word
            .compare_exchange(in_flight, done, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        // SAFETY: this thread made the step out of "in flight", which happens once a request; the
        // thread that posted it touches the slot no more.
        let memory = unsafe { (*slot.memory.get()).take() };
        memory.map(|memory| (index, memory))
    }

    /// Makes a completed slot free again; does nothing to a slot in any other state.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        let Some(slot) = self.slots.get(index as usize) else {
            return;
        };
        let word = slot.word.load(Ordering::Acquire);
        if word & STATE_MASK != DONE {
            return;
        }
        let free = (word & !STATE_MASK) | FREE;
        if slot
            .word
            .compare_exchange(word, free, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.put_back(index);
        }
    }

    /// The id of the request that goes into a reserved slot.
    #[inline]
    fn id(&self, reserved: &Reserved) -> u64 {
        let generation = self.slots[reserved.0 as usize].word.load(Ordering::Relaxed) >> STATE_BITS;
        self.tag
            .id((u64::from(generation) << INDEX_BITS) | u64::from(reserved.0))
    }

    /// Puts memory into a reserved slot and hands the slot to the device.
    #[inline]
    fn launch(&self, reserved: &Reserved, memory: T) {
        let slot = &self.slots[reserved.0 as usize];
        // SAFETY: a `Reserved` of this slot is in hand: no other thread touches it.
        unsafe { *slot.memory.get() = Some(memory) };
        let generation = slot.word.load(Ordering::Relaxed) >> STATE_BITS;
        slot.word
            .store((generation << STATE_BITS) | IN_FLIGHT, Ordering::Release);
    }

    /// Takes back the memory of a request that could not be posted, and frees the slot.
    #[cold]
    fn withdraw(&self, reserved: Reserved) -> T {
        let slot = &self.slots[reserved.0 as usize];
        // SAFETY: the request was refused, so no completion of it comes and no other thread can
        // step out of "in flight".
        let memory = unsafe { (*slot.memory.get()).take() };
        self.cancel(reserved);
        memory.expect("the memory of a refused request is in its slot")
    }

    #[inline]
    fn put_back(&self, index: u32) {
        let pushed = self.free.push(index);
        debug_assert!(pushed.is_ok(), "the queue has room for every index");
    }
}

impl<T: Send + 'static> Drop for Slots<T> {
    fn drop(&mut self) {
        let in_flight = |slot: &mut Slot<T>| *slot.word.get_mut() & STATE_MASK == IN_FLIGHT;
        if self.slots.iter_mut().any(in_flight) {
            self.queue_pair
                .abandon(Box::new(std::mem::take(&mut self.slots)));
        }
    }
}
