//! The stash of a completion queue: a store for completions that one thread has polled although
//! they belong to requests of another.
//!
//! A completion stays in the stash until the next poll, or is delivered to the [`Inbox`] of the
//! thread that waits for it.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{hint, thread};

use parking_lot::{Mutex, MutexGuard};

use super::inbox::Inbox;

/// Flag of [`Stash::state`], set while the stash contains polled completions for other threads, and
/// while a thread holds the lock of the stash to add or remove completions.
const FILLED: u64 = 1;
/// Flag of [`Stash::state`], set if the completion queue is an extended queue. Such a queue must
/// not be polled by `ibv_poll_cq`, which the fast path of polling calls.
const SLOW: u64 = 2;
/// Flag of [`Stash::state`], set while at least one waiting thread has registered an [`Inbox`].
/// Polled completions may then belong to that thread.
const AWAITED: u64 = 4;
/// The unit in which [`Stash::state`] counts the threads that hold a guard from [`Stash::sort`].
/// Such a thread polls the device at the same time as other threads, and passes on the completions
/// of other threads' requests.
const SORTER: u64 = 1 << 3;
const WAITER: u64 = 1 << 32;
const SORTERS: u64 = WAITER - SORTER;

/// Completions that one thread has polled and another thread must receive, stored in the order of
/// polling or, if several threads poll at the same time, in the order of insertion.
///
/// Every poll of the completion queue reads one word of the stash. A stash that is never used has
/// no other cost.
#[derive(Debug)]
pub(super) struct Stash<T> {
    state: AtomicU64,
    entries: Mutex<VecDeque<T>>,
    /// The registered inboxes. Each belongs to one waiting thread, and receives the completions
    /// that the thread awaits.
    awaited: Mutex<Vec<Arc<Inbox<T>>>>,
}

impl<T> Stash<T> {
    /// Creates an empty store of completions. `always_slow` is set for extended completion queues,
    /// which the fast code for polling (`ibv_poll_cq`) must not poll.
    pub(super) fn new(always_slow: bool) -> Self {
        Self {
            state: AtomicU64::new(if always_slow { SLOW } else { 0 }),
            entries: Mutex::default(),
            awaited: Mutex::default(),
        }
    }

    /// Returns `true` if polling the device with `ibv_poll_cq` is not sufficient: other threads
    /// have stored completions in this stash or are possibly about to do so, or the completion
    /// queue is an extended queue.
    ///
    /// Even if this function returns `false`, polled completions can belong to waiting threads: see
    /// [`Self::is_awaited`].
    #[inline]
    pub(super) fn needs_slow_path(&self) -> bool {
        // Relaxed: completions that another thread stores meanwhile are found at the next poll. If
        // another thread has just taken completions from the device, a caller that has held the
        // device's lock since then sees the change of the state.
        self.state.load(Ordering::Relaxed) & !AWAITED != 0
    }

