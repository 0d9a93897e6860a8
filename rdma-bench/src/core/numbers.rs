//! Finding the queue pair of a completion.

/// A table from the numbers of queue pairs to their positions in a list.
///
/// A lookup masks the number and loads one entry: nothing is hashed, and no entry is compared.
#[derive(Debug)]
pub(super) struct Numbers {
    mask: u32,
    positions: Vec<u32>,
}

impl Numbers {
    /// Marks an entry that no number has.
    const NONE: u32 = u32::MAX;

    /// Queue pair numbers have this many bits.
    const BITS: u32 = 24;

    /// Makes the smallest table in which every number has an entry of its own. Devices number their
    /// queue pairs one after the other, so that the table is about as long as the list.
    ///
    /// # Panics
    ///
    /// If two numbers are equal.
    pub(super) fn new(numbers: impl IntoIterator<Item = u32>) -> Self {
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let least = numbers.len().next_power_of_two().trailing_zeros();
        (least..=Self::BITS)
            .find_map(|bits| Self::with_mask(&numbers, (1 << bits) - 1))
            .expect("the queue pairs of a device have different numbers")
    }

    /// Makes the table of the numbers under a mask, unless two of them are equal there.
    fn with_mask(numbers: &[u32], mask: u32) -> Option<Self> {
        let mut positions = vec![Self::NONE; mask as usize + 1];
        for (position, number) in numbers.iter().enumerate() {
            let entry = &mut positions[(number & mask) as usize];
            if *entry != Self::NONE {
                return None;
            }
            *entry = position as u32;
        }
        Some(Self { mask, positions })
    }

    /// Returns the position of the queue pair `number`, which must be in the list. For any other
    /// number the result may be the position of another queue pair, or one past the list's end.
    #[inline]
    pub(super) fn position(&self, number: u32) -> usize {
        self.positions[(number & self.mask) as usize] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_are_found(list: &[u32]) -> Numbers {
        let numbers = Numbers::new(list.iter().copied());
        for (position, number) in list.iter().enumerate() {
            assert_eq!(numbers.position(*number), position, "{list:?}");
        }
        numbers
    }

    #[test]
    fn numbers_in_a_row_need_no_more_entries_than_numbers() {
        assert_eq!(all_are_found(&[0xdfa5d]).positions.len(), 1);
        let row: Vec<u32> = (0xdfa5d..0xdfa5d + 256).collect();
        assert_eq!(all_are_found(&row).positions.len(), 256);
    }

    #[test]
    fn numbers_that_differ_in_high_bits_alone_are_told_apart() {
        all_are_found(&[0x10, 0x800010, 0x400010]);
    }
}
