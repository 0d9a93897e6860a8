//! The synchronization primitives of a slot table: those of the standard library or, for models,
//! those of loom.

pub(super) use choice::{AtomicU64, FreeList, SharedCell};

#[cfg(not(all(test, loom)))]
mod choice {
    use std::cell::UnsafeCell;

    use crossbeam_queue::ArrayQueue;

    pub(in crate::ffi) use std::sync::atomic::AtomicU64;

    /// A value that one thread at a time may access.
    #[derive(Debug)]
    pub(in crate::ffi) struct SharedCell<T>(UnsafeCell<T>);

    impl<T> SharedCell<T> {
        pub(in crate::ffi) fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Calls `access` with exclusive access to the value.
        ///
        /// # Safety
        ///
        /// No other thread may access the value during the call.
        #[inline]
        pub(in crate::ffi) unsafe fn with<R>(&self, access: impl FnOnce(&mut T) -> R) -> R {
            // SAFETY: the caller guarantees that no other thread accesses the value.
            access(unsafe { &mut *self.0.get() })
        }
    }

    /// The list of the indexes of all free slots of a slot table.
    #[derive(Debug)]
    pub(in crate::ffi) struct FreeList(ArrayQueue<u32>);

    impl FreeList {
        /// Creates a list that contains all indexes below `count`. `count` must be at least 1.
        pub(in crate::ffi) fn of(count: u32) -> Self {
            let queue = ArrayQueue::new(count as usize);
            for index in 0..count {
                let pushed = queue.push(index);
                debug_assert!(pushed.is_ok(), "the queue has room for every index");
            }
            Self(queue)
        }

        #[inline]
        pub(in crate::ffi) fn take(&self) -> Option<u32> {
            self.0.pop()
        }

        #[inline]
        pub(in crate::ffi) fn put(&self, index: u32) {
            let pushed = self.0.push(index);
            debug_assert!(pushed.is_ok(), "the queue has room for every index");
        }

        pub(in crate::ffi) fn len(&self) -> usize {
            self.0.len()
        }
    }
}

#[cfg(all(test, loom))]
mod choice {
    use std::collections::VecDeque;

    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;

    pub(in crate::ffi) use loom::sync::atomic::AtomicU64;

    #[derive(Debug)]
    pub(in crate::ffi) struct SharedCell<T>(UnsafeCell<T>);

    impl<T> SharedCell<T> {
        pub(in crate::ffi) fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Calls `access` with exclusive access to the value.
        ///
        /// # Safety
        ///
        /// No other thread may access the value during the call. The model checks this requirement.
        pub(in crate::ffi) unsafe fn with<R>(&self, access: impl FnOnce(&mut T) -> R) -> R {
            // SAFETY: the caller guarantees exclusive access, which the model checks.
            self.0.with_mut(|value| access(unsafe { &mut *value }))
        }
    }

    /// The list of the free slots, for loom models. Loom cannot model the queue of crossbeam that
    /// the crate uses. This list gives the same memory ordering.
    #[derive(Debug)]
    pub(in crate::ffi) struct FreeList(Mutex<VecDeque<u32>>);

    impl FreeList {
        pub(in crate::ffi) fn of(count: u32) -> Self {
            Self(Mutex::new((0..count).collect()))
        }

        pub(in crate::ffi) fn take(&self) -> Option<u32> {
            self.0.lock().unwrap().pop_front()
        }

        pub(in crate::ffi) fn put(&self, index: u32) {
            let mut list = self.0.lock().unwrap();
            assert!(!list.contains(&index), "slot {index} is free twice");
            list.push_back(index);
        }

        pub(in crate::ffi) fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }
}
