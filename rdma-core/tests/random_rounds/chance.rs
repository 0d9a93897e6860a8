//! Reproducible random numbers.

use std::ops::Range;

/// Xorshift generator.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        // The seed is spread, so that close seeds give different numbers, and is never zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number of the range.
    pub(crate) fn within(&mut self, range: Range<usize>) -> usize {
        let len = (range.end - range.start) as u64;
        range.start + (self.next() % len) as usize
    }

    /// Returns `true` with a probability of 1 in `of`.
    pub(crate) fn one_in(&mut self, of: usize) -> bool {
        self.within(0..of) == 0
    }

    /// Returns a random index into a list of this length, or `None` if it is empty.
    pub(crate) fn place(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.within(0..len))
    }

    /// Puts a list into random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.within(0..last + 1));
        }
    }
}
