//! The round trip of a wakeup between two processes, by eventfds.

use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::EventfdFlags;

use super::other::word;
use super::system::Shared;
use super::{Measured, Other, Role};

/// Measures the round trip of a wakeup between this process and another for about `time`. Both
/// processes sleep while they wait.
pub(crate) fn measure(time: Duration) -> anyhow::Result<Measured> {
    let make = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC).context("an eventfd");
    let (there, back) = (make()?, make()?);
    let ends = [there.try_clone()?, back.try_clone()?].map(Stdio::from);
    let mut other = Other::start(Role::Wake, 0, ends)?;
    other.ready()?;
    let mut samples = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let sent = Instant::now();
        wake(&there)?;
        sleep(&back)?;
        samples.push(sent.elapsed().as_nanos() as f64);
    }
    Measured::time(samples)
}

/// Runs the other process of the measurement, whose standard input and output are the eventfds:
/// answers every wakeup with a wakeup.
pub(crate) fn answer(shared: &Shared) -> anyhow::Result<()> {
    let (there, back) = (io::stdin(), io::stdout());
    shared.store(word::READY, 1);
    loop {
        sleep(&there)?;
        wake(&back)?;
    }
}

fn wake(event: impl AsFd) -> anyhow::Result<()> {
    rustix::io::write(event, &1_u64.to_ne_bytes()).context("waking the other end")?;
    Ok(())
}

fn sleep(event: impl AsFd) -> anyhow::Result<()> {
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).context("waiting for the other end")?;
    Ok(())
}
