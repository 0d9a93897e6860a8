//! A mutex for what is held for a moment, of which a thread needs one at each message: it takes one instruction that the
//! processors have to agree about, where one whose waiters sleep takes two, since who opens it has to see whether somebody does.
//!
//! Who finds it locked spins for a while, then lets others have the processor, then looks again from time to time: who holds it may
//! have been kept from running.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::lock_api::{self, GuardNoSend, RawMutex, RawMutexFair};

/// The mutex.
pub(crate) type Mutex<T> = lock_api::Mutex<Spin, T>;

/// One that is locked.
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Spin, T>;

/// Whether the mutex is locked.
#[derive(Debug)]
pub(crate) struct Spin {
    is_locked: AtomicBool,
    /// How many wait for it.
    waiting: AtomicU32,
}

/// Looks without a pause.
const HASTE: u32 = 100;

/// Looks between which others have the processor.
const PATIENCE: u32 = 1000;

/// Time between looks from then on.
const REST: Duration = Duration::from_micros(50);

/// Times that others get the processor before one locks it again who lets them go first: time for those who look all the time.
const COURTESY: u32 = 100;

/// Rests after that, if they still wait: time for those who look from time to time, whose rests the system makes longer.
const RESTS: u32 = 8;

impl Spin {
    #[cold]
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0_u32;
        while !self.try_lock() {
            looks = looks.saturating_add(1);
            match looks {
                ..HASTE => spin_loop(),
                HASTE..PATIENCE => thread::yield_now(),
                _ => thread::sleep(REST),
            }
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets others run: of the last turns each is a rest. Apart, so that there is less of it where nobody waits.
#[cold]
#[inline(never)]
fn let_others(left: u32) {
    if left >= RESTS {
        thread::yield_now();
    } else {
        thread::sleep(REST);
    }
}

// SAFETY: who finds the word false and makes it true has the lock, until he makes it false again: with Acquire and Release,
// so that what one did under it is seen by the next.
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
        // A load first: one that is locked stays with the processor that has it.
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

// SAFETY: as above; who gave it away has it again at the end.
unsafe impl RawMutexFair for Spin {
    unsafe fn unlock_fair(&self) {
        // SAFETY: the caller has it.
        unsafe { self.unlock() };
        for left in (0..COURTESY + RESTS).rev() {
            if self.is_locked() || self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            let_others(left);
        }
    }

    unsafe fn bump(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            // SAFETY: the caller has it.
            unsafe { self.unlock_fair() };
            self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_sees_what_those_before_did() {
        const EACH: u64 = 2000;
        let count = Mutex::new((0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..EACH {
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
        assert_eq!(*count.lock(), (4 * EACH, 4 * EACH));
        let locked = count.lock();
        assert!(count.try_lock().is_none());
        drop(locked);
        assert!(count.try_lock().is_some());
    }

    #[test]
    fn who_waits_has_his_turn_with_one_who_lets_him() {
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
