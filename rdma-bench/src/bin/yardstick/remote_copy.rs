//! Measures writes to the memory of another process by `process_vm_writev`.

use std::io::{self, Read};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::other::word;
use super::system::{self, Shared};
use super::{Measured, Other, Role};

/// Measures `process_vm_writev`: writes the same bytes to the same address of the second process
/// for about `time`. Returns the time of a write if `latency` is set, else the number of writes per
/// second.
pub(crate) fn measure(size: usize, latency: bool, time: Duration) -> anyhow::Result<Measured> {
    let mut other = Other::start(Role::Memory, size, [Stdio::piped(), Stdio::inherit()])?;
    let address = other.ready()?;
    let process = other.id();
    let source = vec![0x5a_u8; size];
    let write = |count: u64| -> anyhow::Result<Duration> {
        let begun = Instant::now();
        for _ in 0..count {
            system::write_remote(process, address, &source).context("process_vm_writev")?;
        }
        Ok(begun.elapsed())
    };
    let batch = if size > 8192 { 1 } else { 16 };
    write(batch)?;
    let (begun, mut count, mut samples) = (Instant::now(), 0, Vec::new());
    loop {
        let taken = write(batch)?;
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

/// Runs the process to whose memory the measuring process writes: provides `size` bytes, stores
/// their address in the shared memory `shared`, and sleeps until its standard input is closed.
pub(crate) fn offer(shared: &Shared, size: usize) -> anyhow::Result<()> {
    let memory = vec![1_u8; size];
    shared.store(word::READY, memory.as_ptr() as u64);
    // No byte is ever sent: the read returns when the input is closed.
    let _ = io::stdin().read(&mut [0])?;
    drop(memory);
    Ok(())
}
