//! [`Inbox`]: a bounded queue of received items for the application.

use std::collections::VecDeque;

use super::sync::Mutex;
use super::waiters::Waiters;

/// Bounded queue of received items, such as messages, with the tasks that wait for items. Memory is
/// allocated as the number of items grows.
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

    /// Adds an item, and wakes the tasks that wait for an item. Returns `false`, and drops the
    /// item, if the queue is full.
    #[must_use = "a peer that sends more messages than it has credits for violates the protocol"]
    pub(super) fn push(&self, item: T) -> bool {
        let fits = {
            let mut queue = self.queue.lock();
            let fits = queue.len() < self.capacity;
            if fits {
                queue.push_back(item);
            }
            fits
        };
        // The lock of the queue orders the wakeup after the push, because the attempt of every
        // waiting task takes the lock.
        self.arrived.wake_without_fence();
        fits
    }

    /// Removes the oldest item from the queue, and returns the item. Returns `None` if the queue is
    /// empty.
    #[inline]
    pub(super) fn pop(&self) -> Option<T> {
        self.queue.lock().pop_front()
    }

    /// Returns the list of the tasks that wait for items, for example to add the calling task.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.arrived
    }
}
