//! Test data for large transfers: an endless sequence of pseudo-random bytes, equal in each run.

use std::sync::LazyLock;

use bytes::Bytes;

/// Length of the data, in bytes, after which they repeat. A prime, so that the checks detect lost
/// and repeated pieces of any usual length.
const PERIOD: usize = 1_048_573;

static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut table = Vec::with_capacity(2 * PERIOD);
    while table.len() < PERIOD {
        // A xorshift generator.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        table.push((state >> 32) as u8);
    }
    table.extend_from_within(..);
    table
});

/// Returns `len` bytes of the data, from the offset `start`.
///
/// # Panics
///
/// If `len` exceeds the period of the data, almost a MiB.
pub fn at(start: usize, len: usize) -> &'static [u8] {
    assert!(len <= PERIOD, "{len} bytes exceed the period of the data");
    &TABLE[start % PERIOD..][..len]
}

/// Returns the first `len` bytes of the data in chunks of at most `chunk` bytes.
pub fn chunks(len: usize, chunk: usize) -> impl Iterator<Item = Bytes> + Send {
    let starts = (0..len).step_by(chunk);
    starts.map(move |start| Bytes::from_static(at(start, chunk.min(len - start))))
}

/// Returns the first `len` bytes of the data.
pub fn bytes(len: usize) -> Bytes {
    chunks(len, PERIOD).collect::<Vec<_>>().concat().into()
}

/// Check that received bytes equal the test data, from its beginning. Counts the bytes that were
/// received so far.
#[derive(Debug, Default)]
pub struct Check {
    len: usize,
}

impl Check {
    /// Checks that `received` equals the next bytes of the data.
    ///
    /// # Panics
    ///
    /// If the bytes differ from the data.
    pub fn take(&mut self, received: &[u8]) {
        for part in received.chunks(PERIOD) {
            let expected = at(self.len, part.len());
            assert!(part == expected, "wrong data after {} bytes", self.len);
            self.len += part.len();
        }
    }

    /// Returns the number of checked bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if no bytes were checked yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
