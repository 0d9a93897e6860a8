//! A spin lock for critical sections that are short and that threads enter for every message.
//!
//! Without contention, locking and unlocking together take one atomic read-modify-write
//! instruction. A mutex whose waiting threads sleep in the kernel takes two, because the unlocking
//! thread must check for waiting threads.
//!
//! A thread that finds the mutex locked first spins, then yields the processor between attempts,
//! and finally sleeps between attempts, because the thread that holds the lock may not be running.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::lock_api::{self, GuardNoSend, RawMutex, RawMutexFair};

/// A mutex whose waiting threads spin before they sleep.
pub(crate) type Mutex<T> = lock_api::Mutex<Spin, T>;

/// The guard of a locked [`Mutex`].
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Spin, T>;

/// The raw lock of a [`Mutex`]: a flag that shows whether the lock is taken, and the number of
/// waiting threads.
#[derive(Debug)]
pub(crate) struct Spin {
    is_locked: AtomicBool,
    /// Number of threads that wait for the lock.
    waiting: AtomicU32,
}

/// Number of attempts to take the lock that a thread makes in a spin loop, before it yields the
/// processor between attempts. If the thread that holds the lock runs, it usually unlocks within
/// these attempts.
const SPIN_ATTEMPTS: u32 = 100;

/// Number of attempts to take the lock after which a waiting thread sleeps between attempts. During
/// these attempts, the thread spins or yields the processor.
const ATTEMPTS_BEFORE_SLEEP: u32 = 1000;

/// Duration of each sleep between attempts to take the lock. During a sleep, the kernel can run the
/// thread that holds the lock.
const SLEEP_DURATION: Duration = Duration::from_micros(50);

/// Maximum number of times that a thread yields the processor after a fair unlock. A fair unlock
/// lets waiting threads take the lock before the unlocking thread can take it again.
const FAIR_UNLOCK_YIELDS: u32 = 100;

/// Maximum number of sleeps, of [`SLEEP_DURATION`] each, after a fair unlock. During the sleeps, a
/// waiting thread that sleeps can wake up and take the lock first. Several sleeps are needed
/// because the kernel may prolong the sleep of the waiting thread.
const FAIR_UNLOCK_SLEEPS: u32 = 8;

impl Spin {
    #[cold]
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0_u32;
        while !self.try_lock() {
            looks = looks.saturating_add(1);
            match looks {
                ..SPIN_ATTEMPTS => spin_loop(),
                SPIN_ATTEMPTS..ATTEMPTS_BEFORE_SLEEP => thread::yield_now(),
                _ => thread::sleep(SLEEP_DURATION),
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Gives waiting threads time to take the lock. Yields the processor, or sleeps in the last
/// [`FAIR_UNLOCK_SLEEPS`] calls of a series. `left` is the number of calls that remain. A separate
/// function keeps this code out of the fast path.
#[cold]
#[inline(never)]
fn yield_to_waiters(left: u32) {
    if left >= FAIR_UNLOCK_SLEEPS {
        thread::yield_now();
    } else {
        thread::sleep(SLEEP_DURATION);
    }
}

// SAFETY: only the thread that changes `is_locked` from false to true holds the lock, until it
// stores false. Acquire and Release order the critical sections.
unsafe impl RawMutex for Spin {
    const INIT: Self = Self {
        is_locked: AtomicBool::new(false),
        waiting: AtomicU32::new(0),
    };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.is_locked.swap(true, Ordering::Acquire) {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // The flag is loaded first: if the mutex is locked, its cache line stays with the processor
        // of the thread that holds the lock.
        !self.is_locked() && !self.is_locked.swap(true, Ordering::Acquire)
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.is_locked.load(Ordering::Relaxed)
    }
}

// SAFETY: these functions only use `lock` and `unlock`. `bump` returns with the lock held again.
unsafe impl RawMutexFair for Spin {
    unsafe fn unlock_fair(&self) {
        // SAFETY: the caller guarantees that it holds the lock.
        unsafe { self.unlock() };
        for left in (0..FAIR_UNLOCK_YIELDS + FAIR_UNLOCK_SLEEPS).rev() {
            if self.is_locked() || self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            yield_to_waiters(left);
        }
    }

    unsafe fn bump(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            // SAFETY: the caller guarantees that it holds the lock.
            unsafe { self.unlock_fair() };
            self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_sees_the_writes_of_the_previous_owners() {
        const PER_THREAD: u64 = 2000;
        let count = Mutex::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..PER_THREAD {
                        let mut both = count.lock();
                        assert_eq!(both.0, both.1);
                        both.0 += 1;
                        if turn % 64 == 0 {
                            thread::yield_now();
                        }
                        both.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), (4 * PER_THREAD, 4 * PER_THREAD));
        let locked = count.lock();
        assert!(count.try_lock().is_none());
        drop(locked);
        assert!(count.try_lock().is_some());
    }

    #[test]
    fn a_waiting_thread_gets_the_lock_from_a_fair_owner() {
        let turns = Mutex::new(0);
        let mut mine = turns.lock();
        thread::scope(|scope| {
            scope.spawn(|| *turns.lock() += 1);
            while *mine == 0 {
                MutexGuard::bump(&mut mine);
            }
        });
        assert_eq!(*mine, 1);
    }
}
