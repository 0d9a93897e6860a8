//! [`Deadlines`]: the deadlines of a connection's calls, on which one task sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Deadline of a call without one.
pub(crate) const NEVER: u64 = u64::MAX;

/// Earliest deadline of the calls of a connection. Each call keeps its own deadline in its slot,
/// and one task passes over the slots when the earliest deadline has come.
#[derive(Debug)]
pub(crate) struct Deadlines {
    epoch: Instant,
    /// Earliest deadline in microseconds since `epoch`.
    next: AtomicU64,
    changed: Notify,
}

impl Deadlines {
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            next: AtomicU64::new(NEVER),
            changed: Notify::new(),
        }
    }

    /// Returns the deadline that is `limit` after `now`, in microseconds since the epoch.
    pub(crate) fn after(&self, now: Instant, limit: Option<Duration>) -> u64 {
        let end = |limit| now.saturating_duration_since(self.epoch).checked_add(limit);
        let micros = |end: Duration| u64::try_from(end.as_micros()).ok();
        limit.and_then(end).and_then(micros).unwrap_or(NEVER)
    }

    /// Returns a deadline as a time; `None` without a deadline.
    pub(crate) fn time(&self, deadline: u64) -> Option<Instant> {
        let since = Duration::from_micros(deadline);
        (deadline != NEVER).then(|| self.epoch.checked_add(since))?
    }

    /// Adds a deadline, after it was stored in the slot of its call.
    pub(crate) fn add(&self, deadline: u64) {
        if deadline < self.next.load(Ordering::Relaxed)
            && deadline < self.next.fetch_min(deadline, Ordering::AcqRel)
        {
            self.changed.notify_one();
        }
    }

    /// Calls `expire` with the current time whenever the earliest deadline has come. `expire` ends
    /// the calls whose deadlines have passed, and returns the earliest deadline of the others.
    pub(crate) async fn run(self: &Arc<Self>, mut expire: impl FnMut(u64) -> u64) {
        loop {
            let next = self.next.load(Ordering::Acquire);
            match self.time(next) {
                Some(time) => tokio::select! {
                    () = sleep_until(time) => {
                        // A deadline that is added from here on is seen by the next turn, if
                        // `expire` does not see it.
                        self.next.store(NEVER, Ordering::Release);
                        let now = self.after(Instant::now(), Some(Duration::ZERO));
                        let left = expire(now);
                        self.next.fetch_min(left, Ordering::AcqRel);
                    }
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_times_after_the_epoch() {
        let deadlines = Deadlines::new();
        let now = Instant::now();
        let limit = Duration::from_secs(3);
        let deadline = deadlines.after(now, Some(limit));
        let time = deadlines.time(deadline).unwrap();
        assert!(now + limit - time < Duration::from_millis(1));
        assert_eq!(deadlines.after(now, None), NEVER);
        assert_eq!(deadlines.after(now, Some(Duration::MAX)), NEVER);
        assert_eq!(deadlines.time(NEVER), None);
    }

    #[tokio::test]
    async fn only_calls_whose_deadline_has_passed_expire() {
        let deadlines = Arc::new(Deadlines::new());
        let now = Instant::now();
        let soon = deadlines.after(now, Some(Duration::from_millis(5)));
        let later = deadlines.after(now, Some(Duration::from_millis(10)));
        let never = deadlines.after(now, Some(Duration::from_secs(3600)));
        let mut slots = vec![later, never, soon];
        slots.iter().for_each(|&deadline| deadlines.add(deadline));
        let (expired, done) = tokio::sync::oneshot::channel();
        let mut expired = Some(expired);
        let running = tokio::spawn(async move {
            let run = Arc::clone(&deadlines);
            run.run(move |now| {
                slots.retain(|&deadline| deadline > now);
                if slots.len() == 1 {
                    expired.take().map(|expired| expired.send(()));
                }
                slots.iter().copied().min().unwrap_or(NEVER)
            })
            .await;
        });
        done.await.unwrap();
        running.abort();
    }
}
