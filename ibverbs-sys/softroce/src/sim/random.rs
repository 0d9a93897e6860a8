/// Random number generator with a seed: xoshiro256**, initialised by splitmix64. The crate
/// implements the algorithm itself, so that a seed gives the same schedule in every version.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

/// Returns the next number of the random number generator splitmix64 with the state `state`.
pub(crate) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// Creates the generator of the random stream with the number `stream` for the seed `seed`. The
    /// streams of a seed are independent: code that uses one stream can draw more numbers without
    /// changing the numbers of the other streams.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut start = stream;
        let mut state = seed ^ splitmix(&mut start);
        Self {
            state: std::array::from_fn(|_| splitmix(&mut state)),
        }
    }

    /// Returns the next 64 random bits of the generator.
    pub(crate) fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a random number from `low` to `high`, both inclusive.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        let count = (high - low).wrapping_add(1);
        if count == 0 {
            return self.bits();
        }
        // The result is the high word of the product. Some results are more frequent than others by
        // less than 2^-40 for all ranges used.
        low + ((u128::from(self.bits()) * u128::from(count)) >> 64) as u64
    }

    /// Returns a random number from 0 to `count` - 1.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.range(0, count as u64 - 1) as usize
    }

    /// Returns `true` with a probability of `per_million` in a million.
    pub(crate) fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.range(0, 999_999) < u64::from(per_million)
    }

    /// Returns `true` with a probability of `percent` in a hundred.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.chance(percent * 10_000)
    }

    /// Returns a random element of `choices`.
    pub(crate) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Returns a random number from 0 to `high` in which small numbers are frequent. First selects
    /// a random number of significant bits, where all numbers of bits are equally likely.
    pub(crate) fn magnitude(&mut self, high: u64) -> u64 {
        let bits = u64::from(64 - high.leading_zeros());
        let bound = 1u64.checked_shl(self.range(0, bits) as u32);
        let bound = bound.unwrap_or(u64::MAX).min(high);
        self.range(bound / 2, bound)
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, splitmix};

    /// Checks that both random number generators return the numbers that the authors of the
    /// generators published.
    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut state = 1_234_567;
        let numbers: [u64; 2] = std::array::from_fn(|_| splitmix(&mut state));
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        let numbers: [u64; 4] = std::array::from_fn(|_| random.bits());
        assert_eq!(
            numbers,
            [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]
        );
    }

    #[test]
    fn different_seeds_give_different_numbers() {
        let first = Random::new(1, 2).bits();
        assert_eq!(Random::new(1, 2).bits(), first);
        assert_ne!(Random::new(1, 3).bits(), first);
        assert_ne!(Random::new(2, 2).bits(), first);
    }

    #[test]
    fn numbers_are_in_their_ranges() {
        let mut random = Random::new(7, 0);
        let mut seen = [false; 4];
        for _ in 0..1000 {
            seen[random.range(3, 6) as usize - 3] = true;
            assert!(random.magnitude(1000) <= 1000);
            assert!(!random.chance(0));
            assert!(random.percent(100));
        }
        assert_eq!(seen, [true; 4]);
    }
}
