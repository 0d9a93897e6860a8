//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{CompletionChannel, CompletionFields, ExtendedCompletionQueueBuilder, WorkCompletion};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::{ChannelHandle, CompletionQueueHandle};

/// Tells completion queues of this process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompletionQueueId(pub(crate) u64);

impl CompletionQueueId {
    /// One that no queue has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A queue of completions, shared by any number of queue pairs; clones are the same queue.
///
/// Make it large enough for every request that can be outstanding at once: when it overflows, its
/// queue pairs fail.
///
/// It is `Send` and `Sync`: the driver has a lock of its own, so any thread may poll. Each
/// completion goes to one of them.
#[doc(alias = "ibv_cq")]
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    handle: Arc<CompletionQueueHandle>,
    id: CompletionQueueId,
}

/// Settings of a completion queue to be, from [`Context::completion_queue`].
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

    /// Announces completions on this channel.
    pub fn channel(mut self, channel: &CompletionChannel) -> Self {
        self.channel = Some(channel.clone());
        self
    }

    /// Which of the device's completion vectors (interrupts) announces. Default 0.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Makes it an extended queue, whose completions tell these fields.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn extended(self, fields: CompletionFields) -> ExtendedCompletionQueueBuilder {
        ExtendedCompletionQueueBuilder::new(self, fields)
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 entries or a channel of another device, and the verb's, for
    /// example when the device cannot hold so many entries.
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

/// The channel that was chosen, if that and the number of entries are good.
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

    /// What its channel's announcements name it.
    pub fn id(&self) -> CompletionQueueId {
        self.id
    }

    /// How many completions it has room for, at least what was asked for.
    pub fn capacity(&self) -> usize {
        self.handle.capacity()
    }

    /// Takes up to `room.len()` completions, without waiting; none is an empty slice.
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
    /// The verb's, when the queue or the device has failed.
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll<'a>(&self, room: &'a mut [WorkCompletion]) -> Result<&'a [WorkCompletion]> {
        self.handle.poll(room)
    }

    /// Gives completions that were polled to whoever polls next, before any newer ones: of
    /// requests that another part of the program waits for.
    ///
    /// It announces nothing on the channel.
    pub fn put_back(&self, completions: &[WorkCompletion]) {
        self.handle.put_back(completions);
    }

    /// Asks for one announcement on the channel, at the next completion.
    ///
    /// Completions that came before are not announced: poll once more after this.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a channel, and the verb's.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notification(&self) -> Result<()> {
        self.arm(false)
    }

    /// Like [`Self::request_notification`], at the next completion of a receive whose sender marked
    /// it solicited, or of a failure.
    ///
    /// # Errors
    ///
    /// As [`Self::request_notification`].
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

    /// Makes room for at least `entries` completions, more or fewer than there was for. The
    /// completions in it stay.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 entries; [`Error::InUse`] within a poll of an extended
    /// queue; and the verb's: the device cannot hold so many, or more completions are in it than
    /// there would be room for.
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

    /// Lets an announcement wait until there are `completions`, or until `period` after the first
    /// of them, which is rounded down to microseconds. Zero of both ends that.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a period of more than 65,535 microseconds, and the verb's,
    /// which is [unsupported](Error::is_unsupported) where the device cannot do this.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, completions: u16, period: Duration) -> Result<()> {
        self.handle.moderate(completions, period)
    }

    /// The C object, valid for as long as this queue.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_cq {
        self.handle.as_raw()
    }
}
