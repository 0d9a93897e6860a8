//! A copy from private memory into memory that other processes can map.

use std::time::{Duration, Instant};

use super::Measured;
use super::system::Shared;

/// Copies the same bytes to the same place for about `time`, as a bandwidth test writes them.
pub(crate) fn measure(size: usize, time: Duration) -> anyhow::Result<Measured> {
    let target = Shared::with_bytes(size)?;
    let source = vec![0x5a_u8; size];
    // As many at once as take long beside a look at the clock.
    let batch = ((1 << 20) / size).clamp(1, 1000) as u64;
    for _ in 0..batch {
        target.fill(&source);
    }
    let (begun, mut count) = (Instant::now(), 0);
    loop {
        for _ in 0..batch {
            target.fill(&source);
        }
        count += batch;
        let elapsed = begun.elapsed();
        if elapsed >= time {
            return Ok(Measured::rate(count, elapsed.as_secs_f64()));
        }
    }
}
