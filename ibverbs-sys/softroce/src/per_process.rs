//! Values that exist once in each process; a child of `fork` makes its own.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is made when it is first used.
///
/// A child of `fork` leaves its parent's value alone and makes one of its own. Threads that the child does not have
/// were using the parent's value: its locks may be held for ever, and its descriptors are closed in the child.
pub(crate) struct PerProcess<T: Send + Sync + 'static> {
    /// Null, or a value that is never freed.
    value: AtomicPtr<T>,
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Makes a value that `make` initializes at its first use. Two threads that are the first at the same time may both
    /// call `make`: one result is dropped.
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self {
            value: AtomicPtr::new(ptr::null_mut()),
            make,
        }
    }

    /// Returns this process's value.
    #[inline]
    pub(crate) fn get(&self) -> &'static T {
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or that of a value that `init` has leaked, which lives as long as the process;
        // only shared borrows of it exist.
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
            // SAFETY: the value was made above and is stored, so it is never freed.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: the value was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: another thread has stored this value, which is never freed.
                unsafe { &*other }
            }
        }
    }

    /// Leaves the value alone from now on: for the handler of a child of `fork`. Does not drop the value, and takes no
    /// lock.
    pub(crate) fn forget(&self) {
        self.value.store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn all_threads_have_the_same_value_until_it_is_forgotten() {
        static VALUE: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| VALUE.get().fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 8);
        VALUE.forget();
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 0);
    }
}
