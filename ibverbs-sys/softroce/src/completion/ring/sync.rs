//! Atomics and cells that the ring uses: from the standard library or, in models, from the model
//! checker loom, which tries every order in which threads can run.

#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

#[cfg(all(test, loom))]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering},
};

/// A cell with the interface of loom's `UnsafeCell`, for builds without loom. Loom's cell tracks
/// how long a pointer into the cell is used. This cell only provides the pointer, at no cost.
#[cfg(not(all(test, loom)))]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(all(test, loom)))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(*const T) -> R) -> R {
        act(self.0.get())
    }

    #[inline]
    pub(super) fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}

/// Pauses this thread briefly, in a loop that waits for another thread. The first 100 pauses spin,
/// the next 900 yield the processor, and all later pauses sleep, because the other thread is
/// perhaps not running. Increments `attempt`, the number of earlier pauses in this loop.
#[cold]
pub(super) fn relax(attempt: &mut u32) {
    #[cfg(not(all(test, loom)))]
    {
        use std::time::Duration;

        match *attempt {
            ..100 => std::hint::spin_loop(),
            100..1000 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
        *attempt = attempt.saturating_add(1);
    }
    #[cfg(all(test, loom))]
    {
        let _ = attempt;
        loom::thread::yield_now();
    }
}
