//! Completions that were taken from the device and not given to anybody yet.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// The flag of a stash with something in it, or that is open.
const FILLED: u8 = 1;
/// The flag of a queue that is not polled in the plain way at all.
const DETOUR: u8 = 2;

/// What one poller took and another one is to have, in the order of taking.
///
/// Whoever polls looks at one word, so that a queue whose stash is never used pays for nothing else.
#[derive(Debug)]
pub(super) struct Stash<T> {
    flags: AtomicU8,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Stash<T> {
    /// An empty one; `detour` is what [`Self::detour`] then says at any time.
    pub(super) fn new(detour: bool) -> Self {
        Self {
            flags: AtomicU8::new(if detour { DETOUR } else { 0 }),
            entries: Mutex::default(),
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
    fn a_detour_stays_one() {
        let stash = Stash::<u8>::new(true);
        drop(stash.open());
        assert!(stash.detour() && !stash.is_filled());
    }
}
