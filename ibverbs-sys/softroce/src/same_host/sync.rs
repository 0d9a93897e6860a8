//! What the memory between processes is built of: the standard library's atomics, or those of a model
//! that tries every order of threads.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Lets others run while this thread waits for one of them.
pub(super) fn relax(attempt: u32) {
    #[cfg(not(all(test, loom)))]
    if attempt % 64 != 63 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
    #[cfg(all(test, loom))]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
}
