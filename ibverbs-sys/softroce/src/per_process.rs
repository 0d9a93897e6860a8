//! Values that exist once in each process: a child of `fork` creates its own values.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of which each process has its own instance, created at the first use in the process.
///
/// A child of `fork` does not use its parent's value. Threads that the child does not have may hold
/// locks of that value forever, and the child closes the parent's sockets and other descriptors.
pub(crate) struct PerProcess<T: Send + Sync + 'static> {
    /// Pointer to the value, which is never freed. Null before the first use.
    value: AtomicPtr<T>,
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Creates a `PerProcess` without a value. The first call of [`get`](Self::get) in a process
    /// calls `make` to create the value. If two threads make the first call at the same time, both
    /// can call `make`. One of the two values is then dropped.
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
            make,
        }
    }

    /// Returns the value of this process. The first call in a process creates the value, also in a
    /// child of `fork`.
    #[inline]
    pub(crate) fn get(&self) -> &'static T {
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or points to a value that `init` has leaked, which is valid
        // until the process ends. Only shared borrows of it exist.
        unsafe { value.as_ref() }.unwrap_or_else(|| self.init())
    }

    #[cold]
    fn init(&self) -> &'static T {
        let made = Box::into_raw(Box::new((self.make)()));
        let order = Ordering::AcqRel;
        let stored = self
            .value
            .compare_exchange(ptr::null_mut(), made, order, Ordering::Acquire);
        match stored {
            // SAFETY: the value was created above and is stored, so it is never freed.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: the value was created above, and no other thread has a pointer to it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: another thread has stored this value, which is never freed.
                unsafe { &*other }
            }
        }
    }

    /// Discards the value without dropping it, so that the next use creates a new value. Takes no
    /// lock. Must be called in a child of `fork`.
    pub(crate) fn reset_in_child(&self) {
        self.value.store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn all_threads_get_the_same_value_until_it_is_cleared() {
        static VALUE: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| VALUE.get().fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 8);
        VALUE.reset_in_child();
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 0);
    }
}
