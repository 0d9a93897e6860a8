//! Injected panics inside the device. Compiled only for tests.

use std::sync::atomic::{AtomicBool, Ordering};

/// A point in the device's code at which a thread can be made to panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum PanicPoint {
    /// The point where a queue pair receives packets; the receiver and the queue pair are locked.
    Receive,
    /// The point where a request is posted; the queue pair is locked.
    Post,
}

static ASKED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Makes the next thread of this process that reaches `point` panic. Only one thread panics.
pub fn panic_at(point: PanicPoint) {
    ASKED[point as usize].store(true, Ordering::SeqCst);
}

/// Panics if [`panic_at`] was called for `point` and no thread has panicked there since.
pub(crate) fn pass(point: PanicPoint) {
    if ASKED[point as usize].load(Ordering::Relaxed)
        && ASKED[point as usize].swap(false, Ordering::SeqCst)
    {
        panic!("asked for at {point:?}");
    }
}
