use std::fmt;
use std::ops::Add;

/// Packet sequence number (PSN): 24 bits with wraparound. Numbers are compared by their signed
/// distance (IBTA 9.7.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sequence(u32);

impl Sequence {
    /// Creates a sequence number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// Returns the sequence number as an integer below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the signed distance from `other` to this number, from -2^23 to 2^23 - 1. The
    /// distance is negative if this number precedes `other`.
    pub const fn distance(self, other: Self) -> i32 {
        // Shifts bit 23 to the sign bit, and back with sign extension.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Returns the next sequence number. The number after 2^24 - 1 is 0.
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

impl Add<u32> for Sequence {
    type Output = Self;

    fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Sequence;

    #[test]
    fn sequence_numbers_wrap_and_are_compared_within_half_of_their_range() {
        let last = Sequence::new(0xff_ffff);
        assert_eq!(last.next(), Sequence::new(0));
        assert_eq!(last.next().distance(last), 1);
        assert_eq!(last.distance(last.next()), -1);
        assert_eq!((last + 0x80_0000).distance(last), -0x80_0000);
        assert_eq!((last + 0x7f_ffff).distance(last), 0x7f_ffff);
    }
}
