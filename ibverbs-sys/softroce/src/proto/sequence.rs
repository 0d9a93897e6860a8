use std::fmt;
use std::ops::Add;

/// A packet sequence number: 24 bits that wrap, compared within a half circle (IBTA 9.7.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sequence(u32);

impl Sequence {
    /// The number of the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// How far this is after `other`: negative if it is before it; between -2^23 and 2^23 - 1.
    pub const fn distance(self, other: Self) -> i32 {
        // Moves bit 23 to the sign, and back with its copies.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// The number after this one.
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
    fn wraps_and_is_compared_within_a_half_circle() {
        let last = Sequence::new(0xff_ffff);
        assert_eq!(last.next(), Sequence::new(0));
        assert_eq!(last.next().distance(last), 1);
        assert_eq!(last.distance(last.next()), -1);
        assert_eq!((last + 0x80_0000).distance(last), -0x80_0000);
        assert_eq!((last + 0x7f_ffff).distance(last), 0x7f_ffff);
    }
}
