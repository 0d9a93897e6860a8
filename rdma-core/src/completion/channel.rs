//! Completion channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::CompletionQueueId;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ChannelHandle;

/// A channel that delivers completion events of completion queues.
///
/// The file descriptor of the channel is non-blocking. It becomes readable when an event is
/// pending, for use with `poll(2)` or an event loop; [`Self::wait`] blocks on it. Each
/// [`CompletionQueue::request_notification`](super::CompletionQueue::request_notification) produces
/// one event. A program misses no completion if it follows this order: request a notification, poll
/// the queue once more, wait, [`Self::drain`].
///
/// Any number of completion queues may use one channel; an event contains the
/// [`id`](super::CompletionQueue::id) of its queue. A channel is `Send` and `Sync`. Each event is
/// one read of the descriptor, so exactly one of several draining threads gets it.
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug, Clone)]
pub struct CompletionChannel {
    handle: Arc<ChannelHandle>,
}

impl CompletionChannel {
    /// Creates a channel on a device.
    ///
    /// # Errors
    ///
    /// The error of the verb, for example because the process has no file descriptors left.
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

    /// Reads and acknowledges all pending events, without waiting, and returns their number. Calls
    /// `each` with the queue of each event; `each` may drop that queue.
    ///
    /// # Errors
    ///
    /// The error of the verb, if the device is gone.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn drain(&self, mut each: impl FnMut(CompletionQueueId)) -> Result<usize> {
        self.handle.drain(|id| each(CompletionQueueId(id)))
    }

    /// Blocks until an event is pending, which [`drain`](Self::drain) can read, or until `timeout`
    /// has passed (`None`: no timeout). Returns whether an event is pending. A signal ends the wait
    /// early.
    ///
    /// # Errors
    ///
    /// The error of `poll(2)`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.handle.wait(timeout)
    }

    /// Returns the C object. The pointer is valid as long as this channel exists.
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
