//! Completions that were taken from the device and not given to anybody yet.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{hint, thread};

use parking_lot::{Mutex, MutexGuard};

use super::request_id::block_of;

/// The flag of a stash with something in it, or that is open.
const FILLED: u64 = 1;
/// The flag of a queue that is not polled in the plain way at all.
const DETOUR: u64 = 2;
/// The flag of a queue in which somebody's markers are awaited.
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
    /// The markers that are awaited: a set for each who waits.
    awaited: Mutex<Vec<Arc<Markers>>>,
}

/// Requests that were posted for the sake of their completions alone, all of one block of ids.
///
/// Whoever polls such a completion away while it is awaited notes it here, so that those who wait
/// need not win a race for it.
#[derive(Debug)]
struct Markers {
    block: u64,
    /// How many were polled away so.
    seen: AtomicU64,
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

    /// Whether not to poll in the plain way, or not only.
    ///
    /// Relaxed: who is told `false` while another thread puts something in finds it the next time.
    /// A poll that finds the device's queue empty because another thread took what was there, with
    /// the stash open or as a [sorter](Self::sort), asks after the device's lock, and so is told
    /// `true`.
    #[inline]
    pub(super) fn detour(&self) -> bool {
        self.state.load(Ordering::Relaxed) != 0
    }

    /// Whether something is in it, or somebody who has it open may put something in.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.state.load(Ordering::Relaxed) & FILLED != 0
    }

    /// Awaits markers: completions of the block of `id`, which nobody else gets from now on. A poll
    /// that has already begun may still take one away unnoticed.
    pub(super) fn await_markers(&self, id: u64) -> AwaitedMarkers<'_, T> {
        let markers = Arc::new(Markers {
            block: block_of(id),
            seen: AtomicU64::new(0),
        });
        let mut awaited = self.awaited.lock();
        awaited.push(Arc::clone(&markers));
        self.state.fetch_or(AWAITED, Ordering::Relaxed);
        AwaitedMarkers {
            stash: self,
            markers,
        }
    }

    /// Whether a completion with this id is a marker that somebody awaits; it is noted then, and is
    /// for nobody.
    #[inline]
    pub(super) fn is_marker(&self, id: u64) -> bool {
        self.state.load(Ordering::Relaxed) & AWAITED != 0 && self.note_marker(id)
    }

    #[cold]
    fn note_marker(&self, id: u64) -> bool {
        let awaited = self.awaited.lock();
        let markers = awaited.iter().find(|markers| markers.block == block_of(id));
        if let Some(markers) = markers {
            markers.seen.fetch_add(1, Ordering::Relaxed);
        }
        markers.is_some()
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
        (before & !SORTERS == 0).then_some(sorting)
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

/// That markers are awaited, until this is dropped.
#[derive(Debug)]
pub(super) struct AwaitedMarkers<'a, T> {
    stash: &'a Stash<T>,
    markers: Arc<Markers>,
}

impl<T> AwaitedMarkers<'_, T> {
    /// How many of them have completed.
    pub(super) fn seen(&self) -> u64 {
        self.markers.seen.load(Ordering::Relaxed)
    }
}

impl<T> Drop for AwaitedMarkers<'_, T> {
    fn drop(&mut self) {
        let mut awaited = self.stash.awaited.lock();
        awaited.retain(|markers| !Arc::ptr_eq(markers, &self.markers));
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
    fn a_marker_is_noted_while_it_is_awaited() {
        let stash = Stash::<u8>::new(false);
        let (id, other) = (next_block(), next_block());
        assert!(!stash.is_marker(id));
        let awaited = stash.await_markers(id);
        let others = stash.await_markers(other);
        assert!(stash.detour() && !stash.is_filled());
        assert!(!stash.is_marker(next_block()) && awaited.seen() == 0);
        assert!(stash.is_marker(id + 3) && stash.is_marker(id + 4));
        assert_eq!((awaited.seen(), others.seen()), (2, 0));
        drop(awaited);
        assert!(!stash.is_marker(id) && stash.detour());
        drop(others);
        assert!(!stash.detour());
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
