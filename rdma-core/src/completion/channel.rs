//! Completion channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::CompletionQueueId;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ChannelHandle;

/// A channel through which completion queues notify the program of new completions
/// (`ibv_comp_channel`).
///
/// The notifications are completion events. The file descriptor of the channel is non-blocking, and
/// becomes readable when an event is pending. `poll(2)` or an event loop can wait for the
/// descriptor. [`Self::wait`] blocks until an event is pending. Each
/// [`CompletionQueue::request_notification`](super::CompletionQueue::request_notification) produces
/// one event. A program misses no completion if it repeats these steps: request a notification,
/// poll the queue until no completion is left, wait for an event, and call [`Self::drain`].
///
/// Any number of completion queues may use one channel. An event contains the
/// [`id`](super::CompletionQueue::id) of its queue. A channel is `Send` and `Sync`. If several
/// threads drain the channel at the same time, exactly one thread gets each event.
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug, Clone)]
pub struct CompletionChannel {
    handle: Arc<ChannelHandle>,
}

impl CompletionChannel {
    /// Creates a channel on the device of `context`, for completion queues of that context.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_comp_channel`, for example because the process has no file
    /// descriptors left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(context: &Context) -> Result<Self> {
        let handle = ChannelHandle::create(Arc::clone(context.handle()))?;
        Ok(Self::from_handle(handle))
    }

    pub(crate) fn from_handle(handle: ChannelHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<ChannelHandle> {
        &self.handle
    }

    /// Reads and acknowledges all pending completion events, without waiting, and returns the
    /// number of events. For each event, calls `each` with the id of the completion queue that
    /// produced the event. `each` may drop that queue.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_cq_event`, if the device was removed.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn drain(&self, mut each: impl FnMut(CompletionQueueId)) -> Result<usize> {
        self.handle.drain(|id| each(CompletionQueueId(id)))
    }

    /// Reads and acknowledges the next pending completion event, without waiting. Returns the id of
    /// the completion queue that produced the event, or `None` if no event is pending. For a single
    /// pending event, this method needs one system call, and [`drain`](Self::drain) needs two.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_cq_event`, if the device was removed.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn next_event(&self) -> Result<Option<CompletionQueueId>> {
        let id = self.handle.next_event()?;
        Ok(id.map(CompletionQueueId))
    }

    /// Blocks until a completion event is pending or until `timeout` has passed. `None` means no
    /// timeout. Returns whether an event is pending. If an event is pending, [`drain`](Self::drain)
    /// can then read it. A signal that the thread handles also ends the wait.
    ///
    /// # Errors
    ///
    /// The error of `poll(2)`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.handle.wait(timeout)
    }

    /// Returns the underlying `ibv_comp_channel`. The pointer is valid as long as this channel
    /// exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_comp_channel {
        self.handle.as_raw()
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}
