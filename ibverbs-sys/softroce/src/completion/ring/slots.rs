use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::position::{Lap, Position};
use super::sync::{AtomicPtr, AtomicU64, Ordering, UnsafeCell};

/// Slot of the ring of entries: memory for one entry, and its state. A slot for a completion queue
/// entry fills one cache line.
#[repr(align(64))]
pub(super) struct Slot<T> {
    /// State word: [`Position::free`] or [`Position::full`] of the position for which the slot is
    /// used at present.
    pub(super) turn: AtomicU64,
    entry: UnsafeCell<MaybeUninit<T>>,
}

impl<T: Copy> Slot<T> {
    fn new() -> Self {
        Self {
            turn: AtomicU64::new(Position::START.free()),
            entry: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    #[inline]
    pub(super) fn has_turn(&self, turn: u64) -> bool {
        // `Acquire`: what other threads did with the slot before they set this state is visible.
        self.turn.load(Ordering::Acquire) == turn
    }

    #[inline]
    pub(super) fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Release);
    }

    /// Writes `entry` to the memory of this ring slot.
    ///
    /// # Safety
    /// No other thread may use the slot's entry. One of two conditions must hold:
    ///
    /// * The caller has reserved the free slot for its entry, and has not marked the slot as full
    ///   yet.
    /// * The caller has locked the ring for removing entries. If the slot is not between head and
    ///   tail, the caller has locked the ring for adding entries too.
    #[inline]
    pub(super) unsafe fn write(&self, entry: T) {
        // SAFETY: by the contract of this function, no other thread uses the entry.
        self.entry
            .with_mut(|place| unsafe { (*place).write(entry) });
    }

    /// Calls `look` with the entry in this ring slot, and returns the result of `look`.
    ///
    /// # Safety
    /// The slot must contain an entry, and no thread may write to the slot while the reference is
    /// used. One of two conditions must hold:
    ///
    /// * The caller has reserved the full slot for removal, and has not marked the slot as free
    ///   yet.
    /// * The caller has locked the ring for removing entries, and the entry was not removed.
    #[inline]
    pub(super) unsafe fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        // SAFETY: by the contract of this function, the slot contains an entry that no other thread
        // writes.
        self.entry
            .with(|place| look(unsafe { (*place).assume_init_ref() }))
    }
}

/// Memory of the slots of a ring. The number of slots in use can change while threads read slots.
///
/// To add slots, a larger array is allocated. A thread may still be reading a slot of an earlier
/// array, so all arrays are freed only together with the ring. Each array is larger than the
/// previous one, and the length of each further array is a power of two. So all earlier arrays
/// together are smaller than the last one.
pub(super) struct Table<T> {
    /// First slot of the last array in `arrays`.
    first: AtomicPtr<Slot<T>>,
    /// Current [`Lap`] (number of slots in use), at most the length of the last array.
    lap: AtomicU64,
    /// All arrays that were allocated, as made by [`Box::into_raw`]. Used only by a thread that
    /// holds the ring's head.
    arrays: UnsafeCell<Vec<NonNull<[Slot<T>]>>>,
}

// SAFETY: the table owns the memory behind its pointers. The state words of slots are atomics, and
// an entry is used by one thread at a time, as the contracts of `Slot::write` and `Slot::read`
// require.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: the state words of slots are atomics, and an entry is used by one thread at a time, as
// the contracts of `Slot::write` and `Slot::read` require; `arrays` is used only by a thread that
// holds the ring's head.
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

    /// Returns the slots that the ring uses at present. The ring may grow at any time. So a caller
    /// that needs the slot of the head or the tail must read the head or the tail before this call.
    /// The returned slots then include this slot.
    #[inline]
    pub(super) fn slots(&self) -> Slots<'_, T> {
        // The lap is loaded first, so there are at least as many slots as the lap has.
        let lap = Lap(self.lap.load(Ordering::Acquire));
        Slots {
            first: self.first.load(Ordering::Acquire),
            lap,
            _table: PhantomData,
        }
    }

    /// Sets the number of slots that the ring uses to `length`, and returns the slots. Allocates
    /// memory if the table has too few slots. The caller must then mark every slot as free or full
    /// ([`Slot::turn`]).
    ///
    /// # Safety
    /// The caller must have exclusive control of the ring's head, which only one thread can have at
    /// a time.
    pub(super) unsafe fn set_length(&self, length: usize) -> Slots<'_, T> {
        self.arrays.with_mut(|arrays| {
            // SAFETY: the caller holds the head, so no other thread uses `arrays`.
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
    // SAFETY: the pointer of a box is not null.
    unsafe { NonNull::new_unchecked(Box::into_raw(array)) }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        self.arrays.with_mut(|arrays| {
            // SAFETY: `&mut self` proves that no other thread uses the table.
            for array in unsafe { &mut *arrays }.drain(..) {
                // SAFETY: the pointer is from `Box::into_raw`, and was removed from the list, so it
                // is freed once.
                drop(unsafe { Box::from_raw(array.as_ptr()) });
            }
        });
    }
}

/// Slots of a ring at the time when [`Table::slots`] was called. If the ring then grows, these
/// slots stay allocated until the ring is dropped.
pub(super) struct Slots<'a, T> {
    first: *const Slot<T>,
    pub(super) lap: Lap,
    _table: PhantomData<&'a Table<T>>,
}

impl<'a, T> Slots<'a, T> {
    /// Returns the slot at the position `place`. The caller must have read the head or the tail of
    /// the ring before the call of [`Table::slots`]. `place` must be this head or tail, or a
    /// position that was computed from it with the number of slots in [`Slots::lap`].
    #[inline]
    pub(super) fn of(&self, place: Position) -> &'a Slot<T> {
        // SAFETY: the index of such a position is below the length of a present or earlier lap.
        // There are at least as many slots as any lap so far has had, because the number of slots
        // never decreases. The slots are freed only with the table.
        unsafe { &*self.first.add(place.index()) }
    }
}
