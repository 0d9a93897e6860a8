//! A lock for a value that is read for every message and rarely changed.
//!
//! A reader occupies a [lane](Lanes), a word of its own, by one atomic operation that usually meets
//! no other thread. So readers do not slow each other down, as they would by the shared counter of
//! a reader-writer lock. A writer first announces the change, and then waits until no lane is
//! occupied. Either a reader finds the announcement, or the writer finds the reader's lane occupied
//! and waits: see [`epoch`](crate::epoch).

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::epoch::{Lane, Lanes};
use crate::sync::Line;

/// A value of the type `T` behind a reader-writer lock. The lock is cheap for readers and expensive
/// for writers, because the value is read for every message and rarely changed.
pub(super) struct ReadMostly<T> {
    /// The value, inside the lock that writers take. Readers take the lock only if they find a
    /// change in progress.
    lock: RwLock<T>,
    /// Set while a writer changes the value or waits for readers. Readers that find the flag set
    /// use `lock` instead of a lane (word that marks a read as in progress).
    changing: AtomicBool,
    lanes: Box<[Line]>,
}

/// Guard of a read lock. The value does not change while the guard exists.
pub(super) struct ReadGuard<'a, T> {
    value: &'a T,
    _hold: ReaderLock<'a, T>,
}

/// Lock that a reader holds: either the shared lock of the [`RwLock`], or a lane. A lane is a word
/// that marks a read as in progress. Writers wait until all lanes are free.
#[expect(dead_code, reason = "they are held")]
enum ReaderLock<'a, T> {
    Lane(Lane<'a>),
    Lock(RwLockReadGuard<'a, T>),
}

/// Guard of the write lock. No other thread reads or changes the value while the guard exists.
pub(super) struct WriteGuard<'a, T> {
    changing: &'a AtomicBool,
    value: RwLockWriteGuard<'a, T>,
}

/// Sleep time of a writer that waits for readers. A reader perhaps makes a long copy and needs the
/// writer's processor. So the writer sleeps for this time after every 1024 checks of the readers'
/// lanes (words that mark a read as in progress).
const CHECK_INTERVAL: Duration = Duration::from_micros(50);

/// Number of lanes (words that each mark the read of one thread as in progress). Up to this number
/// of threads can read at the same time without waiting for each other. The number is a power of
/// two, so that a lane is selected without a division.
const LANES: usize = 32;

impl<T> ReadMostly<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            lock: RwLock::new(value),
            changing: AtomicBool::new(false),
            lanes: (0..LANES).map(|_| Line::here()).collect(),
        }
    }

    /// Locks the value for reading. Writers wait until the returned guard is dropped, so the caller
    /// should hold the guard for a short time only. `hint` selects the lane (word that marks a read
    /// as in progress) that is tried first. Threads should pass different hints.
    ///
    /// A thread must not call this function while the thread holds a guard: a deadlock follows if a
    /// writer is waiting.
    #[inline]
    pub(super) fn read(&self, hint: u32) -> ReadGuard<'_, T> {
        let lane = Lanes(&self.lanes).enter(hint as usize);
        // `Acquire`: this thread sees the last change of the value.
        if self.changing.load(Ordering::Acquire) {
            return self.read_later(lane);
        }
        ReadGuard {
            // SAFETY: a writer waits until this lane is left before it returns the guard, or it has
            // set `changing` before, which was checked above.
            value: unsafe { &*self.lock.data_ptr() },
            _hold: ReaderLock::Lane(lane),
        }
    }

    #[cold]
    fn read_later(&self, lane: Lane<'_>) -> ReadGuard<'_, T> {
        drop(lane);
        let lock = self.lock.read();
        ReadGuard {
            // SAFETY: the read lock is held as long as the reference exists.
            value: unsafe { &*self.lock.data_ptr() },
            _hold: ReaderLock::Lock(lock),
        }
    }

    /// Locks the value for writing. Waits until all readers have released their guards.
    pub(super) fn write(&self) -> WriteGuard<'_, T> {
        let value = self.lock.write();
        self.changing.store(true, Ordering::Relaxed);
        let lanes = Lanes(&self.lanes);
        lanes.occupied().wait(lanes, || {
            // A reader may hold its guard during a long copy, and may need the processor of this
            // thread.
            thread::sleep(CHECK_INTERVAL);
            false
        });
        WriteGuard {
            changing: &self.changing,
            value,
        }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        // A reader that sees this store sees the change. The write lock is released afterwards.
        self.changing.store(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadMostly<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadMostly").field(&*self.read(0)).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_change_is_visible_to_readers() {
        let value = ReadMostly::new(1);
        assert_eq!(*value.read(0), 1);
        *value.write() += 1;
        assert_eq!((*value.read(0), *value.read(7)), (2, 2));
    }

    #[test]
    fn several_threads_read_concurrently() {
        let value = ReadMostly::new(1);
        let readings: Vec<_> = (0..LANES as u32).map(|hint| value.read(hint)).collect();
        assert!(readings.iter().all(|reading| **reading == 1));
    }

    /// Checks that threads that read a pair of numbers never see a change of only one number. Also
    /// checks that the pair does not change during a read.
    #[test]
    fn no_thread_reads_during_a_change() {
        const CHANGES: u64 = 2_000;
        let value = ReadMostly::new((0_u64, 0_u64));
        let (read, over) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for hint in [0, 0, 1] {
                let (value, read, over) = (&value, &read, &over);
                scope.spawn(move || {
                    let mut last = 0;
                    while !over.load(Ordering::Relaxed) {
                        let reading = value.read(hint);
                        let (first, second) = *reading;
                        assert!(first == second && first >= last, "{first} {second}");
                        last = first;
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..CHANGES {
                let mut changing = value.write();
                changing.0 += 1;
                thread::yield_now();
                changing.1 += 1;
            }
            while read.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(*value.read(0), (CHANGES, CHANGES));
    }
}
