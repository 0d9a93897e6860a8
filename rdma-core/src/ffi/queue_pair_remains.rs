//! Destruction of a queue pair, either immediately or after an iteration over its completion queue.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::completion_queue::CompletionQueueHandle;
use super::context::positive;

/// A queue pair that the program no longer uses and that is about to be destroyed, with the objects
/// that must outlive it.
pub(super) struct QueuePairRemains {
    pub(super) raw: NonNull<sys::ibv_qp>,
    /// Name of the queue pair in log messages.
    pub(super) name: String,
    pub(super) completions: [Arc<CompletionQueueHandle>; 2],
    /// The objects from which the queue pair was created and which must outlive it.
    pub(super) parents: Box<dyn Any + Send>,
    /// Memory that the device may use until the queue pair is destroyed.
    pub(super) memory: Vec<Box<dyn Any + Send>>,
}

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for QueuePairRemains {}

impl QueuePairRemains {
    /// Destroys the queue pair. The driver takes the locks of the completion queues for the
    /// destruction. If this thread is iterating over one of these queues and so holds its lock, the
    /// destruction is deferred until the iteration ends.
    pub(super) fn destroy(self) {
        let polled = self.completions.iter().find(|queue| queue.is_polled_here());
        if let Some(queue) = polled.map(Arc::clone) {
            return queue.afterwards(move || self.destroy());
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
