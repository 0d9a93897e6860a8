//! Measures copies of bytes from private memory into memory that other processes can map.

use std::time::{Duration, Instant};

use super::Measured;
use super::system::Shared;

/// Measures copies of `size` bytes for about `time`. All copies have the same source and the same
/// target, as the writes of a bandwidth test have. Returns the time of a copy if `latency` is set,
/// else the number of copies per second.
pub(crate) fn measure(size: usize, latency: bool, time: Duration) -> anyhow::Result<Measured> {
    let target = Shared::with_bytes(size)?;
    let source = vec![0x5a_u8; size];
    let copy = |count: u64| {
        let begun = Instant::now();
        for _ in 0..count {
            target.fill(&source);
        }
        begun.elapsed()
    };
    // Copies per timestamp: enough to make the cost of the timestamp small in comparison.
    let batch = ((1 << 20) / size).clamp(1, 1000) as u64;
    copy(batch);
    let (begun, mut count, mut samples) = (Instant::now(), 0, Vec::new());
    loop {
        let taken = copy(batch);
        count += batch;
        if latency {
            samples.push(taken.as_nanos() as f64 / batch as f64);
        }
        let elapsed = begun.elapsed();
        if elapsed >= time {
            return match latency {
                true => Measured::time(samples),
                false => Ok(Measured::rate(count, elapsed.as_secs_f64())),
            };
        }
    }
}
