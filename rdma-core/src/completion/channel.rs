//! Completion channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::CompletionQueueId;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ChannelHandle;

/// A channel on which completion queues announce completions.
///
/// Its file descriptor is non-blocking and becomes readable when an announcement is there, for use
/// with `poll(2)` or an event loop; [`Self::wait`] blocks on it. An announcement comes once for each
/// [`CompletionQueue::request_notification`](super::CompletionQueue::request_notification), so the
/// order that misses none is: request, poll the queue once more, wait, [`Self::drain`].
///
/// Any number of completion queues may announce on one channel, each by its
/// [`id`](super::CompletionQueue::id). It is `Send` and `Sync`: taking an announcement is one read
/// of the descriptor, so each goes to one of the threads that drain.
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug, Clone)]
pub struct CompletionChannel {
    handle: Arc<ChannelHandle>,
}

impl CompletionChannel {
    /// Makes a channel on a device.
    ///
    /// # Errors
    ///
    /// The verb's, for example when the process has no descriptors left.
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

    /// Takes and acknowledges every announcement that is there, without waiting, and calls `each`
    /// with the queue it is from; `each` may drop that queue. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The verb's, when the device is gone.
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn drain(&self, mut each: impl FnMut(CompletionQueueId)) -> Result<usize> {
        self.handle.drain(|id| each(CompletionQueueId(id)))
    }

    /// Blocks until an announcement is there to [`drain`](Self::drain), or until `timeout` is over
    /// (`None`: without limit). Returns whether one is there; a signal ends the wait early.
    ///
    /// # Errors
    ///
    /// That of `poll(2)`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.handle.wait(timeout)
    }

    /// The C object, valid for as long as this channel.
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
