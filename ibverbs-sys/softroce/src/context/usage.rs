use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Refusal;

/// How many other objects use an object. Its destruction is refused while there are any, and once
/// it is allowed nobody can begin to use it.
#[derive(Debug, Default)]
pub struct Usage(AtomicUsize);

const CLOSED: usize = 1 << (usize::BITS - 1);

impl Usage {
    /// One user more; refused when the object is being destroyed.
    pub fn acquire(&self) -> Result<(), Refusal> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count & CLOSED == 0).then_some(count + 1)
            })
            .map(drop)
            .map_err(|_| Refusal::Invalid)
    }

    /// One user less.
    pub fn release(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends the object's use for good; refused while there are users.
    pub fn close(&self) -> Result<(), Refusal> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|_| Refusal::Busy)
    }

    /// Whether anybody uses the object.
    pub fn in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED != 0
    }
}

/// An object that counts its users.
pub trait Shared {
    /// The count.
    fn usage(&self) -> &Usage;
}

/// An object in use. The user gives it up when it is destroyed itself, not when its last reference
/// goes: a thread of the device may hold that a little longer.
pub struct Held<T: Shared>(Arc<T>);

impl<T: Shared> Held<T> {
    /// Begins to use `object`.
    pub fn new(object: &Arc<T>) -> Result<Self, Refusal> {
        object.usage().acquire()?;
        Ok(Self(Arc::clone(object)))
    }

    /// The object.
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
