//! [`Chance`]: random numbers that a seed repeats.

/// Returns the seed in the environment variable `SEED`, or 1.
pub(crate) fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |text| text.parse().expect("a number"))
}

/// Generator of random numbers (xorshift64*).
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        let seed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Returns a number of `least` or more, and less than `end`.
    pub(crate) fn within(&mut self, least: u64, end: u64) -> u64 {
        least + self.next() % (end - least)
    }
}
