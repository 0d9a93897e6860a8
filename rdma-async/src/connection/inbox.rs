//! [`Inbox`]: a bounded queue of arrived items that wait for the application.

use std::collections::VecDeque;

use super::sync::Mutex;
use super::waiters::Waiters;

/// Bounded queue with waiting tasks. Its memory grows with the number of items.
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

    /// Adds an item and wakes the waiting tasks. Returns `false` if the queue is full.
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
        // The lock of the queue orders this after the push, for every waiter that takes the lock.
        self.arrived.wake_in_order();
        fits
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        self.queue.lock().pop_front()
    }

    /// Returns the tasks that wait for items.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.arrived
    }
}
