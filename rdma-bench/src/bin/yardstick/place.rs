//! Where the two processes run: on different processors, the same ones in every measurement.

use std::thread;

use anyhow::Context;
use rustix::process::Signal;
use rustix::thread::CpuSet;

/// One of the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The one that measures.
    Near,
    /// The one that answers.
    Far,
}

/// Keeps this process on the processor of its side. A machine with one processor has it do both.
pub(crate) fn pin(side: Side) -> anyhow::Result<()> {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let allowed = rustix::thread::sched_getaffinity(None).context("asking for the processors")?;
    // A process that this one started has one processor already: its side's is among all.
    let wanted = match side {
        Side::Near => 1.min(count - 1),
        Side::Far => 0,
    };
    let mut set = CpuSet::new();
    set.set(wanted);
    if allowed == set {
        return Ok(());
    }
    rustix::thread::sched_setaffinity(None, &set)
        .with_context(|| format!("staying on processor {wanted}"))
}

/// Ends this process when the one that started it does, however that comes to be.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("asking to end with the parent")
}
