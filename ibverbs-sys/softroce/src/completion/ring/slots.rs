use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::place::{Lap, Place};
use super::sync::{AtomicPtr, AtomicU64, Ordering, UnsafeCell};

/// Room for an entry: a cache line, where the entry is as long as those of completion queues.
#[repr(align(64))]
pub(super) struct Slot<T> {
    /// Whose turn it is: [`Place::free`] or [`Place::full`] of the place that is next here.
    pub(super) turn: AtomicU64,
    entry: UnsafeCell<MaybeUninit<T>>,
}

impl<T: Copy> Slot<T> {
    fn new() -> Self {
        Self {
            turn: AtomicU64::new(Place::START.free()),
            entry: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    #[inline]
    pub(super) fn says(&self, turn: u64) -> bool {
        // With Acquire: what was done with the slot before its turn came is done.
        self.turn.load(Ordering::Acquire) == turn
    }

    #[inline]
    pub(super) fn say(&self, turn: u64) {
        self.turn.store(turn, Ordering::Release);
    }

    /// # Safety
    /// Nobody else uses the entry: the slot said that it is free for a place that the caller claimed, and
    /// does not say that it is full yet; or the caller holds the ends that it is between.
    #[inline]
    pub(super) unsafe fn write(&self, entry: T) {
        // SAFETY: the caller's promise.
        self.entry
            .with_mut(|place| unsafe { (*place).write(entry) });
    }

    /// # Safety
    /// There is one, and nobody writes another as long as the reference is used: the slot said that it is full for a place
    /// that the caller claimed, and does not say that it is free yet; or the caller holds the head, and the place is
    /// behind that.
    #[inline]
    pub(super) unsafe fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        // SAFETY: the caller's promise.
        self.entry
            .with(|place| look(unsafe { (*place).assume_init_ref() }))
    }
}

/// The slots of a ring, of which there may come to be more.
///
/// Threads look at slots without telling anybody, so none are freed before the ring is. Each array that is outgrown is
/// followed by one of twice the size or more, so all of them together are less than the last one.
pub(super) struct Table<T> {
    /// The last of `arrays`.
    first: AtomicPtr<Slot<T>>,
    /// The [`Lap`]: at most of the slots that there are.
    lap: AtomicU64,
    /// From [`Box::into_raw`]. Used by who holds the ring's head.
    arrays: UnsafeCell<Vec<NonNull<[Slot<T>]>>>,
}

// SAFETY: the pointers are to memory that is the table's own. Slots are used by atomics, and their entries by one thread at
// a time: see Slot::write and Slot::read.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above; `arrays` is used by who holds the ring's head.
unsafe impl<T: Send> Sync for Table<T> {}

impl<T: Copy> Table<T> {
    pub(super) fn new(length: usize) -> Self {
        let array = allocate(length);
        Self {
            first: AtomicPtr::new(array.cast().as_ptr()),
            lap: AtomicU64::new(Lap::of(length).0),
            arrays: UnsafeCell::new(vec![array]),
        }
    }

    /// The slots as they are now, for a place that was found in the ring before this call.
    #[inline]
    pub(super) fn slots(&self) -> Slots<'_, T> {
        // In this order: there are at least as many slots as a lap has.
        let lap = Lap(self.lap.load(Ordering::Acquire));
        Slots {
            first: self.first.load(Ordering::Acquire),
            lap,
            _table: PhantomData,
        }
    }

    /// Makes laps of this length from now on, in new memory if there is not enough. What slots say has to be set.
    ///
    /// # Safety
    /// The caller holds the ring's head.
    pub(super) unsafe fn set_length(&self, length: usize) -> Slots<'_, T> {
        self.arrays.with_mut(|arrays| {
            // SAFETY: who holds the head is alone with it, by the caller's promise.
            let arrays = unsafe { &mut *arrays };
            if arrays.iter().all(|array| array.len() < length) {
                let array = allocate(length.next_power_of_two());
                arrays.push(array);
                self.first.store(array.cast().as_ptr(), Ordering::Release);
            }
        });
        self.lap.store(Lap::of(length).0, Ordering::Release);
        self.slots()
    }
}

fn allocate<T: Copy>(length: usize) -> NonNull<[Slot<T>]> {
    let array: Box<[Slot<T>]> = (0..length).map(|_| Slot::new()).collect();
    // SAFETY: a box is not null.
    unsafe { NonNull::new_unchecked(Box::into_raw(array)) }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        self.arrays.with_mut(|arrays| {
            // SAFETY: nobody else has the table.
            for array in unsafe { &mut *arrays }.drain(..) {
                // SAFETY: from Box::into_raw, and gone from the list.
                drop(unsafe { Box::from_raw(array.as_ptr()) });
            }
        });
    }
}

/// Slots as a thread found them.
pub(super) struct Slots<'a, T> {
    first: *const Slot<T>,
    pub(super) lap: Lap,
    _table: PhantomData<&'a Table<T>>,
}

impl<'a, T> Slots<'a, T> {
    /// The slot of a place: one that was found in the ring before the slots were, or that was reckoned from such a
    /// one by their lap.
    #[inline]
    pub(super) fn of(&self, place: Place) -> &'a Slot<T> {
        // SAFETY: a place that was found has an index of the laps of its time, one that is reckoned of today's. There were
        // never fewer slots than a lap has, and never fewer than before; they are freed with the table.
        unsafe { &*self.first.add(place.index()) }
    }
}
