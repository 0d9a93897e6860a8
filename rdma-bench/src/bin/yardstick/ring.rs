//! Measures a ring in shared memory: one process copies private memory into the ring, and the other
//! copies the bytes out.

use std::process::Stdio;
use std::time::{Duration, Instant};

use super::other::{spin, word};
use super::system::Shared;
use super::{Measured, Other, Role};

/// Capacity of the ring in shared memory, in blocks of the measured size. More than one block, so
/// that one process can copy a block into the ring while the other copies a block out.
const DEPTH: u64 = 16;

/// Measures writes through a ring in shared memory: copies writes of `size` bytes into the ring for
/// about `time`. Returns the number of writes per second, counted until the second process has
/// copied all bytes out.
pub(crate) fn measure(size: usize, time: Duration) -> anyhow::Result<Measured> {
    let ends = [Stdio::null(), Stdio::inherit()];
    let mut other = Other::start_with(Role::Ring, size, ends, DEPTH as usize * size)?;
    other.ready()?;
    let shared = other.shared();
    let source = vec![0x5a_u8; size];
    let (begun, mut written) = (Instant::now(), 0_u64);
    while begun.elapsed() < time {
        wait_until_read(shared, (written + 1).saturating_sub(DEPTH))?;
        shared.copy_in(word::COUNT, offset(written, size), &source);
        written += 1;
        shared.store(word::PORT, written);
    }
    wait_until_read(shared, written)?;
    Ok(Measured::rate(written, begun.elapsed().as_secs_f64()))
}

/// Runs the second process of the measurement: copies each write of `size` bytes out of the ring in
/// `shared`, the memory that both processes share.
pub(crate) fn read(shared: &Shared, size: usize) -> anyhow::Result<()> {
    let mut target = vec![0_u8; size];
    shared.store(word::READY, 1);
    for number in 0.. {
        spin(|| Ok((shared.load(word::PORT) > number).then_some(())))?;
        shared.copy_out(word::COUNT, offset(number, size), &mut target);
        std::hint::black_box(&mut target);
        shared.store(word::LINE, number + 1);
    }
    Ok(())
}

/// Waits until the second process has copied the first `count` writes out of the ring.
fn wait_until_read(shared: &Shared, count: u64) -> anyhow::Result<()> {
    spin(|| Ok((shared.load(word::LINE) >= count).then_some(())))
}

/// Returns the offset in bytes, from the start of the ring, of the write with the number `number`.
/// Each write has `size` bytes; after [`DEPTH`] writes, the offsets begin again from 0.
fn offset(number: u64, size: usize) -> usize {
    (number % DEPTH) as usize * size
}
