//! [`Vector`]: the vector of a rank, in registered memory.

use std::alloc::Layout;

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RdmaDevice};

/// Size of an element of a vector, in bytes.
const ELEMENT: usize = size_of::<f32>();

/// Vector of `f32` numbers, divided into chunks of equal length, one for each rank. Each chunk
/// consists of pieces of registered memory, which are sent as one message each.
#[derive(Debug)]
pub(crate) struct Vector {
    chunks: Vec<Vec<LocalMr>>,
}

impl Vector {
    /// Creates the vector of a rank, with one chunk for each of `ranks` ranks. A chunk consists of
    /// pieces of at most `piece` elements.
    pub(crate) fn of_rank(
        device: &RdmaDevice,
        rank: usize,
        ranks: usize,
        elements: usize,
        piece: usize,
    ) -> anyhow::Result<Self> {
        let share = elements / ranks;
        anyhow::ensure!(
            share > 0 && share * ranks == elements,
            "{elements} elements cannot be divided into {ranks} equal chunks"
        );
        let chunk = |chunk: usize| {
            let starts = (chunk * share..(chunk + 1) * share).step_by(piece);
            let piece = |start: usize| {
                let len = piece.min((chunk + 1) * share - start);
                let mut piece = device.alloc_local_mr_stale(Layout::array::<f32>(len)?)?;
                let elements = piece.as_mut_slice().chunks_exact_mut(ELEMENT);
                for (at, element) in elements.enumerate() {
                    element.copy_from_slice(&value(rank, start + at).to_ne_bytes());
                }
                Ok(piece)
            };
            starts.map(piece).collect()
        };
        let chunks = (0..ranks).map(chunk).collect::<anyhow::Result<_>>()?;
        Ok(Self { chunks })
    }

    /// Returns the pieces of the chunk `read`, and the pieces of the chunk `written` for
    /// modification. The two chunks must differ.
    pub(crate) fn two_chunks(
        &mut self,
        read: usize,
        written: usize,
    ) -> (&[LocalMr], &mut [LocalMr]) {
        let two = self.chunks.get_disjoint_mut([read, written]);
        let [read, written] = two.expect("two different chunks");
        (read, written)
    }

    /// Checks that the vector is the sum of the initial vectors of all ranks after `rounds`
    /// reductions. Each reduction after the first multiplies the vector by `ranks`.
    pub(crate) fn check(&self, ranks: usize, rounds: u32) -> anyhow::Result<()> {
        let factor = (ranks as f32).powi(rounds as i32 - 1);
        let pieces = self.chunks.iter().flatten();
        let elements = pieces.flat_map(|piece| piece.as_slice().chunks_exact(ELEMENT));
        for (at, bytes) in elements.enumerate() {
            let sum: f32 = (0..ranks).map(|rank| value(rank, at)).sum();
            let (found, expected) = (f32::from_ne_bytes(bytes.try_into()?), sum * factor);
            // The sums of the first reduction are whole numbers, so their tolerance is small.
            let is_right = (found - expected).abs() <= expected * 1e-5;
            anyhow::ensure!(is_right, "element {at} is {found} instead of {expected}");
        }
        Ok(())
    }
}

/// Returns an element of the initial vector of a rank. The elements are small integers, so that
/// their sums are exact.
fn value(rank: usize, at: usize) -> f32 {
    ((at * 31 + rank * 7) % 1009) as f32
}

/// Adds each element of `other` to the element of `own` at the same place.
pub(crate) fn add(own: &mut LocalMr, other: &LocalMr) {
    let own = own.as_mut_slice().chunks_exact_mut(ELEMENT);
    let other = other.as_slice().chunks_exact(ELEMENT);
    for (own, other) in own.zip(other) {
        let number = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let sum = number(own) + number(other);
        own.copy_from_slice(&sum.to_ne_bytes());
    }
}
