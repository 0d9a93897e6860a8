//! [`CallCounters`]: counters of the calls of a method, for the reflection service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of started and ended calls of a method. The difference is the number of running calls.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    started: AtomicU64,
    ended: AtomicU64,
}

impl CallCounters {
    /// Returns the number of started calls and the number of ended calls, which is never higher.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        // `ended` is read first, so that it never exceeds `started`.
        let ended = self.ended.load(Ordering::Acquire);
        (self.started.load(Ordering::Acquire), ended)
    }
}

/// Guard that counts a call as running until it is dropped.
#[derive(Debug)]
pub(super) struct CountedCall(Arc<CallCounters>);

impl CountedCall {
    pub(super) fn new(counts: &Arc<CallCounters>) -> Self {
        counts.started.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(counts))
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}
