use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Refusal;

/// Number of objects that use an object. An object cannot be destroyed while it is used, and cannot be used any more once its
/// destruction has begun.
#[derive(Debug, Default)]
pub struct Usage(AtomicUsize);

const CLOSED: usize = 1 << (usize::BITS - 1);

impl Usage {
    /// Adds a user. Fails if the object is being destroyed.
    pub fn acquire(&self) -> Result<(), Refusal> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count & CLOSED == 0).then_some(count + 1)
            })
            .map(drop)
            .map_err(|_| Refusal::Invalid)
    }

    /// Removes a user.
    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends the use of the object permanently. Fails while there are users.
    pub fn close(&self) -> Result<(), Refusal> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| Refusal::Busy)
    }

    /// Returns whether the object has users.
    pub fn in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED != 0
    }
}

/// An object whose users are counted.
pub trait Shared {
    /// Returns the usage count.
    fn usage(&self) -> &Usage;
}

/// Reference that counts as one use of an object. The user drops this value when the program destroys the user. The last `Arc`
/// of the user may live a little longer, held by a thread of the device.
pub struct Held<T: Shared>(Arc<T>);

impl<T: Shared> Held<T> {
    /// Adds a use of `object`.
    pub fn new(object: &Arc<T>) -> Result<Self, Refusal> {
        object.usage().acquire()?;
        Ok(Self(Arc::clone(object)))
    }

    /// Returns the object.
    pub fn shared(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Shared> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Shared> Drop for Held<T> {
    fn drop(&mut self) {
        self.0.usage().release();
    }
}

impl<T: Shared + fmt::Debug> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Object(Usage);

    impl Shared for Object {
        fn usage(&self) -> &Usage {
            &self.0
        }
    }

    #[test]
    fn an_object_in_use_does_not_close_and_a_closed_one_is_not_used() {
        let object = Arc::new(Object::default());
        let first = Held::new(&object).unwrap();
        let second = Held::new(&object).unwrap();
        drop(first);
        assert_eq!(object.usage().close(), Err(Refusal::Busy));
        drop(second);
        assert_eq!(object.usage().close(), Ok(()));
        assert!(Held::new(&object).is_err());
        assert_eq!(object.usage().close(), Err(Refusal::Busy));
    }
}
