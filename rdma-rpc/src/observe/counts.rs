//! [`CallCounters`]: counters of the calls of a method, for the reflection service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Outcome;
use crate::reflection::CallCounts;

/// Numbers of started, ended and failed calls of a method, and the sum of their durations.
#[derive(Debug, Default)]
pub(crate) struct CallCounters {
    started: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
    /// Sum of the durations of the ended calls in microseconds.
    micros: AtomicU64,
}

impl CallCounters {
    /// Returns the numbers of calls of the method `name` so far, such as started and failed calls,
    /// in the form that the reflection service sends.
    pub(crate) fn read(&self, name: &str) -> CallCounts {
        // In the reverse order of the increments, so that the number of failed calls is never
        // higher than that of ended calls, which is never higher than that of started calls.
        let micros = self.micros.load(Ordering::Acquire);
        let failed = self.failed.load(Ordering::Acquire);
        let ended = self.ended.load(Ordering::Acquire);
        CallCounts {
            name: name.to_owned(),
            started: self.started.load(Ordering::Acquire),
            ended,
            failed,
            micros,
        }
    }
}

/// Guard that counts a call as running until the guard is dropped, and then as ended. If the guard
/// is dropped before [`Self::end`], the call counts as failed.
#[derive(Debug)]
pub(super) struct CountedCall {
    counters: Arc<CallCounters>,
    begun: Instant,
    is_ok: bool,
}

impl CountedCall {
    pub(super) fn new(counters: &Arc<CallCounters>) -> Self {
        counters.started.fetch_add(1, Ordering::AcqRel);
        Self {
            counters: Arc::clone(counters),
            begun: Instant::now(),
            is_ok: false,
        }
    }

    /// Counts the call as ended, and as failed unless the outcome is [`Outcome::Ok`].
    pub(super) fn end(mut self, outcome: Outcome) {
        self.is_ok = matches!(outcome, Outcome::Ok);
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let counters = &self.counters;
        counters.ended.fetch_add(1, Ordering::AcqRel);
        if !self.is_ok {
            counters.failed.fetch_add(1, Ordering::AcqRel);
        }
        let micros = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        counters.micros.fetch_add(micros, Ordering::AcqRel);
    }
}
