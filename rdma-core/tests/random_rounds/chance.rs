//! Random numbers that can be had again.

use std::ops::Range;

/// A xorshift generator.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        // Spread, so that neighbouring seeds begin far apart, and never zero.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number of the range.
    pub(crate) fn within(&mut self, range: Range<usize>) -> usize {
        let len = (range.end - range.start) as u64;
        range.start + (self.next() % len) as usize
    }

    /// Whether one of `of` times.
    pub(crate) fn one_in(&mut self, of: usize) -> bool {
        self.within(0..of) == 0
    }

    /// The place of an element of a list of this length, if it has any.
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
