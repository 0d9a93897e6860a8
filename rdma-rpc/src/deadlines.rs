//! [`Deadlines`]: the timer for the deadlines of a connection's calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Deadline of a call without a time limit. The highest value, so that comparisons of deadlines
/// need no special case.
pub(crate) const NO_DEADLINE: u64 = u64::MAX;

/// Timer for the calls of a connection. Each running call, except a one-way call, has a slot that
/// contains its deadline. One task sleeps until the earliest deadline, and then checks all slots.
#[derive(Debug)]
pub(crate) struct Deadlines {
    /// Time at which the connection was created.
    epoch: Instant,
    /// Earliest deadline in microseconds since `epoch`.
    next: AtomicU64,
    /// Wakes the timer's task when `next` has become earlier.
    changed: Notify,
}

impl Deadlines {
    pub(crate) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            next: AtomicU64::new(NO_DEADLINE),
            changed: Notify::new(),
        }
    }

    /// Returns the time `limit` after `now`, as a deadline in microseconds since the creation of
    /// the connection. Returns [`NO_DEADLINE`] if `limit` is `None` or too long.
    pub(crate) fn after(&self, now: Instant, limit: Option<Duration>) -> u64 {
        let end = |limit| now.saturating_duration_since(self.epoch).checked_add(limit);
        limit.and_then(end).map_or(NO_DEADLINE, |end| {
            // Arithmetic of 64 bits is faster than that of `Duration::as_micros`.
            let micros = end.as_secs().saturating_mul(1_000_000);
            micros.saturating_add(end.subsec_micros().into())
        })
    }

    /// Converts `deadline`, in microseconds since the creation of the connection, to an
    /// [`Instant`]. Returns `None` for [`NO_DEADLINE`], and for a time that an [`Instant`] cannot
    /// represent.
    pub(crate) fn time(&self, deadline: u64) -> Option<Instant> {
        let since = Duration::from_micros(deadline);
        (deadline != NO_DEADLINE).then(|| self.epoch.checked_add(since))?
    }

    /// Makes the timer end a call at the time `deadline`, in microseconds since the creation of the
    /// connection. The caller must have stored the deadline in the slot of the call. Wakes the
    /// timer's task only if this deadline is the earliest.
    pub(crate) fn add(&self, deadline: u64) {
        if deadline < self.next.load(Ordering::Relaxed)
            && deadline < self.next.fetch_min(deadline, Ordering::AcqRel)
        {
            self.changed.notify_one();
        }
    }

    /// Calls `expire` with the current time whenever the earliest deadline has passed. `expire`
    /// must end the calls whose deadlines have passed, and return the earliest remaining deadline.
    /// Times are in microseconds since the creation of the connection. Never returns.
    pub(crate) async fn run(self: &Arc<Self>, mut expire: impl FnMut(u64) -> u64) {
        loop {
            let next = self.next.load(Ordering::Acquire);
            match self.time(next) {
                Some(time) => tokio::select! {
                    () = sleep_until(time) => {
                        // If `expire` misses a deadline that is added from here on, the next
                        // iteration handles it.
                        self.next.store(NO_DEADLINE, Ordering::Release);
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
        assert_eq!(deadlines.after(now, None), NO_DEADLINE);
        assert_eq!(deadlines.after(now, Some(Duration::MAX)), NO_DEADLINE);
        assert_eq!(deadlines.time(NO_DEADLINE), None);
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
                slots.iter().copied().min().unwrap_or(NO_DEADLINE)
            })
            .await;
        });
        done.await.unwrap();
        running.abort();
    }
}
