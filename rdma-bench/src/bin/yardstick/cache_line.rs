//! Measures the round trip of a cache line between two processors.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::other::{spin, word};
use super::system::Shared;
use super::{Measured, Other, Role};

/// Number of round trips that one sample measures together. The number is small, so that other
/// programs disturb only a minority of the samples.
const TRIPS_PER_SAMPLE: u64 = 200;

/// Measures the round trip of a cache line between this process and a second process for about
/// `time`.
pub(crate) fn measure(time: Duration) -> anyhow::Result<Measured> {
    let mut other = Other::start(Role::Line, 0, [Stdio::null(), Stdio::inherit()])?;
    other.ready()?;
    let shared = other.shared();
    let mut samples = Vec::new();
    let mut turn = 0;
    let mut trips = |count: u64| -> anyhow::Result<f64> {
        let begun = Instant::now();
        for _ in 0..count {
            shared.store(word::LINE, turn + 1);
            turn += 2;
            spin(|| Ok((shared.load(word::LINE) == turn).then_some(())))?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / count as f64)
    };
    trips(TRIPS_PER_SAMPLE)?;
    let begun = Instant::now();
    while begun.elapsed() < time {
        samples.push(trips(TRIPS_PER_SAMPLE)?);
    }
    Measured::time(samples)
}

/// Runs the second process of the measurement. Whenever the word in the shared memory `shared` is
/// odd, replaces the word by the next even number.
pub(crate) fn answer(shared: &Shared) -> anyhow::Result<()> {
    shared.store(word::READY, 1);
    let mut turn = 1;
    loop {
        spin(|| Ok((shared.load(word::LINE) == turn).then_some(())))?;
        shared.store(word::LINE, turn + 1);
        turn += 2;
    }
}
