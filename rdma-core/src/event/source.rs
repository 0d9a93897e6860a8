//! The source of asynchronous events.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::AsyncEvent;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ContextHandle;

/// The asynchronous events of an open device: of its ports, and of the queues that were created
/// from this context or its clones. From [`Context::async_events`].
///
/// Each event is delivered only once, to the first caller among all handles and threads. Read the
/// events in one place, or open a separate context for each part of the program that needs events.
/// An event is acknowledged when it is read, so dropping an object never waits for the program.
///
/// `AsyncEvents` is `Send` and `Sync`: reading an event is one `read` of the file descriptor.
///
/// The file descriptor is non-blocking and becomes readable when an event is pending, for use with
/// `poll(2)` or an event loop; [`Self::wait`] blocks on it.
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

    /// Returns the next event if one is pending.
    ///
    /// # Errors
    ///
    /// The error of the verb, if the device is gone.
    #[doc(alias = "ibv_get_async_event")]
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        let event = self.context.take_event()?;
        Ok(event.map(AsyncEvent::from_raw))
    }

    /// Waits for the next event until `timeout` has passed, and then returns `None`. Without a
    /// timeout (`None`) the method always returns an event. Signals do not end the wait.
    ///
    /// # Errors
    ///
    /// The error of the verb, if the device is gone, and the error of `poll(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        // A timeout beyond the range of the clock means no timeout.
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
