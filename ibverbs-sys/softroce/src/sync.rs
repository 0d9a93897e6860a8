//! Atomics, fences and locks for memory that several processes or many threads share: from the
//! standard library and `parking_lot` or, in models, from the model checker loom, which tries every
//! order in which threads can run.
#![forbid(unsafe_code)]

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

#[cfg(not(all(test, loom)))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// An atomic word in a cache line of its own, so that threads that write to different words do not
/// slow each other down.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) AtomicU64, [AtomicU64; 7]);

impl Line {
    /// Creates an atomic word with the value zero, alone in its cache line, in memory that is not
    /// shared with other processes.
    pub(crate) fn here() -> Self {
        Self(
            AtomicU64::new(0),
            std::array::from_fn(|_| AtomicU64::new(0)),
        )
    }
}

/// Locks `mutex` and returns its guard. The mutex comes from `parking_lot`, or from `loom` in tests
/// of thread interleavings.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(all(test, loom)))]
    return mutex.lock();
    #[cfg(all(test, loom))]
    return mutex.lock().expect("nobody panics under it");
}

/// Has the effect of a sequentially consistent fence, at no cost on x86-64. Must be called directly
/// after an atomic read-modify-write instruction of this thread: on x86-64, that instruction is a
/// fence already. The instruction and everything before it are ordered before everything after the
/// call.
#[inline]
pub(crate) fn fence_after_update() {
    // On x86-64 the read-modify-write is a full fence itself: neither loads nor stores pass an
    // instruction with a LOCK prefix (Intel SDM volume 3, "Memory Ordering in P6 and More Recent
    // Processor Families").
    #[cfg(all(target_arch = "x86_64", not(miri), not(all(test, loom))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(miri), not(all(test, loom)))))]
    fence(Ordering::SeqCst);
}

/// Pauses this thread briefly while it waits for another thread, which may need the same processor.
/// `attempt` is the number of previous pauses in the same wait. Most pauses are spins. Every 64th
/// pause yields the processor, or sleeps after a long wait.
pub(crate) fn relax(attempt: u32) {
    #[cfg(not(all(test, loom)))]
    match attempt {
        _ if attempt % 64 != 63 => std::hint::spin_loop(),
        ..4096 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
    #[cfg(all(test, loom))]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
}
