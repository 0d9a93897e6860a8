//! A store for the completions that one thread waits for and that other threads have polled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::request_id::{block_of, next_block};

/// A store for the completions that one thread (the waiter) waits for and that other threads have
/// polled. The ids of the waiter's requests are from blocks of 2^24 consecutive ids, which only
/// this waiter uses.
///
/// A waiter registers its inbox with the [stash](super::stash::Stash) of each queue on which its
/// requests complete. A thread that polls such a queue then stores the completions of these
/// requests here.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    /// The length of `arrived`, readable without the lock.
    len: AtomicUsize,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    /// The numbers of the blocks of ids that belong to the waiter. A block has 2^24 ids. Further
    /// blocks are added when needed.
    blocks: Vec<u64>,
    arrived: VecDeque<T>,
}

impl<T> Inbox<T> {
    /// Creates an inbox for one waiting thread, and allocates a block of 2^24 request ids for the
    /// requests of that thread. Returns the inbox, and the first id of the block.
    pub(super) fn new() -> (Self, u64) {
        let inbox = Self {
            len: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                blocks: Vec::with_capacity(1),
                arrived: VecDeque::new(),
            }),
        };
        let id = inbox.next_block();
        (inbox, id)
    }

    /// Assigns another block of 2^24 request ids to the thread that waits on this inbox, and
    /// returns the first id of the block.
    pub(super) fn next_block(&self) -> u64 {
        let id = next_block();
        self.inner.lock().blocks.push(block_of(id));
        id
    }

    /// Returns whether the completion of request `id` is for the thread that waits on this inbox.
    /// If so, stores the completion that the function `completion` returns.
    pub(super) fn put(&self, id: u64, completion: impl FnOnce() -> T) -> bool {
        let mut inner = self.inner.lock();
        let is_for_this = inner.blocks.contains(&block_of(id));
        if is_for_this {
            inner.arrived.push_back(completion());
            self.len.store(inner.arrived.len(), Ordering::Relaxed);
        }
        is_for_this
    }

    /// Returns the number of stored completions that the waiting thread has not taken yet.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Takes the oldest completion that is stored for the waiting thread. Returns `None` if the
    /// inbox is empty.
    pub(super) fn take(&self) -> Option<T> {
        // Relaxed: if a completion was stored but is not visible to this thread yet, the next call
        // finds it.
        if self.len() == 0 {
            return None;
        }
        let mut inner = self.inner.lock();
        let completion = inner.arrived.pop_front();
        self.len.store(inner.arrived.len(), Ordering::Relaxed);
        completion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_of_its_blocks_arrive_in_order() {
        let (inbox, first) = Inbox::new();
        let other = next_block();
        let second = inbox.next_block();
        assert_eq!((inbox.len(), inbox.take()), (0, None));
        assert!(inbox.put(second + 1, || "second"));
        assert!(inbox.put(first + 3, || "first"));
        assert!(!inbox.put(other, || "of another"));
        assert_eq!(inbox.len(), 2);
        assert_eq!(inbox.take(), Some("second"));
        assert_eq!((inbox.take(), inbox.len()), (Some("first"), 0));
    }
}
