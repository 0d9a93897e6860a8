//! Injected panics inside the device. Compiled only for tests.

use std::sync::atomic::{AtomicBool, Ordering};

/// A point in the device's code at which a test can make a thread panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PanicPoint {
    /// While a queue pair receives packets. The thread holds the locks of the receiver and of the
    /// queue pair.
    Receive,
    /// While a request is posted. The thread holds the lock of the queue pair.
    Post,
}

static ASKED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Makes the next thread of this process that reaches `point` panic. Threads that reach the point
/// later do not panic.
pub fn panic_at(point: PanicPoint) {
    ASKED[point as usize].store(true, Ordering::SeqCst);
}

/// Panics if [`panic_at`] was called for `point` and no thread has panicked at this point since
/// that call.
pub(crate) fn pass(point: PanicPoint) {
    if ASKED[point as usize].load(Ordering::Relaxed)
        && ASKED[point as usize].swap(false, Ordering::SeqCst)
    {
        panic!("asked for at {point:?}");
    }
}
