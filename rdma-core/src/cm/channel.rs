//! Event channels of connection identifiers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ConnectionEvent;
use crate::error::Result;
use crate::ffi::cm::EventChannelHandle;

/// A channel that delivers the events of connection identifiers. Clones refer to the same channel.
///
/// The file descriptor is non-blocking and becomes readable when an event is pending, for use with
/// `poll(2)` or an event loop. Any thread may read events.
#[doc(alias = "rdma_event_channel")]
#[derive(Debug, Clone)]
pub struct EventChannel {
    handle: Arc<EventChannelHandle>,
}

impl EventChannel {
    /// Creates an event channel. Connection identifiers that are created with this channel deliver
    /// their events to the channel.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::NoManager`](super::ConnectionError::NoManager) if the system has no
    /// connection manager, and the error of `rdma_create_event_channel`.
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

    /// Returns the next event, or `None` if no event is pending. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of `rdma_get_cm_event`.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next(&self) -> Result<Option<ConnectionEvent>> {
        Ok(self.handle.take()?.map(ConnectionEvent::from_raw))
    }

    /// Waits for the next event and returns it. Returns `None` if `timeout` passes first. A
    /// `timeout` of `None` means no limit.
    ///
    /// # Errors
    ///
    /// The errors of `rdma_get_cm_event` and of `poll(2)`.
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<ConnectionEvent>> {
        self.next_until(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Waits for the next event and returns it. Returns `None` if `deadline` passes first.
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

    /// Returns the number of connection identifiers whose events arrive on this channel.
    pub fn identifiers(&self) -> usize {
        self.handle.len()
    }

    /// Returns the underlying `rdma_event_channel`. The pointer is valid as long as this channel
    /// exists. The caller must not read events through the pointer, because only [`EventChannel`]
    /// can assign an event to its identifier.
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
