//! Results of atomic operations (the previous values of remote memory), stored until the futures
//! take them.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::sync::AtomicU64;

/// Number of slots for the results of atomic operations on a connection. Each atomic operation
/// occupies a slot while its future exists, and further operations wait for a free slot. Dropping
/// the future frees the slot, even if the operation is still in flight. Equal to the number of bits
/// of [`Results::used`], which contains one bit for each slot.
const SLOTS: usize = 64;

/// Slots for the results of atomic operations. An operation occupies a slot from before its
/// submission until its future has taken the result or is dropped.
#[derive(Debug)]
pub(super) struct Results {
    /// Bit mask of the slots that are in use.
    used: AtomicU64,
    /// Values of the slots. Allocated by the first atomic operation, because many connections
    /// perform none.
    values: OnceLock<Box<[AtomicU64; SLOTS]>>,
}

/// Index of a slot in [`Results`], in which the result of an atomic operation is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResultSlot(u8);

#[cfg(all(test, loom_models))]
impl ResultSlot {
    /// First slot for the result of an atomic operation: the slot that [`Results::reserve`] returns
    /// if all slots are free.
    pub(super) const FIRST: Self = Self(0);
}

impl Results {
    pub(super) fn new() -> Self {
        Self {
            used: AtomicU64::new(0),
            values: OnceLock::new(),
        }
    }

    fn values(&self) -> &[AtomicU64; SLOTS] {
        self.values
            .get_or_init(|| Box::new(array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Reserves a free slot, in which the result of an atomic operation is stored later. Returns
    /// `None` if all slots are in use.
    pub(super) fn reserve(&self) -> Option<ResultSlot> {
        self.values();
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let index = (!used).trailing_zeros();
            if index as usize == SLOTS {
                return None;
            }
            let taken = used | 1 << index;
            match self
                .used
                .compare_exchange_weak(used, taken, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(ResultSlot(index as u8)),
                Err(now) => used = now,
            }
        }
    }

    /// Stores the result of an atomic operation in its slot. The caller must call this function
    /// before it publishes the end of the request. The future then reads the result by
    /// [`Self::value`].
    pub(super) fn set(&self, slot: ResultSlot, value: u64) {
        self.values()[usize::from(slot.0)].store(value, Ordering::Relaxed);
    }

    /// Returns the result of an atomic operation (the previous value of the remote memory) that
    /// [`Self::set`] has stored in `slot`.
    pub(super) fn value(&self, slot: ResultSlot) -> u64 {
        self.values()[usize::from(slot.0)].load(Ordering::Relaxed)
    }

    /// Frees `slot`, so that another atomic operation can store its result there.
    pub(super) fn release(&self, slot: ResultSlot) {
        self.used.fetch_and(!(1 << slot.0), Ordering::Release);
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_is_used_by_one_atomic_operation_at_a_time() {
        let results = Results::new();
        let slots: Vec<_> = std::iter::from_fn(|| results.reserve()).collect();
        assert_eq!(slots.len(), SLOTS);
        for (value, &slot) in slots.iter().enumerate() {
            results.set(slot, value as u64);
        }
        for (value, &slot) in slots.iter().enumerate() {
            assert_eq!(results.value(slot), value as u64);
        }
        results.release(slots[17]);
        assert_eq!(results.reserve(), Some(slots[17]));
        assert_eq!(results.reserve(), None);
    }
}
