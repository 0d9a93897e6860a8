//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{CompletionChannel, CompletionFields, ExtendedCompletionQueueBuilder, WorkCompletion};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::{ChannelHandle, CompletionQueueHandle};

/// The identity of a completion queue, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(pub(crate) u64);

impl CompletionQueueId {
    /// Returns a new id, which no other completion queue of this process has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A queue in which the device reports completed work requests (`ibv_cq`). Any number of queue
/// pairs can share the queue. Clones refer to the same queue.
///
/// The capacity must be large enough for the completions of all requests that can be outstanding at
/// once: if the queue overflows, the queue pairs that use it fail.
///
/// A completion queue is `Send` and `Sync`: the driver locks the queue, so any thread may poll.
/// Exactly one thread gets each completion.
#[doc(alias = "ibv_cq")]
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    handle: Arc<CompletionQueueHandle>,
    id: CompletionQueueId,
}

/// A builder for a completion queue, from [`Context::completion_queue`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct CompletionQueueBuilder {
    pub(super) context: Context,
    pub(super) entries: u32,
    channel: Option<CompletionChannel>,
    pub(super) vector: u32,
}

impl CompletionQueueBuilder {
    pub(crate) fn new(context: Context, entries: u32) -> Self {
        Self {
            context,
            entries,
            channel: None,
            vector: 0,
        }
    }

    /// Sets the channel on which completion events of the queue arrive. By default the queue has no
    /// channel and generates no events.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// Sets the index of the completion vector: the interrupt by which the device signals
    /// completion events of this queue. The default is 0.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Makes the queue an extended completion queue whose completions have the fields in `fields`.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn extended(self, fields: CompletionFields) -> ExtendedCompletionQueueBuilder {
        ExtendedCompletionQueueBuilder::new(self, fields)
    }

    /// Creates the completion queue with the settings of this builder.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] for 0 entries, or for a channel of another device.
    /// - The error of `ibv_create_cq`, for example because the device does not support so many
    ///   entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<CompletionQueue> {
        let channel = checked_channel(&self, "completion queue")?;
        let handle = Arc::clone(self.context.handle());
        let id = CompletionQueueId::next();
        let handle =
            CompletionQueueHandle::create(handle, self.entries, channel, self.vector, id.0)?;
        Ok(CompletionQueue::from_handle(handle, id))
    }
}

/// Checks the settings of a new completion queue, and returns the completion channel of the
/// settings, if the program has set a channel. Fails if the queue would have 0 entries, or if the
/// channel belongs to another context. `what` is the name of the queue in the error.
pub(super) fn checked_channel(
    builder: &CompletionQueueBuilder,
    what: &'static str,
) -> Result<Option<Arc<ChannelHandle>>> {
    if builder.entries == 0 {
        return Err(Error::invalid(what, "it needs at least one entry"));
    }
    let channel = builder.channel.as_ref().map(CompletionChannel::handle);
    if channel.is_some_and(|channel| !Arc::ptr_eq(channel.context(), builder.context.handle())) {
        return Err(Error::invalid(
            what,
            "the completion channel is of another context",
        ));
    }
    Ok(channel.cloned())
}

impl CompletionQueue {
    pub(crate) fn from_handle(handle: CompletionQueueHandle, id: CompletionQueueId) -> Self {
        Self {
            handle: Arc::new(handle),
            id,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<CompletionQueueHandle> {
        &self.handle
    }

    /// Returns the id of the completion queue. Events of the queue's channel contain this id.
    pub fn id(&self) -> CompletionQueueId {
        self.id
    }

    /// Returns the maximum number of completions that the queue can hold. The result is larger than
    /// the requested capacity if the device has rounded the capacity up.
    pub fn capacity(&self) -> usize {
        self.handle.capacity()
    }

    /// Takes up to `room.len()` completions from the queue, without waiting, and returns them as
    /// the filled part of `room`. Returns an empty slice if no completion is available.
    ///
    /// ```no_run
    /// # fn example(queue: rdma_core::CompletionQueue) -> rdma_core::Result<()> {
    /// let mut room = [rdma_core::WorkCompletion::default(); 16];
    /// for completion in queue.poll(&mut room)? {
    ///     println!("{:?}", completion.status());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `ibv_poll_cq`, if the queue or the device has failed.
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll<'a>(&self, room: &'a mut [WorkCompletion]) -> Result<&'a [WorkCompletion]> {
        self.handle.poll(room)
    }

    /// Puts polled completions back into the queue. The next poll returns these completions before
    /// newer completions. A program can use this method for completions that another component of
    /// the program is waiting for.
    ///
    /// Putting completions back does not produce a completion event.
    pub fn put_back(&self, completions: &[WorkCompletion]) {
        self.handle.put_back(completions);
    }

    /// Requests that the next completion produces one completion event on the channel of the queue.
    ///
    /// Completions that are already in the queue produce no event. The program must therefore poll
    /// the queue after this call, before it waits for the event.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if the queue has no channel.
    /// - The error of `ibv_req_notify_cq`.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notification(&self) -> Result<()> {
        self.arm(false)
    }

    /// Requests one completion event on the channel of the queue. The device produces the event for
    /// the next received message that the peer [marked as
    /// solicited](crate::SendRequest::solicited), or for the next failed request.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::request_notification`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_solicited_notification(&self) -> Result<()> {
        self.arm(true)
    }

    fn arm(&self, solicited_only: bool) -> Result<()> {
        if self.handle.channel().is_none() {
            return Err(Error::invalid(
                "notification",
                "the completion queue has no channel",
            ));
        }
        self.handle.request_notification(solicited_only)
    }

    /// Changes the capacity of the queue to at least `entries` completions. The new capacity can be
    /// larger or smaller than the old capacity. Completions in the queue are kept.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] for 0 entries.
    /// - [`Error::InUse`] while a thread polls the queue as an extended queue.
    /// - The error of `ibv_resize_cq`, if the device does not support so many entries, or if the
    ///   queue contains more completions than the new capacity.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, entries: u32) -> Result<()> {
        if entries == 0 {
            return Err(Error::invalid(
                "completion queue",
                "it needs at least one entry",
            ));
        }
        self.handle.resize(entries)
    }

    /// Moderates completion events: the device delays an event until `completions` completions are
    /// available, or until `period` has passed since the first of these completions. `period` is
    /// rounded down to microseconds. If both arguments are zero, moderation is switched off.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] for a period of more than 65,535 microseconds.
    /// - The error of `ibv_modify_cq`, for example if the device does [not
    ///   support](Error::is_unsupported) moderation.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, completions: u16, period: Duration) -> Result<()> {
        self.handle.moderate(completions, period)
    }

    /// Returns the underlying `ibv_cq`. The pointer is valid as long as this queue exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_cq {
        self.handle.as_raw()
    }
}
