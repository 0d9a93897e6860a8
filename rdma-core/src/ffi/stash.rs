//! Completions that were taken from the device and not given to anybody yet.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{hint, thread};

use parking_lot::{Mutex, MutexGuard};

use super::inbox::Inbox;

/// The flag of a stash with something in it, or that is open.
const FILLED: u64 = 1;
/// The flag of a queue that is not polled in the plain way at all.
const DETOUR: u64 = 2;
/// The flag of a queue in which somebody awaits completions of its own.
const AWAITED: u64 = 4;
/// One who sorts, and one who waits until nobody sorts, each of whom may be many.
const SORTER: u64 = 1 << 3;
const WAITER: u64 = 1 << 32;
const SORTERS: u64 = WAITER - SORTER;

/// What one poller took and another one is to have, in the order of taking; of several who take at the
/// same time, in the order in which they put it in.
///
/// Whoever polls looks at one word, so that a queue whose stash is never used pays for nothing else.
#[derive(Debug)]
pub(super) struct Stash<T> {
    state: AtomicU64,
    entries: Mutex<VecDeque<T>>,
    /// Where completions go that somebody awaits: an inbox for each waiter.
    awaited: Mutex<Vec<Arc<Inbox<T>>>>,
}

impl<T> Stash<T> {
    /// An empty one; `detour` is what [`Self::detour`] then says at any time.
    pub(super) fn new(detour: bool) -> Self {
        Self {
            state: AtomicU64::new(if detour { DETOUR } else { 0 }),
            entries: Mutex::default(),
            awaited: Mutex::default(),
        }
    }

    /// Returns whether a poll must do more than ask the device. The device's completions are still to be
    /// [looked through](Self::is_awaited) for completions that others await.
    ///
    /// Relaxed: who is told `false` while another thread puts something in finds it the next time.
    /// A poll that finds the device's queue empty because another thread took what was there, with
    /// the stash open or as a [sorter](Self::sort), asks after the device's lock, and so is told
    /// `true`.
    #[inline]
    pub(super) fn detour(&self) -> bool {
        self.state.load(Ordering::Relaxed) & !AWAITED != 0
    }

    /// Whether something is in it, or somebody who has it open may put something in.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & FILLED != 0
    }

    /// Lets whoever polls put the completions of this inbox there, until the result is dropped.
    ///
    /// Requests are posted after this only, so that a poll that finds their completions sees that
    /// they are awaited.
    pub(super) fn divert_to(&self, inbox: &Arc<Inbox<T>>) -> Diversion<'_, T> {
        let mut awaited = self.awaited.lock();
        awaited.push(Arc::clone(inbox));
        self.state.fetch_or(AWAITED, Ordering::Relaxed);
        Diversion {
            stash: self,
            inbox: Arc::clone(inbox),
        }
    }

    /// Returns whether somebody awaits completions of its own.
    ///
    /// Relaxed: whoever has found such a completion is told `true`, since it was awaited before its
    /// request was posted.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        self.state.load(Ordering::Relaxed) & AWAITED != 0
    }

    /// Puts the completion with this id into the inbox of its waiter, and returns whether it has one.
    /// Nobody else gets such a completion.
    #[inline]
    pub(super) fn divert(&self, id: u64, completion: impl FnMut() -> T) -> bool {
        self.is_awaited() && self.divert_awaited(id, completion)
    }

    #[cold]
    fn divert_awaited(&self, id: u64, mut completion: impl FnMut() -> T) -> bool {
        let awaited = self.awaited.lock();
        awaited.iter().any(|inbox| inbox.put(id, &mut completion))
    }

    /// Its entries, for this thread alone until the guard is dropped.
    pub(super) fn open(&self) -> Open<'_, T> {
        let entries = self.entries.lock();
        self.state.fetch_or(FILLED, Ordering::Relaxed);
        Open {
            state: &self.state,
            entries,
        }
    }

    /// Lets this thread take completions from the device, of which it puts into the stash what is
    /// not its own, until it drops the result. Those who come to [look](Self::open_sorted) wait for
    /// that. `None` while they do, and where there is something in the stash: it is to be opened then.
    ///
    /// This takes no lock: sorters do not keep each other waiting, nor does anybody else keep them.
    pub(super) fn sort(&self) -> Option<Sorting<'_>> {
        let before = self.state.fetch_add(SORTER, Ordering::Relaxed);
        let sorting = Sorting { state: &self.state };
        (before & !(SORTERS | AWAITED) == 0).then_some(sorting)
    }

    /// [`Self::open`], when all have sorted who took something from the device before.
    ///
    /// Those who would sort from now on open the stash instead, so that this comes to an end.
    pub(super) fn open_sorted(&self) -> Open<'_, T> {
        /// How often to look before others get the processor.
        const SPINS: u32 = 100;
        self.state.fetch_add(WAITER, Ordering::Relaxed);
        let mut spins = 0;
        // Acquire: what they have put in is seen. They do not panic while they sort, or end it then.
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

