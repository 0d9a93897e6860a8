//! Completions that were taken from the device and not given to anybody yet.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::request_id::block_of;

/// The flag of a stash with something in it, or that is open.
const FILLED: u8 = 1;
/// The flag of a queue that is not polled in the plain way at all.
const DETOUR: u8 = 2;
/// The flag of a queue in which somebody's markers are awaited.
const AWAITED: u8 = 4;

/// What one poller took and another one is to have, in the order of taking.
///
/// Whoever polls looks at one word, so that a queue whose stash is never used pays for nothing else.
#[derive(Debug)]
pub(super) struct Stash<T> {
    flags: AtomicU8,
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
    seen: AtomicBool,
}

impl<T> Stash<T> {
    /// An empty one; `detour` is what [`Self::detour`] then says at any time.
    pub(super) fn new(detour: bool) -> Self {
        Self {
            flags: AtomicU8::new(if detour { DETOUR } else { 0 }),
            entries: Mutex::default(),
            awaited: Mutex::default(),
        }
    }

    /// Whether not to poll in the plain way, or not only.
    ///
    /// Relaxed: who is told `false` while another thread puts something in finds it the next time.
    /// A poll that finds the device's queue empty because another thread took what was there, with
    /// the stash open, asks after the device's lock, and so is told `true`.
    #[inline]
    pub(super) fn detour(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// Whether something is in it, or somebody who has it open may put something in.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FILLED != 0
    }

    /// Awaits markers: completions of the block of `id`, which nobody else gets from now on. A poll
    /// that has already begun may still take one away unnoticed.
    pub(super) fn await_markers(&self, id: u64) -> AwaitedMarkers<'_, T> {
        let markers = Arc::new(Markers {
            block: block_of(id),
            seen: AtomicBool::new(false),
        });
        let mut awaited = self.awaited.lock();
        awaited.push(Arc::clone(&markers));
        self.flags.fetch_or(AWAITED, Ordering::Relaxed);
        AwaitedMarkers {
            stash: self,
            markers,
        }
    }

    /// Whether a completion with this id is a marker that somebody awaits; it is noted then, and is
    /// for nobody.
    #[inline]
    pub(super) fn is_marker(&self, id: u64) -> bool {
        self.flags.load(Ordering::Relaxed) & AWAITED != 0 && self.note_marker(id)
    }

    #[cold]
    fn note_marker(&self, id: u64) -> bool {
        let awaited = self.awaited.lock();
        let markers = awaited.iter().find(|markers| markers.block == block_of(id));
        if let Some(markers) = markers {
            markers.seen.store(true, Ordering::Relaxed);
        }
        markers.is_some()
    }

    /// Its entries, for this thread alone until the guard is dropped.
    pub(super) fn open(&self) -> Open<'_, T> {
        let entries = self.entries.lock();
        self.flags.fetch_or(FILLED, Ordering::Relaxed);
        Open {
            flags: &self.flags,
            entries,
        }
    }
}

/// That markers are awaited, until this is dropped.
#[derive(Debug)]
pub(super) struct AwaitedMarkers<'a, T> {
    stash: &'a Stash<T>,
    markers: Arc<Markers>,
}

impl<T> AwaitedMarkers<'_, T> {
    /// Whether one of them has completed.
    pub(super) fn have_completed(&self) -> bool {
        self.markers.seen.load(Ordering::Relaxed)
    }
}

impl<T> Drop for AwaitedMarkers<'_, T> {
    fn drop(&mut self) {
        let mut awaited = self.stash.awaited.lock();
        awaited.retain(|markers| !Arc::ptr_eq(markers, &self.markers));
        if awaited.is_empty() {
            self.stash.flags.fetch_and(!AWAITED, Ordering::Relaxed);
        }
    }
}

/// A stash that is open.
#[derive(Debug)]
pub(super) struct Open<'a, T> {
    flags: &'a AtomicU8,
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
            self.flags.fetch_and(!FILLED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert!(!stash.is_marker(next_block()) && !awaited.have_completed());
        assert!(stash.is_marker(id + 3) && awaited.have_completed());
        assert!(!others.have_completed());
        drop(awaited);
        assert!(!stash.is_marker(id) && stash.detour());
        drop(others);
        assert!(!stash.detour());
    }

    #[test]
    fn a_detour_stays_one() {
        let stash = Stash::<u8>::new(true);
        drop(stash.open());
        assert!(stash.detour() && !stash.is_filled());
    }
}
