//! The end of a queue pair.

use std::any::Any;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::completion_queue::CompletionQueueHandle;
use super::context::positive;

/// A queue pair that nobody uses any more but the device, and what has to outlive it.
pub(super) struct QueuePairRemains {
    pub(super) raw: NonNull<sys::ibv_qp>,
    /// How the log names it.
    pub(super) name: String,
    pub(super) completions: [Arc<CompletionQueueHandle>; 2],
    /// The objects that it was made of.
    pub(super) parents: Box<dyn Any + Send>,
    /// Memory that the device may use until it is destroyed.
    pub(super) memory: Vec<Box<dyn Any + Send>>,
}

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for QueuePairRemains {}

impl QueuePairRemains {
    /// Destroys the queue pair; where this thread is between two entries of one of its completion
    /// queues, whose lock the driver takes for that, once it is through with them.
    pub(super) fn destroy(self) {
        let polled = self.completions.iter().find(|queue| queue.is_polled_here());
        if let Some(queue) = polled.map(Arc::clone) {
            return queue.afterwards(move || self.destroy());
        }
        // SAFETY: the queue pair is valid and destroyed once, here. After this the device uses no
        // memory of its requests (man page of ibv_destroy_qp), so `memory` may be dropped.
        let errno = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        if errno != 0 {
            // The device may still use the memory: it must never be freed.
            mem::forget(self.memory);
            let errno = positive(errno);
            tracing::error!(queue_pair = %self.name, %errno, "ibv_destroy_qp failed");
        }
        // Whatever it was made of is let go after it.
        drop(self.parents);
    }
}
