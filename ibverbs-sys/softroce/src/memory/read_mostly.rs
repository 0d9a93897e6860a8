//! A value that is read with every message, and hardly ever changed.
//!
//! Who reads says so in a [lane](Lanes), which takes one atomic operation, to a word that no other thread changes at the
//! time: threads that read do not slow each other down, as they do by counting themselves in a lock. Who changes the
//! value says so first, and then waits until nobody reads any more. Either a reader sees that he comes in the way of
//! a change, or he is seen and waited for: as in every use of [`epoch`](crate::epoch).

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::epoch::{Lane, Lanes};
use crate::sync::Line;

/// See the module.
pub(super) struct ReadMostly<T> {
    /// Who changes the value holds it; who reads does so only where somebody is about to change it.
    lock: RwLock<T>,
    /// Somebody changes the value, or waits for those who read it.
    changing: AtomicBool,
    lanes: Box<[Line]>,
}

/// The value, which does not change as long as this is around.
pub(super) struct Reading<'a, T> {
    value: &'a T,
    _hold: Hold<'a, T>,
}

/// What keeps the value from being changed.
#[expect(dead_code, reason = "they are held")]
enum Hold<'a, T> {
    Lane(Lane<'a>),
    Lock(RwLockReadGuard<'a, T>),
}

/// The value, which nobody reads or changes but who has this.
pub(super) struct Changing<'a, T> {
    changing: &'a AtomicBool,
    value: RwLockWriteGuard<'a, T>,
}

/// Time between looks whether a long read is over.
const REST: Duration = Duration::from_micros(50);

/// Threads that read at the same time without one waiting for another: a power of two.
const LANES: usize = 32;

impl<T> ReadMostly<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            lock: RwLock::new(value),
            changing: AtomicBool::new(false),
            lanes: (0..LANES).map(|_| Line::here()).collect(),
        }
    }

    /// Reads it: not for long, as who wants to change it waits. Threads do best with `hint`s that differ. A thread that
    /// reads must not begin to do so once more.
    #[inline]
    pub(super) fn read(&self, hint: u32) -> Reading<'_, T> {
        let lane = Lanes(&self.lanes).enter(hint as usize);
        // With what was changed last.
        if self.changing.load(Ordering::Acquire) {
            return self.read_later(lane);
        }
        Reading {
            // SAFETY: `change` waits for the lane to be left before it hands out the value, or it had come first, and was seen here.
            value: unsafe { &*self.lock.data_ptr() },
            _hold: Hold::Lane(lane),
        }
    }

    #[cold]
    fn read_later(&self, lane: Lane<'_>) -> Reading<'_, T> {
        drop(lane);
        let lock = self.lock.read();
        Reading {
            // SAFETY: the lock is held for as long as the reference is there.
            value: unsafe { &*self.lock.data_ptr() },
            _hold: Hold::Lock(lock),
        }
    }

    /// Changes it, once nobody reads it any more.
    pub(super) fn change(&self) -> Changing<'_, T> {
        let value = self.lock.write();
        self.changing.store(true, Ordering::Relaxed);
        let lanes = Lanes(&self.lanes);
        lanes.occupied().wait(lanes, || {
            // A copy may be long, and who makes it may wait for this very processor.
            thread::sleep(REST);
            false
        });
        Changing {
            changing: &self.changing,
            value,
        }
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Deref for Changing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Changing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Changing<'_, T> {
    fn drop(&mut self) {
        // Who reads from now on sees what was changed. The lock is given back behind this.
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
    fn what_is_changed_is_read() {
        let value = ReadMostly::new(1);
        assert_eq!(*value.read(0), 1);
        *value.change() += 1;
        assert_eq!((*value.read(0), *value.read(7)), (2, 2));
    }

    #[test]
    fn many_read_at_once() {
        let value = ReadMostly::new(1);
        let readings: Vec<_> = (0..LANES as u32).map(|hint| value.read(hint)).collect();
        assert!(readings.iter().all(|reading| **reading == 1));
    }

    /// A change is neither seen half done nor begun while somebody reads, by lane or by lock.
    #[test]
    fn nobody_reads_during_a_change() {
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
                let mut changing = value.change();
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
