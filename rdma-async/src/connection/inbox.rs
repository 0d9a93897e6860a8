//! What arrived and waits for the application.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::waiters::Waiters;

/// A bounded queue that tasks wait on. Its memory grows with what waits in it.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    capacity: usize,
    arrived: Waiters,
}

impl<T> Inbox<T> {
    pub(super) fn new(capacity: u16) -> Self {
        Self {
            queue: Mutex::default(),
            capacity: usize::from(capacity).max(1),
            arrived: Waiters::default(),
        }
    }

    /// Adds an item. Returns `false` if the queue is full.
    #[must_use = "a peer that sends more than it has credits for is wrong"]
    pub(super) fn push(&self, item: T) -> bool {
        let fits = {
            let mut queue = self.queue.lock();
            let fits = queue.len() < self.capacity;
            if fits {
                queue.push_back(item);
            }
            fits
        };
        // The queue's lock orders this and the look of whoever waits.
        self.arrived.wake_in_order();
        fits
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        self.queue.lock().pop_front()
    }

    /// Those who wait for arrivals.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.arrived
    }
}
