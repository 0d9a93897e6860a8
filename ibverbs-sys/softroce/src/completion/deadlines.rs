use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::proto::Time;

use super::CompletionQueue;

/// The completion queues whose moderated events are due some time: what the NIC's timer asks.
#[derive(Debug)]
pub struct Deadlines {
    /// The earliest, so that nothing is locked while there are none.
    earliest: AtomicU64,
    waiting: Mutex<Vec<(Time, Weak<CompletionQueue>)>>,
}

const NONE: u64 = u64::MAX;

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            earliest: AtomicU64::new(NONE),
            waiting: Mutex::default(),
        }
    }
}

impl Deadlines {
    /// When [`expire`](Self::expire) has something to do next.
    pub fn next(&self) -> Option<Time> {
        let earliest = self.earliest.load(Ordering::Acquire);
        (earliest != NONE).then(|| Time::from_nanos(earliest))
    }

    /// Raises the events that are due.
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

    /// A completion queue has an event due at `time`.
    pub(super) fn add(&self, time: Time, queue: Weak<CompletionQueue>) {
        let mut waiting = self.waiting.lock();
        waiting.push((time, queue));
        self.publish(&waiting);
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
