#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use parking_lot::Mutex;

use crate::proto::Time;

use super::CompletionQueue;

/// List of the completion queues whose events are delayed by [moderation](super::Moderation), with
/// the times at which the events are due. A timer of the NIC raises the events.
pub struct Deadlines {
    /// Earliest time in nanoseconds at which a completion event is due. Threads read this time
    /// without a lock to check whether an event is due.
    earliest: AtomicU64,
    waiting: Mutex<Vec<(Time, Weak<CompletionQueue>)>>,
    told: OnceLock<DueCallback>,
}

/// Callback that sets a timer for a delayed completion event. A [`Deadlines`] list calls it with
/// the time at which the event is due.
type DueCallback = Box<dyn Fn(Time) + Send + Sync>;

/// Value of [`Deadlines::earliest`] if no completion event is delayed. The value is later than
/// every due time, so that no event seems due.
const NONE: u64 = u64::MAX;

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            earliest: AtomicU64::new(NONE),
            waiting: Mutex::default(),
            told: OnceLock::new(),
        }
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines")
            .field("next", &self.next())
            .finish_non_exhaustive()
    }
}

impl Deadlines {
    /// Returns the earliest time at which a completion event is due. The caller must call
    /// [`expire`](Self::expire) at this time. Returns `None` if no event is delayed.
    pub fn next(&self) -> Option<Time> {
        let earliest = self.earliest.load(Ordering::Acquire);
        (earliest != NONE).then(|| Time::from_nanos(earliest))
    }

    /// Sets the callback `told`, which sets a timer for delayed completion events. A completion
    /// queue that begins to delay an event calls the callback with the time at which the event is
    /// due. The completion queue is locked during the call. Only the first call of this function
    /// has an effect.
    pub(crate) fn set_callback(&self, told: impl Fn(Time) + Send + Sync + 'static) {
        let _ = self.told.set(Box::new(told));
    }

    /// Raises the delayed completion events that are due at `now`. Called by the NIC when its timer
    /// expires.
    pub fn expire(&self, now: Time) {
        if self.next().is_none_or(|next| next > now) {
            return;
        }
        let mut due = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            waiting.retain(|(time, queue)| {
                let is_due = *time <= now;
                if is_due {
                    due.push(queue.clone());
                }
                !is_due
            });
            self.publish(&waiting);
        }
        for queue in due.iter().filter_map(Weak::upgrade) {
            queue.expire(now);
        }
    }

    /// Adds the completion queue `queue` to the queues with a delayed completion event. The event
    /// is due at `time`. Calls the callback of [`set_callback`](Self::set_callback), which sets a
    /// timer.
    pub(super) fn add(&self, time: Time, queue: Weak<CompletionQueue>) {
        let mut waiting = self.waiting.lock();
        waiting.push((time, queue));
        self.publish(&waiting);
        drop(waiting);
        if let Some(told) = self.told.get() {
            told(time);
        }
    }

    fn publish(&self, waiting: &[(Time, Weak<CompletionQueue>)]) {
        let earliest = waiting
            .iter()
            .map(|(time, _)| time.as_nanos())
            .min()
            .unwrap_or(NONE);
        self.earliest.store(earliest, Ordering::Release);
    }
}
