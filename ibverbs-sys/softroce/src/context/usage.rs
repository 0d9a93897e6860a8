use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Refusal;

/// Usage count of an object: the number of other objects that use it. Destroying the object fails
/// while the number is not zero ([`close`](Self::close)). Using the object fails after its
/// destruction has begun ([`acquire`](Self::acquire)).
#[derive(Debug, Default)]
pub struct Usage(AtomicUsize);

/// Bit of the usage count that is set when the destruction of the object begins. The other bits
/// contain the number of uses.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Usage {
    /// Increments the usage count of the object. Fails if the object is being destroyed.
    pub fn acquire(&self) -> Result<(), Refusal> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count & CLOSED == 0).then_some(count + 1)
            })
            .map(drop)
            .map_err(|_| Refusal::Invalid)
    }

    /// Decrements the usage count of the object: the number of other objects that use it. Must be
    /// called once for each call of [`acquire`](Self::acquire) that succeeded.
    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Marks the object as being destroyed, so that it can no longer be used. Fails while other
    /// objects use it.
    pub fn close(&self) -> Result<(), Refusal> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| Refusal::Busy)
    }

    /// Returns whether other objects use the object, so that it cannot be destroyed.
    pub fn in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED != 0
    }
}

/// An object with a usage count: the number of other objects that use it. The object is not
/// destroyed while it is used.
pub trait HasUsage {
    /// Returns the usage count of this object: the number of other objects that use it. The object
    /// can be destroyed only if the number is zero.
    fn usage(&self) -> &Usage;
}

/// Reference from one object to another object of the type `T` that it uses. The used object cannot
/// be destroyed while the reference exists, because its [`Usage`] counts the reference. The
/// reference is dropped when the program destroys the using object, even if a thread of the device
/// still holds an `Arc` of the using object.
pub struct InUse<T: HasUsage>(Arc<T>);

impl<T: HasUsage> InUse<T> {
    /// Creates a reference to `object`, which counts as a use of it: the object cannot be destroyed
    /// until the reference is dropped. Fails if the object is being destroyed already.
    pub fn new(object: &Arc<T>) -> Result<Self, Refusal> {
        object.usage().acquire()?;
        Ok(Self(Arc::clone(object)))
    }

    /// Returns the object to which this reference refers. The object cannot be destroyed while the
    /// reference exists. Clones of the returned `Arc` do not prevent the destruction.
    pub fn shared(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: HasUsage> Deref for InUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: HasUsage> Drop for InUse<T> {
    fn drop(&mut self) {
        self.0.usage().release();
    }
}

impl<T: HasUsage + fmt::Debug> fmt::Debug for InUse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Object(Usage);

    impl HasUsage for Object {
        fn usage(&self) -> &Usage {
            &self.0
        }
    }

    #[test]
    fn an_object_in_use_is_not_closed_and_a_closed_object_is_not_used() {
        let object = Arc::new(Object::default());
        let first = InUse::new(&object).unwrap();
        let second = InUse::new(&object).unwrap();
        drop(first);
        assert_eq!(object.usage().close(), Err(Refusal::Busy));
        drop(second);
        assert_eq!(object.usage().close(), Ok(()));
        assert!(InUse::new(&object).is_err());
        assert_eq!(object.usage().close(), Err(Refusal::Busy));
    }
}