/// The time in which a thread sorts.
#[derive(Debug)]
pub(super) struct Sorting<'a> {
    state: &'a AtomicU64,
}

impl Drop for Sorting<'_> {
    fn drop(&mut self) {
        self.state.fetch_sub(SORTER, Ordering::Release);
    }
}

/// The registration of an inbox with a stash; dropping it ends the registration.
#[derive(Debug)]
pub(super) struct Diversion<'a, T> {
    stash: &'a Stash<T>,
    inbox: Arc<Inbox<T>>,
}

impl<T> Diversion<'_, T> {
    pub(super) fn inbox(&self) -> &Inbox<T> {
        &self.inbox
    }
}

impl<T> Drop for Diversion<'_, T> {
    fn drop(&mut self) {
        let mut awaited = self.stash.awaited.lock();
        awaited.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if awaited.is_empty() {
            self.stash.state.fetch_and(!AWAITED, Ordering::Relaxed);
        }
    }
}

/// A stash that is open.
#[derive(Debug)]
pub(super) struct Open<'a, T> {
    state: &'a AtomicU64,
    entries: MutexGuard<'a, VecDeque<T>>,
}

impl<T> Deref for Open<'_, T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.entries
    }
}

impl<T> DerefMut for Open<'_, T> {
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.entries
    }
}

impl<T> Drop for Open<'_, T> {
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
    fn it_is_filled_while_open_or_with_something_in_it() {
        let stash = Stash::new(false);
        assert!(!stash.is_filled() && !stash.detour());
        let mut open = stash.open();
        assert!(stash.is_filled() && stash.detour());
        open.push_back(1);
        drop(open);
        assert!(stash.is_filled());
        assert_eq!(stash.open().pop_front(), Some(1));
        assert!(!stash.is_filled() && !stash.detour());
    }

    #[test]
    fn a_completion_goes_to_the_inbox_of_its_waiter() {
        let stash = Stash::<u8>::new(false);
        let ((inbox, id), (other, its)) = (Inbox::new(), Inbox::new());
        let (inbox, other) = (Arc::new(inbox), Arc::new(other));
        assert!(!stash.divert(id, || 1) && !stash.is_awaited());
        let awaited = stash.divert_to(&inbox);
        let others = stash.divert_to(&other);
        assert!(stash.is_awaited() && !stash.detour() && !stash.is_filled());
        assert!(
            stash.sort().is_some(),
            "that does not keep anybody from sorting"
        );
        assert!(!stash.divert(next_block(), || 2));
        assert!(stash.divert(id + 3, || 3) && stash.divert(its + 4, || 4));
        assert_eq!((awaited.inbox().len(), others.inbox().len()), (1, 1));
        assert_eq!((inbox.take(), other.take()), (Some(3), Some(4)));
        drop(awaited);
        assert!(!stash.divert(id, || 5) && stash.is_awaited());
        drop(others);
        assert!(!stash.is_awaited());
    }

    #[test]
    fn who_sorts_is_waited_for() {
        let stash = Stash::new(false);
        let sorting = stash.sort().unwrap();
        let other = stash.sort().expect("sorters do not wait for each other");
        assert!(stash.detour() && !stash.is_filled());
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
        assert!(!stash.detour());
        stash.open().push_back(2);
        assert!(stash.sort().is_none(), "there is something in it");
    }

    /// One looks once, where there may be something, at the device and, if that is empty, again where
    /// there may be something; and finds what is his, though others take it from the device meanwhile
    /// and have to put it back.
    #[test]
    fn nobody_misses_what_another_one_has_in_hand() {
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
                let look = || match stash.detour() {
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
        assert!(!stash.detour());
    }

    #[test]
    fn a_detour_stays_one() {
        let stash = Stash::<u8>::new(true);
        drop(stash.open());
        assert!(stash.detour() && !stash.is_filled());
    }
}
