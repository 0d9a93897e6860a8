#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Allocator of byte ranges within a segment of an [`Arena`](super::Arena). Stores the free ranges
/// by their start, and merges adjacent free ranges.
#[derive(Debug)]
pub(super) struct RangeAllocator {
    free: BTreeMap<usize, usize>,
    length: usize,
}

impl RangeAllocator {
    /// Creates an allocator of byte ranges for a segment of `length` bytes. All bytes are free at
    /// first.
    pub(super) fn new(length: usize) -> Self {
        Self {
            free: BTreeMap::from([(0, length)]),
            length,
        }
    }

    /// Allocates `length` bytes (not 0) of the segment at the first free offset that is a multiple
    /// of `align` (a power of two). Returns the offset, or `None` if no free range is long enough.
    pub(super) fn allocate(&mut self, length: usize, align: usize) -> Option<usize> {
        let (start, end, place) = self.free.iter().find_map(|(&start, &extent)| {
            let end = start + extent;
            let place = start.checked_next_multiple_of(align)?;
            let fits = place <= end && length <= end - place;
            fits.then_some((start, end, place))
        })?;
        self.free.remove(&start);
        for (start, end) in [(start, place), (place + length, end)] {
            if start < end {
                self.free.insert(start, end - start);
            }
        }
        Some(place)
    }

    /// Frees the `length` bytes at `start`, a range that [`allocate`](Self::allocate) has
    /// allocated.
    pub(super) fn free(&mut self, start: usize, length: usize) {
        let (mut start, mut end) = (start, start + length);
        if let Some((&before, &extent)) = self.free.range(..start).next_back()
            && before + extent == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(extent) = self.free.remove(&end) {
            end += extent;
        }
        self.free.insert(start, end - start);
    }

    /// Returns whether all bytes of the segment are free, so that the segment can be unmapped.
    pub(super) fn are_all_free(&self) -> bool {
        self.free.get(&0) == Some(&self.length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RangeAllocator;

    #[test]
    fn a_freed_range_is_merged_with_its_neighbors() {
        let mut extents = RangeAllocator::new(4);
        let [a, b, c] = [(); 3].map(|()| extents.allocate(1, 1).unwrap());
        assert_eq!((a, b, c), (0, 1, 2));
        assert_eq!(extents.allocate(2, 1), None);
        extents.free(a, 1);
        extents.free(c, 1);
        assert_eq!(extents.allocate(3, 1), None, "the range between is taken");
        extents.free(b, 1);
        assert!(extents.are_all_free());
        assert_eq!(extents.allocate(4, 1), Some(0));
    }

    #[test]
    fn a_range_is_aligned_and_the_gap_before_it_stays_free() {
        let mut extents = RangeAllocator::new(16);
        assert_eq!(extents.allocate(1, 1), Some(0));
        assert_eq!(extents.allocate(8, 8), Some(8));
        assert_eq!(extents.allocate(8, 8), None);
        assert_eq!(extents.allocate(7, 1), Some(1));
    }

    proptest! {
        /// Checks that allocated ranges do not overlap, and that all bytes are free after all
        /// ranges were freed.
        #[test]
        fn no_range_is_allocated_twice(steps in prop::collection::vec((1_usize..40, 0_u32..5, any::<bool>()), 1..200)) {
            let mut extents = RangeAllocator::new(256);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (length, align, gives_back) in steps {
                if gives_back && !taken.is_empty() {
                    let (start, length) = taken.swap_remove(length % taken.len());
                    extents.free(start, length);
                } else if let Some(start) = extents.allocate(length, 1 << align) {
                    prop_assert!(start % (1 << align) == 0 && start + length <= 256);
                    for &(other, size) in &taken {
                        prop_assert!(start + length <= other || other + size <= start);
                    }
                    taken.push((start, length));
                }
                prop_assert_eq!(extents.are_all_free(), taken.is_empty());
            }
            for (start, length) in taken {
                extents.free(start, length);
            }
            prop_assert!(extents.are_all_free());
        }
    }
}