    /// Returns whether this stash contains completions, or whether a thread holds the guard from
    /// [`Self::open`] and so can add completions soon.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & FILLED != 0
    }

    /// Registers the [`Inbox`] of a waiting thread. Every thread that polls a completion with an id
    /// of the inbox then stores the completion in the inbox. Dropping the returned value ends the
    /// registration.
    ///
    /// Requests with an id of the inbox must be posted only after the registration, so that every
    /// thread that polls their completions sees the inbox.
    pub(super) fn register(&self, inbox: &Arc<Inbox<T>>) -> InboxRegistration<'_, T> {
        let mut awaited = self.awaited.lock();
        awaited.push(Arc::clone(inbox));
        self.state.fetch_or(AWAITED, Ordering::Relaxed);
        InboxRegistration {
            stash: self,
            inbox: Arc::clone(inbox),
        }
    }

    /// Returns whether at least one waiting thread has registered an [`Inbox`], a store for the
    /// completions that this thread waits for.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        // Relaxed: the inbox was registered before its requests were posted, so a thread that has
        // polled their completions sees the flag.
        self.state.load(Ordering::Relaxed) & AWAITED != 0
    }

    /// Stores the completion with the id `id` in the registered [`Inbox`] to which the id belongs.
    /// Returns `false` if no registered inbox has the id.
    #[inline]
    pub(super) fn deliver(&self, id: u64, completion: impl FnMut() -> T) -> bool {
        self.is_awaited() && self.deliver_to_inbox(id, completion)
    }

    #[cold]
    fn deliver_to_inbox(&self, id: u64, mut completion: impl FnMut() -> T) -> bool {
        let awaited = self.awaited.lock();
        awaited.iter().any(|inbox| inbox.put(id, &mut completion))
    }

    /// Locks the stored completions until the returned guard is dropped, so that this thread can
    /// add or remove completions.
    pub(super) fn open(&self) -> OpenStash<'_, T> {
        let entries = self.entries.lock();
        self.state.fetch_or(FILLED, Ordering::Relaxed);
        OpenStash {
            state: &self.state,
            entries,
        }
    }

    /// Permits this thread to poll the device at the same time as other threads, until the returned
    /// guard is dropped. The thread must add completions of other threads' requests to this store.
    ///
    /// Returns `None` if this store possibly contains completions, or if another thread waits in
    /// [`Self::open_sorted`]. The caller must then lock the store by [`Self::open`] instead.
    pub(super) fn sort(&self) -> Option<Sorting<'_>> {
        let before = self.state.fetch_add(SORTER, Ordering::Relaxed);
        let sorting = Sorting { state: &self.state };
        (before & !(SORTERS | AWAITED) == 0).then_some(sorting)
    }

    /// Waits until no thread holds a guard from [`Self::sort`], and then locks the stored
    /// completions. A thread with such a guard can still add completions. While the calling thread
    /// waits, [`Self::sort`] returns `None`, so the wait ends soon.
    pub(super) fn open_sorted(&self) -> OpenStash<'_, T> {
        /// Number of busy-wait iterations before the thread yields the processor. Most waits end
        /// earlier, because other threads hold their [`Sorting`] guards only for a short time.
        const SPINS: u32 = 100;
        self.state.fetch_add(WAITER, Ordering::Relaxed);
        let mut spins = 0;
        // Acquire: makes the completions visible that sorting threads have inserted. If a sorting
        // thread panics, the drop of its guard ends the sorting.
        while self.state.load(Ordering::Acquire) & SORTERS != 0 {
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let open = self.open();
        self.state.fetch_sub(WAITER, Ordering::Relaxed);
        open
    }
}

/// The guard of a thread that polls the device and adds completions of other threads' requests to a
/// [`Stash`]. Until the guard is dropped, [`Stash::open_sorted`] waits. Created by [`Stash::sort`].
#[derive(Debug)]
pub(super) struct Sorting<'a> {
    state: &'a AtomicU64,
}

impl Drop for Sorting<'_> {
    fn drop(&mut self) {
        self.state.fetch_sub(SORTER, Ordering::Release);
    }
}

/// The registration of a waiting thread's [`Inbox`], into which other threads store the completions
/// that this thread waits for. Dropping this value ends the registration.
#[derive(Debug)]
pub(super) struct InboxRegistration<'a, T> {
    stash: &'a Stash<T>,
    inbox: Arc<Inbox<T>>,
}

impl<T> InboxRegistration<'_, T> {
    pub(super) fn inbox(&self) -> &Inbox<T> {
        &self.inbox
    }
}

impl<T> Drop for InboxRegistration<'_, T> {
    fn drop(&mut self) {
        let mut awaited = self.stash.awaited.lock();
        awaited.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if awaited.is_empty() {
            self.stash.state.fetch_and(!AWAITED, Ordering::Relaxed);
        }
    }
}

/// A guard with exclusive access to the completions in a [`Stash`], created by [`Stash::open`].
#[derive(Debug)]
pub(super) struct OpenStash<'a, T> {
    state: &'a AtomicU64,
    entries: MutexGuard<'a, VecDeque<T>>,
}

impl<T> Deref for OpenStash<'_, T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.entries
    }
}

impl<T> DerefMut for OpenStash<'_, T> {
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.entries
    }
}

