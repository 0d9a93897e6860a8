//! The source of asynchronous events.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::AsyncEvent;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ContextHandle;

/// A source of the asynchronous events of an open device, returned by [`Context::async_events`].
/// The events concern the device, its ports, and the queues that were created from the context or a
/// clone of the context.
///
/// Each event is delivered only once, to the first thread that reads it through any handle. Read
/// the events in one place, or open a separate context for each component that needs events. An
/// event is acknowledged when it is read, so dropping an object never waits for the program.
///
/// `AsyncEvents` is `Send` and `Sync`: reading an event is one `read` of the file descriptor.
///
/// The file descriptor is non-blocking and becomes readable when an event is pending, so `poll(2)`
/// or an event loop can wait for it. [`Self::wait`] blocks until then.
///
/// ```no_run
/// # fn example(context: rdma_core::Context) -> rdma_core::Result<()> {
/// use rdma_core::AsyncEvent;
///
/// let events = context.async_events()?;
/// while let Some(event) = events.wait(None)? {
///     match event {
///         AsyncEvent::PortError { port } => println!("port {port} lost its link"),
///         event if event.is_fatal() => println!("{event}"),
///         _ => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
#[doc(alias = "ibv_ack_async_event")]
#[derive(Debug, Clone)]
pub struct AsyncEvents {
    context: Arc<ContextHandle>,
}

impl AsyncEvents {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let context = Arc::clone(context.handle());
        context.set_async_nonblocking()?;
        Ok(Self { context })
    }

    /// Returns the next event, or `None` if no event is pending. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_async_event`, if the device was removed.
    #[doc(alias = "ibv_get_async_event")]
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        let event = self.context.take_event()?;
        Ok(event.map(AsyncEvent::from_raw))
    }

    /// Waits for the next event and returns it. Returns `None` if `timeout` passes first. A
    /// `timeout` of `None` means no limit. Signals do not end the wait.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_async_event`, if the device was removed, and the error of `poll(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        // A timeout that is too long for an [`Instant`] means no time limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            if !self.context.wait_event(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.async_borrowed_fd()
    }
}

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.context.async_fd()
    }
}
