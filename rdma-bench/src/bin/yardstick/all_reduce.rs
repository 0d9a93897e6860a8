//! Measures the memory copies and additions of a ring all-reduce, without any communication.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::Measured;

/// Number of vector elements that a thread copies in one step from another thread's vector into a
/// buffer. The thread then adds the copies to its own vector.
const PIECE: usize = 1 << 16;

/// Measures the time in which `ranks` threads perform the memory operations of one ring all-reduce
/// (the sum of all vectors). Each thread has a vector of `size` bytes.
///
/// The vectors of N threads have N chunks. In N - 1 steps, a thread copies a chunk of another
/// thread's vector and adds the copy to a chunk of its own. In N - 1 more steps, a thread replaces
/// a chunk by a copy.
pub(crate) fn measure(size: usize, ranks: usize, time: Duration) -> anyhow::Result<Measured> {
    let chunk = size / size_of::<f32>() / ranks.max(1);
    ensure!(ranks > 1 && chunk > 0, "{ranks} ranks with {size} bytes");
    let (barrier, is_over) = (Barrier::new(ranks), AtomicBool::new(false));
    let work = |rank: usize| {
        let mut vectors = Vectors::new(chunk * ranks);
        vectors.reduce(chunk);
        let (mut samples, begun) = (Vec::new(), Instant::now());
        loop {
            barrier.wait();
            let round = Instant::now();
            vectors.reduce(chunk);
            barrier.wait();
            samples.push(round.elapsed().as_nanos() as f64);
            if rank == 0 && begun.elapsed() >= time {
                is_over.store(true, Ordering::Relaxed);
            }
            barrier.wait();
            if is_over.load(Ordering::Relaxed) {
                return samples;
            }
        }
    };
    let work = &work;
    Measured::time(thread::scope(|scope| {
        for rank in 1..ranks {
            scope.spawn(move || work(rank));
        }
        work(0)
    }))
}

/// The memory of one thread (rank) of the all-reduce measurement: the vector of this thread, the
/// vector of the thread from which this thread copies, and room for a copy.
struct Vectors {
    own: Vec<f32>,
    /// Vector of the thread from which this thread copies chunks.
    other: Vec<f32>,
    /// Memory for the copy of a piece.
    piece: Vec<f32>,
}

impl Vectors {
    fn new(len: usize) -> Self {
        Self {
            own: vec![1.0; len],
            other: vec![2.0; len],
            piece: vec![0.0; PIECE],
        }
    }

    fn reduce(&mut self, chunk: usize) {
        let Self { own, other, piece } = self;
        let starts = (chunk..own.len()).step_by(chunk);
        for start in starts.clone() {
            let range = start..start + chunk;
            let pieces = own[range.clone()].chunks_mut(PIECE);
            for (own, other) in pieces.zip(other[range].chunks(PIECE)) {
                let copy = &mut piece[..other.len()];
                copy.copy_from_slice(other);
                for (own, other) in own.iter_mut().zip(&*copy) {
                    *own += other;
                }
            }
        }
        for start in starts {
            own[start..][..chunk].copy_from_slice(&other[start..][..chunk]);
        }
        black_box(own);
    }
}
