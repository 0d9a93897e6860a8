//! [`DeviceEvents`]: a stream of the asynchronous events of a device.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use rdma_core::{AsyncEvent, AsyncEvents};
use tokio::io::unix::AsyncFd;

use crate::device::RdmaDevice;
use crate::error::{Error, Result};

/// A stream of the asynchronous events of a device: changes of its ports and addresses, and
/// failures that no completion reports. Created by [`RdmaDevice::events`].
///
/// ```
/// use rdma_async::RdmaDevice;
/// # use rdma_core::AsyncEvent;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// let device = RdmaDevice::open_default()?;
/// let mut events = device.events()?;
/// # let mut listener = device.builder().bind("127.0.0.1:0").await?;
/// # let address = listener.local_address()?;
/// # let (client, server) =
/// #     tokio::try_join!(device.builder().connect(address), listener.accept())?;
/// # drop(server);
/// // The peer has closed the connection, so its queue pair takes no more receives.
/// let event = events.next_event().await?;
/// # assert!(matches!(event, AsyncEvent::LastRequestReached { .. }), "{event}");
/// println!("{event}");
/// # drop(client);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_get_async_event")]
#[derive(Debug)]
pub struct DeviceEvents {
    events: AsyncEvents,
    /// Duplicate of the file descriptor of the events. The runtime registers a descriptor only
    /// once, and all streams of a device share one descriptor.
    watched: AsyncFd<OwnedFd>,
}

impl RdmaDevice {
    /// Returns a stream of the asynchronous events of the device, which waits on the current
    /// runtime. Each event is delivered once: if the device has several streams, only one stream
    /// gets the event.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device has no events. [`Error::Tcp`] if the runtime cannot wait for
    /// them.
    #[doc(alias = "ibv_get_async_event")]
    pub fn events(&self) -> Result<DeviceEvents> {
        let events = self.context().async_events()?;
        let watched = events.as_fd().try_clone_to_owned().map_err(wait_error)?;
        // The replacement of `new` is unsafe because a type may return a different descriptor in
        // each call, or a descriptor that it does not own.
        #[expect(
            deprecated,
            reason = "the replacement is unsafe for types unlike this one"
        )]
        let watched = AsyncFd::new(watched).map_err(wait_error)?;
        Ok(DeviceEvents { events, watched })
    }
}

impl DeviceEvents {
    /// Waits for the next event, and returns it. Cancel-safe: dropping the future loses no event.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the device was removed.
    pub async fn next_event(&mut self) -> Result<AsyncEvent> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<AsyncEvent>> {
        loop {
            if let Some(event) = self.events.take()? {
                return Poll::Ready(Ok(event));
            }
            ready!(self.watched.poll_read_ready(cx))
                .map_err(wait_error)?
                .clear_ready();
        }
    }
}

fn wait_error(source: io::Error) -> Error {
    Error::tcp("waiting for", "the events of a device", source)
}

impl Stream for DeviceEvents {
    type Item = Result<AsyncEvent>;

    /// Polls for the next asynchronous event of the device. Never returns `None`, because the
    /// stream does not end.
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx).map(Some)
    }
}
