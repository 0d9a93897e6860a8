//! Completion queues and channels that other code created, and `unsafe` settings of completion
//! queues.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::channel::ChannelHandle;
use super::completion_queue::CompletionQueueHandle;
use crate::completion::{
    CompletionChannel, CompletionFields, CompletionQueue, CompletionQueueId,
    ExtendedCompletionQueue, ExtendedCompletionQueueBuilder, WorkCompletion,
};
use crate::context::Context;
use crate::error::Result;

impl CompletionChannel {
    /// Takes ownership of a completion channel that other code created, for example a vendor's
    /// extension, and makes the descriptor of the channel non-blocking.
    ///
    /// # Errors
    ///
    /// The error of `fcntl(2)`. After this error the channel is destroyed.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid completion channel of `context`. No other code may use or destroy it,
    /// and only completion queues of this crate may use it for notifications.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_comp_channel) -> Result<Self> {
        let raw = NonNull::new(raw).expect("a completion channel");
        // SAFETY: the caller guarantees a channel of `context` that no other code uses.
        let handle = unsafe { ChannelHandle::adopt(raw, Arc::clone(context.handle())) }?;
        Ok(Self::from_handle(handle))
    }
}

impl CompletionQueue {
    /// Takes ownership of a completion queue that other code created, for example a vendor's
    /// extension. This function replaces the context value of the queue.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid completion queue of `context` that was created with `channel`, or
    /// without one. No other code may use or destroy the queue, and the queue must have no
    /// unacknowledged events. Each completion in the queue must belong to a request that this crate
    /// posted, or have an id below 2^24, which this crate never uses.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(
        context: &Context,
        channel: Option<&CompletionChannel>,
        raw: *mut sys::ibv_cq,
    ) -> Self {
        let raw = NonNull::new(raw).expect("a completion queue");
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let id = CompletionQueueId::next();
        // SAFETY: the caller guarantees that the queue is valid and that no other code uses it.
        let handle = unsafe {
            name(raw, id);
            CompletionQueueHandle::adopt(raw, Arc::clone(context.handle()), channel, None)
        };
        Self::from_handle(handle, id)
    }
}

impl ExtendedCompletionQueue {
    /// Takes ownership of an extended completion queue that other code created. `fields` are the
    /// fields with which the queue was created. This function replaces the context value of the
    /// queue.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the driver has no function to read one
    /// of the fields. After this error the queue is destroyed.
    ///
    /// # Safety
    ///
    /// `raw` must meet the requirements of [`CompletionQueue::from_raw`].
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(
        context: &Context,
        channel: Option<&CompletionChannel>,
        raw: *mut sys::ibv_cq_ex,
        fields: CompletionFields,
    ) -> Result<Self> {
        let raw = NonNull::new(raw).expect("an extended completion queue");
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let context = Arc::clone(context.handle());
        let id = CompletionQueueId::next();
        // SAFETY: the caller guarantees that the queue is valid and that no other code uses it; an
        // extended queue begins with the fields of a plain one.
        let handle = unsafe {
            name(raw.cast(), id);
            CompletionQueueHandle::adopt_extended(raw, context, channel, None, fields)
        }?;
        Ok(Self::from_handle(handle, id))
    }
}

/// Stores `id` as the context value (`cq_context`) of a completion queue. The events of the queue's
/// completion channel contain this value, which identifies the queue.
///
/// # Safety
///
/// The queue must be valid, and no other code may access its context value.
unsafe fn name(queue: NonNull<sys::ibv_cq>, id: CompletionQueueId) {
    let context = ptr::without_provenance_mut(id.0 as usize);
    // SAFETY: the caller guarantees a valid queue, whose field no other code accesses.
    unsafe { (*queue.as_ptr()).cq_context = context };
}

impl WorkCompletion {
    /// Creates a completion from a C struct that other code polled, for example a vendor's
    /// extension.
    ///
    /// # Safety
    ///
    /// If `raw.wr_id` is the id of a request of this crate, the device must have completed that
    /// request, and all earlier requests of the same send queue. Passing the completion to a queue
    /// returns the memory of these requests to the program.
    pub unsafe fn from_raw(raw: sys::ibv_wc) -> Self {
        Self::from_raw_parts(raw)
    }
}

impl ExtendedCompletionQueueBuilder {
    /// Makes the builder create a completion queue that the driver does not lock.
    ///
    /// # Safety
    ///
    /// Until the queue is destroyed, only one thread at a time may poll, arm or resize it, or
    /// modify or destroy a queue pair or shared receive queue that completes on it. The types do
    /// not enforce this: the handles are `Send` and `Sync`.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_SINGLE_THREADED")]
    pub unsafe fn single_threaded(self) -> Self {
        self.flag(sys::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
    }

    /// Makes the builder create a queue in which the device overwrites old completions, without an
    /// error, when the queue is full.
    ///
    /// # Safety
    ///
    /// The queue must have room for the completions of all requests that are outstanding at any
    /// time. An entry that is overwritten while it is read could report a request that has not
    /// completed.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub unsafe fn ignore_overrun(self) -> Self {
        self.flag(sys::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)
    }
}
