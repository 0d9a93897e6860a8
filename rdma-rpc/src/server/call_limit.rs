//! [`CallLimit`]: a limit of concurrent calls, for example of one method.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit of concurrent calls: the number of running calls, and the maximum.
#[derive(Debug)]
pub(crate) struct CallLimit {
    running: AtomicUsize,
    limit: usize,
}

impl CallLimit {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            running: AtomicUsize::new(0),
            limit,
        }
    }

    /// Counts a call until the returned permit is dropped. Returns `None` if the limit is reached.
    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<CallPermit> {
        let more = |running: usize| (running < self.limit).then(|| running + 1);
        let counted = self
            .running
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        counted.ok().map(|_| CallPermit(Arc::clone(self)))
    }
}

/// Permit to run a call. The call counts as running until the permit is dropped.
#[derive(Debug)]
pub(crate) struct CallPermit(Arc<CallLimit>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_admits_calls_up_to_its_maximum() {
        let limit = Arc::new(CallLimit::new(2));
        let first = limit.try_acquire();
        let _second = limit.try_acquire().unwrap();
        assert!(limit.try_acquire().is_none());
        drop(first);
        assert!(limit.try_acquire().is_some());
    }
}
