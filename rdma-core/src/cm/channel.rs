//! Event channels.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ConnectionEvent;
use crate::error::Result;
use crate::ffi::cm::EventChannelHandle;

/// Where the events of connection identifiers arrive; clones are the same channel.
///
/// Its descriptor is non-blocking and becomes readable when an event is there, for use with
/// `poll(2)` or an event loop. Any thread may take events.
#[doc(alias = "rdma_event_channel")]
#[derive(Debug, Clone)]
pub struct EventChannel {
    handle: Arc<EventChannelHandle>,
}

impl EventChannel {
    /// Makes a channel.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::NoManager`](super::ConnectionError::NoManager) where there is no
    /// connection manager, and the verb's.
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        let handle = EventChannelHandle::create()?;
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    pub(crate) fn from_handle(handle: Arc<EventChannelHandle>) -> Self {
        Self { handle }
    }

    pub(crate) fn handle(&self) -> &Arc<EventChannelHandle> {
        &self.handle
    }

    /// Takes the next event, if there is one, without waiting.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next(&self) -> Result<Option<ConnectionEvent>> {
        Ok(self.handle.take()?.map(ConnectionEvent::from_raw))
    }

    /// Takes the next event, and waits for it up to `timeout` (`None`: without limit). `None` when
    /// that is over.
    ///
    /// # Errors
    ///
    /// The verb's, and that of `poll(2)`.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<ConnectionEvent>> {
        self.next_until(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Like [`Self::next`], up to a point in time.
    pub(super) fn next_until(&self, deadline: Option<Instant>) -> Result<Option<ConnectionEvent>> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if !self.handle.wait(deadline)? {
                return Ok(None);
            }
        }
    }

    /// How many identifiers report here.
    pub fn identifiers(&self) -> usize {
        self.handle.len()
    }

    /// The C object, valid for as long as this channel. Its events must be taken by this type
    /// alone: what identifies them is kept here.
    pub fn as_raw(&self) -> *mut ibverbs_sys::rdma_event_channel {
        self.handle.as_raw()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.handle.as_raw_fd()
    }
}
