//! Completions that were taken from the device and not given to anybody yet.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// What one poller took and another one is to have, in the order of taking.
///
/// Whoever polls looks at one flag, so that a queue whose stash is never used pays for nothing else.
#[derive(Debug)]
pub(super) struct Stash<T> {
    /// Whether something is in it, or somebody who has it open may put something in.
    in_use: AtomicBool,
    entries: Mutex<VecDeque<T>>,
}

impl<T> Stash<T> {
    pub(super) fn new() -> Self {
        Self {
            in_use: AtomicBool::new(false),
            entries: Mutex::default(),
        }
    }

    /// Whether to [`open`](Self::open) it.
    ///
    /// Relaxed: who is told `false` while another thread puts something in finds it the next time.
    /// A poll that finds the device's queue empty because another thread took what was there, with
    /// the stash open, asks after the device's lock, and so is told `true`.
    #[inline]
    pub(super) fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Its entries, for this thread alone until the guard is dropped.
    pub(super) fn open(&self) -> Open<'_, T> {
        let entries = self.entries.lock();
        self.in_use.store(true, Ordering::Relaxed);
        Open {
            in_use: &self.in_use,
            entries,
        }
    }
}

/// A stash that is open.
#[derive(Debug)]
pub(super) struct Open<'a, T> {
    in_use: &'a AtomicBool,
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
        self.in_use
            .store(!self.entries.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_use_while_open_or_filled() {
        let stash = Stash::new();
        assert!(!stash.in_use());
        let mut open = stash.open();
        assert!(stash.in_use());
        open.push_back(1);
        drop(open);
        assert!(stash.in_use());
        assert_eq!(stash.open().pop_front(), Some(1));
        assert!(!stash.in_use());
    }
}
