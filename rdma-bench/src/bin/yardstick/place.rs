//! Pins the two processes of a measurement to different processors, the same ones in every
//! measurement.

use anyhow::Context;
use rustix::process::Signal;
use rustix::thread::CpuSet;

/// The side of a process in a measurement, which takes two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that measures.
    Near,
    /// The other process, which answers the measuring process.
    Far,
}

/// Pins this process to the processor of `side`. On a machine with one processor, both processes run
/// on that processor.
pub(crate) fn pin(side: Side) -> anyhow::Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None).context("asking for the processors")?;
    // The processor need not be in `allowed`, which this process has inherited from its parent.
    let stay_on = |processor| {
        let mut set = CpuSet::new();
        set.set(processor);
        if allowed == set {
            return Ok(());
        }
        rustix::thread::sched_setaffinity(None, &set)
            .with_context(|| format!("staying on processor {processor}"))
    };
    match side {
        Side::Near => stay_on(1).or_else(|_| stay_on(0)),
        Side::Far => stay_on(0),
    }
}

/// Makes the kernel kill this process when its parent ends for any reason.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("asking to end with the parent")
}
