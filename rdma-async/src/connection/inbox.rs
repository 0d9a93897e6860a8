//! What arrived and waits for the application.

use crossbeam_queue::ArrayQueue;

use super::waiters::Waiters;

/// A bounded queue that tasks wait on.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queue: ArrayQueue<T>,
    arrived: Waiters,
}

impl<T> Inbox<T> {
    pub(super) fn new(capacity: u16) -> Self {
        Self {
            queue: ArrayQueue::new(usize::from(capacity).max(1)),
            arrived: Waiters::default(),
        }
    }

    /// Adds to it; `false` if it is full.
    #[must_use = "a peer that sends more than it has credits for is wrong"]
    pub(super) fn push(&self, item: T) -> bool {
        let fits = self.queue.push(item).is_ok();
        self.arrived.wake();
        fits
    }

    pub(super) fn pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// Those who wait for arrivals.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.arrived
    }
}