impl<T> Drop for OpenStash<'_, T> {
    fn drop(&mut self) {
        if self.entries.is_empty() {
            self.state.fetch_and(!FILLED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::request_id::next_block;
    use super::*;

    #[test]
    fn a_stash_is_filled_while_open_or_not_empty() {
        let stash = Stash::new(false);
        assert!(!stash.is_filled() && !stash.needs_slow_path());
        let mut open = stash.open();
        assert!(stash.is_filled() && stash.needs_slow_path());
        open.push_back(1);
        drop(open);
        assert!(stash.is_filled());
        assert_eq!(stash.open().pop_front(), Some(1));
        assert!(!stash.is_filled() && !stash.needs_slow_path());
    }

    #[test]
    fn a_completion_goes_to_the_inbox_of_its_waiter() {
        let stash = Stash::<u8>::new(false);
        let ((inbox, id), (other, its)) = (Inbox::new(), Inbox::new());
        let (inbox, other) = (Arc::new(inbox), Arc::new(other));
        assert!(!stash.deliver(id, || 1) && !stash.is_awaited());
        let awaited = stash.register(&inbox);
        let others = stash.register(&other);
        assert!(stash.is_awaited() && !stash.needs_slow_path() && !stash.is_filled());
        assert!(
            stash.sort().is_some(),
            "that does not keep anybody from sorting"
        );
        assert!(!stash.deliver(next_block(), || 2));
        assert!(stash.deliver(id + 3, || 3) && stash.deliver(its + 4, || 4));
        assert_eq!((awaited.inbox().len(), others.inbox().len()), (1, 1));
        assert_eq!((inbox.take(), other.take()), (Some(3), Some(4)));
        drop(awaited);
        assert!(!stash.deliver(id, || 5) && stash.is_awaited());
        drop(others);
        assert!(!stash.is_awaited());
    }

    #[test]
    fn opening_waits_for_sorting_threads() {
        let stash = Stash::new(false);
        let sorting = stash.sort().unwrap();
        let other = stash.sort().expect("sorters do not wait for each other");
        assert!(stash.needs_slow_path() && !stash.is_filled());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| stash.open_sorted().pop_front());
            while stash.state.load(Ordering::Relaxed) < WAITER {
                thread::yield_now();
            }
            assert!(stash.sort().is_none(), "somebody waits");
            drop(other);
            stash.open().push_back(1);
            drop(sorting);
            assert_eq!(waiting.join().unwrap(), Some(1));
        });
        assert!(!stash.needs_slow_path());
        stash.open().push_back(2);
        assert!(stash.sort().is_none(), "there is something in it");
    }

    /// Checks that a thread finds its completion even if other threads poll it first and store it
    /// in the [`Stash`]. The thread polls as the crate does: first the stash if completions are
    /// possibly there, then the device, then the stash again.
    #[test]
    fn a_thread_finds_a_completion_that_another_has_polled() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
        let stash = Stash::new(false);
        let device = Mutex::new(VecDeque::new());
        let start = Barrier::new(3);
        let poll = || device.lock().pop_front();
        let found = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        start.wait();
                        let sorting = stash.sort();
                        match sorting {
                            Some(_) => {
                                if let Some(his) = poll() {
                                    stash.open().push_back(his);
                                }
                            }
                            None => {
                                let mut open = stash.open();
                                open.extend(poll());
                            }
                        }
                        drop(sorting);
                        start.wait();
                    }
                });
            }
            let looks = |round| {
                device.lock().push_back(round);
                start.wait();
                let look = || match stash.needs_slow_path() {
                    true => stash.open_sorted().pop_front(),
                    false => None,
                };
                let found = look().or_else(poll).or_else(look);
                start.wait();
                found
            };
            (0..ROUNDS).map(looks).collect::<Vec<_>>()
        });
        assert!(found.into_iter().eq((0..ROUNDS).map(Some)));
        assert!(!stash.needs_slow_path());
    }

    #[test]
    fn an_extended_queue_needs_the_slow_path_even_if_its_stash_is_empty() {
        let stash = Stash::<u8>::new(true);
        drop(stash.open());
        assert!(stash.needs_slow_path() && !stash.is_filled());
    }
}
