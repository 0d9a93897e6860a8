//! [`Counts`]: the numbers of calls of a method, for the reflection service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of the calls of a method.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    started: AtomicU64,
    ended: AtomicU64,
}

impl Counts {
    /// Returns the numbers of the calls that were started, and of those that have ended.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        // In this order, so that no call seems to end before it was started.
        let ended = self.ended.load(Ordering::Acquire);
        (self.started.load(Ordering::Acquire), ended)
    }
}

/// Call that is counted as running until this value is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<Counts>);

impl Counted {
    pub(super) fn new(counts: &Arc<Counts>) -> Self {
        counts.started.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counts))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}
