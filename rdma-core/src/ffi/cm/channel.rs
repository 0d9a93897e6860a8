//! An event channel.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ibverbs_sys as sys;
use parking_lot::{Mutex, MutexGuard};

use super::event::{self, RawEvent};
use super::failed;
use super::id::IdHandle;
use crate::cm::{ConnectionError, EventChannel};
use crate::error::{Errno, Error, Result};

/// The identifiers on a channel, by their addresses.
pub(super) type Ids = HashMap<usize, Weak<IdHandle>>;

/// Owner of an `rdma_event_channel`, whose descriptor is non-blocking.
#[derive(Debug)]
pub(crate) struct EventChannelHandle {
    raw: NonNull<sys::rdma_event_channel>,
    /// Held while anything is done with the channel or an identifier on it.
    ids: Mutex<Ids>,
}

// SAFETY: the channel is used under its lock only, and any thread may use it.
unsafe impl Send for EventChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for EventChannelHandle {}

impl EventChannelHandle {
    pub(crate) fn create() -> Result<Self> {
        // SAFETY: it takes nothing.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match Errno::last() {
                // No RDMA device; no `/dev/infiniband/rdma_cm`, or nothing behind it; an interface
                // of another version.
                errno @ Errno(
                    libc::ENODEV | libc::ENOENT | libc::ENXIO | libc::ENOSYS | libc::EPERM,
                ) => ConnectionError::NoManager { errno }.into(),
                errno => Error::verb("rdma_create_event_channel", "this system", errno),
            });
        };
        // SAFETY: the channel was just created and is owned by nobody else.
        unsafe { Self::adopt(raw) }
    }

    /// Takes ownership of a channel.
    ///
    /// # Safety
    ///
    /// The channel is valid and nobody else uses or destroys it.
    unsafe fn adopt(raw: NonNull<sys::rdma_event_channel>) -> Result<Self> {
        let channel = Self {
            raw,
            ids: Mutex::default(),
        };
        let fd = channel.as_raw_fd();
        // SAFETY: reads and sets the status flags of a descriptor that this channel owns.
        let refused = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        };
        if refused {
            return Err(failed("fcntl", "an event channel"));
        }
        Ok(channel)
    }

    pub(crate) fn as_raw(&self) -> *mut sys::rdma_event_channel {
        self.raw.as_ptr()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until the channel is destroyed, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }

    /// Excludes every other use of the channel and of the identifiers on it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock()
    }

    /// How many identifiers are on the channel.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes and acknowledges the next event, if there is one, without waiting.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Option<RawEvent>> {
        loop {
            let mut ids = self.lock();
            let mut event = ptr::null_mut();
            // SAFETY: the channel is valid, and its descriptor does not block. The identifier that
            // the event is about exists: it is destroyed under the same lock.
            if unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &mut event) } != 0 {
                match Errno::last().0 {
                    libc::EAGAIN => return Ok(None),
                    libc::EINTR => continue,
                    _ => return Err(failed("rdma_get_cm_event", "an event channel")),
                }
            }
            // SAFETY: the event was just taken, and the identifier it names exists.
            let (id, listener, details) = unsafe {
                let (id, listener) = ((*event).id, (*event).listen_id);
                let datagram = (*id).qp_type == sys::ibv_qp_type::IBV_QPT_UD;
                (id, listener, event::copied(event, datagram))
            };
            // SAFETY: the event was just taken, and is acknowledged once; nothing of it is used
            // after this.
            unsafe { sys::rdma_ack_cm_event(event) };
            let request = details.kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
            let request = NonNull::new(id).filter(|_| request);
            // SAFETY: the identifier of a connection request is new and belongs to who takes the
            // event (man page of rdma_get_cm_event).
            let request = request.map(|id| unsafe { IdHandle::adopt(id, self, &mut ids) });
            let about = if request.is_some() { listener } else { id };
            let owner = ids.get(&(about as usize)).and_then(Weak::upgrade);
            // From here on identifiers may be dropped, which takes the lock.
            drop(ids);
            // Without an owner it is about an identifier that is just being dropped.
            if let Some(id) = owner {
                return Ok(Some(RawEvent {
                    id,
                    request,
                    details,
                }));
            }
        }
    }

    /// Waits until an event is there, or until `deadline` (`None`: without limit); tells which.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<bool> {
        loop {
            let milliseconds = match deadline {
                None => -1,
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    rounded_up(left)
                }
            };
            let mut poll = libc::pollfd {
                fd: self.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: `poll` is one valid entry.
            match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
                0 if deadline.is_some_and(|deadline| Instant::now() < deadline) => {}
                0 => return Ok(false),
                ready if ready > 0 => return Ok(true),
                _ if Errno::last().0 == libc::EINTR => {}
                _ => return Err(failed("poll", "an event channel")),
            }
        }
    }
}

/// In milliseconds, and never 0 for some time: a short wait must not become a spin.
fn rounded_up(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}

impl AsRawFd for EventChannelHandle {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is valid; the field is set at creation and never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl EventChannel {
    /// Takes over a channel that was made elsewhere, and makes its descriptor non-blocking.
    ///
    /// # Errors
    ///
    /// That of `fcntl(2)`.
    ///
    /// # Safety
    ///
    /// `raw` is a valid channel, which nothing else uses or destroys. Identifiers that are on it
    /// already, and that [`ConnectionId::from_raw`](crate::ConnectionId::from_raw) did not take over
    /// yet, have no events that are waiting.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    pub unsafe fn from_raw(raw: *mut sys::rdma_event_channel) -> Result<Self> {
        let raw = NonNull::new(raw).expect("an event channel");
        // SAFETY: the caller's.
        let handle = unsafe { EventChannelHandle::adopt(raw) }?;
        Ok(Self::from_handle(Arc::new(handle)))
    }
}

impl Drop for EventChannelHandle {
    fn drop(&mut self) {
        // SAFETY: the channel is valid and destroyed once, here; every identifier on it holds an
        // `Arc` of this handle, so none is left.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
