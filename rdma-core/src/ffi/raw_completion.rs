//! What the program itself vouches for: completion objects that were made elsewhere, and promises
//! that a completion queue relies on.

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
    /// Takes over a completion channel that was made elsewhere, for example by a vendor's extension.
    /// It becomes non-blocking.
    ///
    /// # Errors
    ///
    /// That of `fcntl(2)`; the channel is then destroyed.
    ///
    /// # Safety
    ///
    /// `raw` is a valid completion channel of `context`, which nothing else uses or destroys, and on
    /// which only completion queues of this crate announce.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_comp_channel) -> Result<Self> {
        let raw = NonNull::new(raw).expect("a completion channel");
        // SAFETY: the caller's promise.
        let handle = unsafe { ChannelHandle::own(raw, Arc::clone(context.handle())) }?;
        Ok(Self::from_handle(handle))
    }
}

impl CompletionQueue {
    /// Takes over a completion queue that was made elsewhere, for example by a vendor's extension.
    /// The context value that it was made with is replaced.
    ///
    /// # Safety
    ///
    /// `raw` is a valid completion queue of `context`, made with `channel` or without any, which
    /// nothing else uses or destroys, and of which no event is unacknowledged. Every completion
    /// that it tells is of a request that this crate posted, or has an id that this crate never
    /// gives out: one below 2^24.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    pub unsafe fn from_raw(
        context: &Context,
        channel: Option<&CompletionChannel>,
        raw: *mut sys::ibv_cq,
    ) -> Self {
        let raw = NonNull::new(raw).expect("a completion queue");
        let channel = channel.map(|channel| Arc::clone(channel.handle()));
        let id = CompletionQueueId::next();
        // SAFETY: the caller's promise; nobody else looks at the context value.
        let handle = unsafe {
            name(raw, id);
            CompletionQueueHandle::own(raw, Arc::clone(context.handle()), channel, None)
        };
        Self::from_handle(handle, id)
    }
}

impl ExtendedCompletionQueue {
    /// As [`CompletionQueue::from_raw`], of an extended completion queue that was made to tell
    /// `fields`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the driver gave it no function for one
    /// of the fields; it is then destroyed.
    ///
    /// # Safety
    ///
    /// As [`CompletionQueue::from_raw`].
    ///
    /// # Panics
    ///
    /// If `raw` is null.
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
        // SAFETY: the caller's promise; an extended queue begins as a plain one does.
        let handle = unsafe {
            name(raw.cast(), id);
            CompletionQueueHandle::own_extended(raw, context, channel, None, fields)
        }?;
        Ok(Self::from_handle(handle, id))
    }
}

/// Makes the channel's events call this queue `id`.
///
/// # Safety
///
/// The queue is valid and nobody else looks at its context value.
unsafe fn name(queue: NonNull<sys::ibv_cq>, id: CompletionQueueId) {
    let context = ptr::without_provenance_mut(id.0 as usize);
    // SAFETY: the caller's promise.
    unsafe { (*queue.as_ptr()).cq_context = context };
}

impl WorkCompletion {
    /// A completion that was polled elsewhere, for example by a vendor's extension.
    ///
    /// # Safety
    ///
    /// If `raw.wr_id` is the id of a request of this crate, the device has completed that request,
    /// and of a send queue also those before it: a queue that is shown this gives their memory back.
    pub unsafe fn from_raw(raw: sys::ibv_wc) -> Self {
        Self::from_raw_parts(raw)
    }
}

impl ExtendedCompletionQueueBuilder {
    /// Lets the driver go without its lock.
    ///
    /// # Safety
    ///
    /// Until the queue is destroyed, no two threads at once poll it, arm it, resize it, or modify
    /// or destroy a queue pair or shared receive queue that completes to it. The handles that
    /// could do so are `Send` and `Sync` all the same.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_SINGLE_THREADED")]
    pub unsafe fn single_threaded(self) -> Self {
        self.flag(sys::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
    }

    /// Lets the device overwrite old completions where there is no room for new ones, without an
    /// error.
    ///
    /// # Safety
    ///
    /// There is room for the completion of every request that is outstanding at any time: an entry
    /// that is overwritten while it is read tells of a request that has not completed.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub unsafe fn ignore_overrun(self) -> Self {
        self.flag(sys::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)
    }
}
