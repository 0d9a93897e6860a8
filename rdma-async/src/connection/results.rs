//! Results of atomics (the previous values of remote memory), stored until their futures take them.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::sync::AtomicU64;

/// Maximum number of atomics of a connection whose futures exist; further atomics wait.
const PLACES: usize = 64;

/// Places for results. An atomic occupies a place from before its request until its future ends.
#[derive(Debug)]
pub(super) struct Results {
    /// Bit mask of the places in use.
    used: AtomicU64,
    /// Values of the places, allocated for the first atomic, since many connections use no atomics.
    values: OnceLock<Box<[AtomicU64; PLACES]>>,
}

/// Index of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ResultSlot(u8);

#[cfg(all(test, loom_models))]
impl ResultSlot {
    /// Place that is taken first if all are free.
    pub(super) const FIRST: Self = Self(0);
}

impl Results {
    pub(super) fn new() -> Self {
        Self {
            used: AtomicU64::new(0),
            values: OnceLock::new(),
        }
    }

    fn values(&self) -> &[AtomicU64; PLACES] {
        self.values
            .get_or_init(|| Box::new(array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Takes a free place, or returns `None` if all places are in use.
    pub(super) fn reserve(&self) -> Option<ResultSlot> {
        self.values();
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let index = (!used).trailing_zeros();
            if index as usize == PLACES {
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

    /// Stores the result of an atomic, which [`Self::value`] returns once the completion is
    /// visible.
    pub(super) fn set(&self, place: ResultSlot, value: u64) {
        self.values()[usize::from(place.0)].store(value, Ordering::Relaxed);
    }

    pub(super) fn value(&self, place: ResultSlot) -> u64 {
        self.values()[usize::from(place.0)].load(Ordering::Relaxed)
    }

    /// Frees a place.
    pub(super) fn release(&self, place: ResultSlot) {
        self.used.fetch_and(!(1 << place.0), Ordering::Release);
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_used_by_one_atomic_at_a_time() {
        let results = Results::new();
        let places: Vec<_> = std::iter::from_fn(|| results.reserve()).collect();
        assert_eq!(places.len(), PLACES);
        for (value, &place) in places.iter().enumerate() {
            results.set(place, value as u64);
        }
        for (value, &place) in places.iter().enumerate() {
            assert_eq!(results.value(place), value as u64);
        }
        results.release(places[17]);
        assert_eq!(results.reserve(), Some(places[17]));
        assert_eq!(results.reserve(), None);
    }
}
