//! Pins the two processes of a measurement to different processors, which are the same in every
//! measurement.

use anyhow::Context;
use rustix::process::Signal;
use rustix::thread::CpuSet;

/// Side of a measurement with two processes: the measuring process or the answering process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that measures.
    Measuring,
    /// The other process, which answers the measuring process.
    Answering,
}

/// Pins this process to the processor that belongs to `side`, the measuring or the answering
/// process. If the machine has only one processor, both processes run on it.
pub(crate) fn pin(side: Side) -> anyhow::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None).context("reading the affinity")?;
    // The processor need not be in `allowed`, which this process has inherited from its parent.
    let pin_to = |processor| {
        let mut set = CpuSet::new();
        set.set(processor);
        if allowed == set {
            return Ok(());
        }
        rustix::thread::sched_setaffinity(None, &set)
            .with_context(|| format!("pinning to processor {processor}"))
    };
    match side {
        Side::Measuring => pin_to(1).or_else(|_| pin_to(0)),
        Side::Answering => pin_to(0),
    }
}

/// Makes the kernel kill this process when its parent ends for any reason.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("setting the parent-death signal")
}
