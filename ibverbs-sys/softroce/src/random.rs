//! Random numbers that other processes cannot predict, from the kernel's generator.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// A secret permutation of the numbers below a power of two: a Feistel network with random keys. A
/// program that knows some results cannot predict other results.
///
/// The keys are drawn once, so the computation of a result needs no system call.
#[derive(Clone)]
pub(crate) struct Permutation {
    keys: [u64; ROUNDS],
    /// Number of bits of each of the two halves into which the network splits a number.
    half: u32,
    /// Number of permuted numbers: every number is below this limit.
    limit: u32,
}

/// Number of rounds of the Feistel network that computes a permutation. Four rounds suffice with a
/// random round function (Luby and Rackoff). Eight rounds are used because the halves of a number
/// have only a few bits.
const ROUNDS: usize = 8;

impl Permutation {
    /// Creates a random permutation of the numbers below 2^`bits`. `bits` must be from 2 to 31.
    pub(crate) fn new(bits: u32) -> Self {
        debug_assert!((2..32).contains(&bits));
        Self {
            keys: words(),
            half: bits.div_ceil(2),
            limit: 1 << bits,
        }
    }

    /// Returns the number to which `number` is mapped. `family` selects one of many permutations
    /// with the same keys. The results of one permutation reveal nothing about the results of
    /// another permutation.
    pub(crate) fn apply(&self, family: u32, number: u32) -> u32 {
        let mut place = self.step(family, number);
        // For an odd number of bits, the network permutes twice as many numbers; results above the
        // limit are permuted again.
        while place >= self.limit {
            place = self.step(family, place);
        }
        place
    }

    fn step(&self, family: u32, number: u32) -> u32 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half & mask, number & mask);
        for key in self.keys {
            let round = mix(key ^ (u64::from(family) << 32 | u64::from(right)));
            (left, right) = (right, left ^ round as u32 & mask);
        }
        left << self.half | right
    }
}

impl std::fmt::Debug for Permutation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The keys are secret and not shown.
        f.debug_struct("Permutation").finish_non_exhaustive()
    }
}

/// Returns `N` random words from the kernel's generator, for secrets that other processes must not
/// guess.
pub(crate) fn words<const N: usize>() -> [u64; N] {
    let mut words = [0; N];
    for word in &mut words {
        *word = draw();
    }
    words
}

fn draw() -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            // Reads of this length are never split.
            Ok(count) if count == bytes.len() => return u64::from_ne_bytes(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel is older than 3.17, or a filter forbids the system call; the standard
            // library has other sources.
            Err(_) => return RandomState::new().hash_one(0_u8),
        }
    }
}

/// Mixes the bits of `word` so that each bit influences all bits of the result. Uses the output
/// function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
/// 2014).
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_maps_numbers_one_to_one() {
        for bits in [2, 5, 8, 15, 20] {
            let permutation = Permutation::new(bits);
            for family in 0..2 {
                let mut places: Vec<u32> = (0..1 << bits)
                    .map(|number| permutation.apply(family, number))
                    .collect();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..1 << bits));
            }
        }
    }

    /// Checks that the results of a [`Permutation`] depend on its random keys and on the parameter
    /// `family`, which selects one of many permutations. A good permutation would fail this test
    /// with a probability below 2^-60.
    #[test]
    fn keys_and_families_give_different_permutations() {
        let [one, other] = [(); 2].map(|()| Permutation::new(20));
        let same = |f: &dyn Fn(u32) -> bool| (0..4096).filter(|&number| f(number)).count();
        assert!(same(&|number| one.apply(0, number) == other.apply(0, number)) < 8);
        assert!(same(&|number| one.apply(0, number) == one.apply(1, number)) < 8);
        assert!(same(&|number| one.apply(0, number).abs_diff(one.apply(0, number + 1)) < 2) < 8);
    }

    #[test]
    fn random_words_differ() {
        let mut drawn = words::<64>().to_vec();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 64);
    }
}
