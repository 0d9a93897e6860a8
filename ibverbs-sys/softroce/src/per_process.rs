//! Values that exist once in each process; a child of `fork` makes its own.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is made when it is first used.
///
/// A child of `fork` leaves its parent's value alone and makes one of its own. The parent's was in use by threads that
/// the child does not have: its locks may be held for ever, and its descriptors are closed in the child.
pub(crate) struct PerProcess<T: Send + Sync + 'static> {
    /// Null, or a value that is never freed.
    value: AtomicPtr<T>,
    make: fn() -> T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// A value that `make` makes. Two threads that are the first at the same time may both call it: one result is
    /// dropped.
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
        // SAFETY: null, or a value that was leaked by `init`, and so is there for as long as the process; it is only
        // ever borrowed shared.
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
            // SAFETY: made above and stored, so nobody frees it.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: another thread's, stored by the line above: nobody frees it.
                unsafe { &*other }
            }
        }
    }

    /// Leaves the value alone from now on: for the handler of a child of `fork`. Does not drop it, and takes no lock.
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
