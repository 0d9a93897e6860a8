//! Pins the two processes of a measurement to different processors, the same ones in every
//! measurement.

use std::thread;

use anyhow::Context;
use rustix::process::Signal;
use rustix::thread::CpuSet;

/// The two processes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that measures.
    Measuring,
    /// The other process, which answers the measuring process.
    Answering,
}

/// Pins this process to the processor of `side`. If the machine has only one processor, both
/// processes run on it.
pub(crate) fn pin(side: Side) -> anyhow::Result<()> {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let allowed = rustix::thread::sched_getaffinity(None).context("reading the affinity")?;
    // A child inherits the affinity of its parent, so the processor of its side need not be in
    // `allowed`.
    let wanted = match side {
        Side::Measuring => 1.min(count - 1),
        Side::Answering => 0,
    };
    let mut set = CpuSet::new();
    set.set(wanted);
    if allowed == set {
        return Ok(());
    }
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("pinning to processor {wanted}"))
}

/// Makes the kernel kill this process when its parent ends for any reason.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("setting the parent-death signal")
}
