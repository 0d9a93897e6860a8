//! Where events are taken.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::AsyncEvent;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::ContextHandle;

/// The events of an open device that no completion tells: of its ports, and of the queues that were
/// made from this context and its clones. From [`Context::async_events`].
///
/// An event goes to whoever asks first, among all handles and threads: let one place take them, or
/// give everything that needs its own a context of its own. Each is acknowledged as it is taken, so
/// that no object's drop waits for the program.
///
/// They are `Send` and `Sync`: taking an event is one `read` of the descriptor.
///
/// The file descriptor is non-blocking and becomes readable when an event is there, for use with
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

    /// The next event if there is one now.
    ///
    /// # Errors
    ///
    /// The verb's, when the device is gone.
    #[doc(alias = "ibv_get_async_event")]
    pub fn take(&self) -> Result<Option<AsyncEvent>> {
        let event = self.context.take_event()?;
        Ok(event.map(AsyncEvent::from_raw))
    }

    /// Waits for the next event, for as long as `timeout` (`None`: without limit, and so never
    /// returns `None`). Signals do not end the wait.
    ///
    /// # Errors
    ///
    /// The verb's, when the device is gone, and that of `poll(2)`.
    #[doc(alias = "ibv_get_async_event")]
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>> {
        // A time that the clock cannot show is no limit.
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
