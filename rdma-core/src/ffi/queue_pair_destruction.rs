//! The destruction of a queue pair: immediately, or after an iteration over its completion queue.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::completion_queue::CompletionQueueHandle;
use super::context::positive;

/// A queue pair that is about to be destroyed, and the objects that must exist until then. The
/// program no longer uses the queue pair.
pub(super) struct QueuePairDestruction {
    pub(super) raw: NonNull<sys::ibv_qp>,
    /// Name of the queue pair in log messages.
    pub(super) name: String,
    pub(super) completions: Vec<Arc<CompletionQueueHandle>>,
    /// The objects from which the queue pair was created and which must outlive it.
    pub(super) parents: Box<dyn Any + Send>,
    /// Memory that the device may use until the queue pair is destroyed.
    pub(super) memory: Vec<Box<dyn Any + Send>>,
}

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for QueuePairDestruction {}

impl QueuePairDestruction {
    /// Destroys the queue pair. If the calling thread is iterating over a completion queue of the
    /// queue pair, defers the destruction until the iteration ends. The destruction needs the
    /// driver's lock of that completion queue, and the iteration holds this lock.
    pub(super) fn destroy(self) {
        let polled = self.completions.iter().find(|queue| queue.is_polled_here());
        if let Some(queue) = polled.map(Arc::clone) {
            return queue.run_after_poll(move || self.destroy());
        }
        // SAFETY: the queue pair is valid and destroyed once, here. After this the device uses no
        // memory of its requests (man page of ibv_destroy_qp), so `memory` may be dropped.
        let errno = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if errno != 0 {
            // The device may still use the memory, so it must never be freed.
            mem::forget(self.memory);
            let errno = positive(errno);
            tracing::error!(queue_pair = %self.name, %errno, "ibv_destroy_qp failed");
        }
        // The parents must outlive the queue pair.
        drop(self.parents);
    }
}

/// A guard that destroys a queue pair unless [`Self::release`] is called.
pub(super) struct DestroyedOnDrop(Option<QueuePairDestruction>);

impl DestroyedOnDrop {
    pub(super) fn new(destruction: QueuePairDestruction) -> Self {
        Self(Some(destruction))
    }

    /// Ends the guard without destroying the queue pair, which has another owner now.
    pub(super) fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for DestroyedOnDrop {
    fn drop(&mut self) {
        if let Some(destruction) = self.0.take() {
            destruction.destroy();
        }
    }
}
