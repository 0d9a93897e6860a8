//! Script of operations, which both ends compute from the same seed.

/// Length in bytes of the longest message, of the target's memory for writes, and of its memory for
/// reads behind that.
pub(crate) const REGION: usize = 1 << 20;

/// Offset of the target's eight bytes for atomics.
pub(crate) const COUNTER: usize = 2 * REGION;

/// Seed of the bytes that are read.
pub(crate) const READABLE: u32 = 7;

/// Operation of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// Length in bytes.
    pub(crate) length: usize,
    /// Offset in the target's memory for writes or for reads.
    pub(crate) offset: usize,
    /// Seed of the bytes and the immediate data.
    pub(crate) seed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    CompareSwap,
    FetchAdd,
}

impl Kind {
    /// Returns whether this operation uses a receive request of the target.
    pub(crate) fn is_received(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImmediate | Self::WriteImmediate
        )
    }
}

/// Random number generator; the same seed gives the same numbers on all machines.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number (splitmix64).
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns `count` operations.
pub(crate) fn operations(seed: u64, count: usize, small: bool) -> Vec<Operation> {
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| {
            let kind = match random.below(14) {
                0..3 => Kind::Send,
                3..5 => Kind::SendImmediate,
                5..8 => Kind::Write,
                8 => Kind::WriteImmediate,
                9..12 => Kind::Read,
                12 => Kind::CompareSwap,
                _ => Kind::FetchAdd,
            };
            let length = match kind {
                Kind::CompareSwap | Kind::FetchAdd => 8,
                _ => length(&mut random, small),
            };
            Operation {
                kind,
                length,
                offset: random.below(REGION - length + 1),
                seed: random.next() as u32,
            }
        })
        .collect()
}

/// Returns a length: often close to a multiple of a packet's length, rarely the longest possible.
fn length(random: &mut Random, small: bool) -> usize {
    let most = if small { 64 << 10 } else { REGION };
    match random.below(200) {
        0..20 => 0,
        20..80 => random.below(256),
        80..120 => 1024 * (1 + random.below(8)) + random.below(3) - 1,
        120..190 => random.below(4097),
        190..199 => random.below(most / 16),
        _ => most - random.below(2),
    }
}

/// Fills `bytes` with the sequence of `seed`.
pub(crate) fn fill(bytes: &mut [u8], seed: u32) {
    let mut random = Random::new(u64::from(seed));
    for chunk in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Returns the first index at which `bytes` differs from the sequence of `seed`.
pub(crate) fn difference(bytes: &[u8], seed: u32) -> Option<usize> {
    let mut wanted = vec![0; bytes.len()];
    fill(&mut wanted, seed);
    (bytes != wanted).then(|| {
        bytes
            .iter()
            .zip(&wanted)
            .take_while(|(a, b)| a == b)
            .count()
    })
}
