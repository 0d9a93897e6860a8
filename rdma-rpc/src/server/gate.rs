//! [`Gate`]: a limit of concurrent calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of calls that run, and its limit.
#[derive(Debug)]
pub(crate) struct Gate {
    running: AtomicUsize,
    limit: usize,
}

impl Gate {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            running: AtomicUsize::new(0),
            limit,
        }
    }

    /// Counts a call until the returned value is dropped. Returns `None` at the limit.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Entered> {
        let more = |running: usize| (running < self.limit).then(|| running + 1);
        let counted = self
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        counted.ok().map(|_| Entered(Arc::clone(self)))
    }
}

/// Counted call of a gate.
#[derive(Debug)]
pub(crate) struct Entered(Arc<Gate>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_admits_calls_up_to_its_limit() {
        let gate = Arc::new(Gate::new(2));
        let first = gate.enter();
        let _second = gate.enter().unwrap();
        assert!(gate.enter().is_none());
        drop(first);
        assert!(gate.enter().is_some());
    }
}
