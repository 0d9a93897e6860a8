//! Event channels of the connection manager, and the connection identifiers on each channel.

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

/// The map of all connection identifiers on an event channel. The key of an identifier is the
/// address of its `rdma_cm_id` struct.
pub(super) type Ids = HashMap<usize, Weak<IdHandle>>;

/// The owner of an event channel of the connection manager (`rdma_event_channel`), with a
/// non-blocking descriptor. Dropping this value destroys the channel.
#[derive(Debug)]
pub(crate) struct EventChannelHandle {
    raw: NonNull<sys::rdma_event_channel>,
    /// The identifiers on this channel. Every operation on the channel or on one of these
    /// identifiers holds this lock.
    ids: Mutex<Ids>,
}

// SAFETY: the channel is used only under its lock, and any thread may use it.
unsafe impl Send for EventChannelHandle {}
// SAFETY: the channel is used only under its lock.
unsafe impl Sync for EventChannelHandle {}

impl EventChannelHandle {
    pub(crate) fn create() -> Result<Self> {
        // SAFETY: the call has no arguments.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match Errno::last() {
                // No RDMA device exists; or `/dev/infiniband/rdma_cm` is missing or has no driver;
                // or the kernel has another version of the interface.
                errno @ Errno(
                    libc::ENODEV | libc::ENOENT | libc::ENXIO | libc::ENOSYS | libc::EPERM,
                ) => ConnectionError::NoManager { errno }.into(),
                errno => Error::verb("rdma_create_event_channel", "this system", errno),
            });
        };
        // SAFETY: the channel was just created, and no other code owns it.
        unsafe { Self::adopt(raw) }
    }

    /// Takes ownership of an event channel, and makes its descriptor non-blocking. Destroys the
    /// channel if `fcntl` fails.
    ///
    /// # Safety
    ///
    /// The channel must be valid, and no other code may use or destroy it.
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
        // SAFETY: the descriptor stays open until the channel is destroyed, after the borrow has
        // ended.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }

    /// Locks the channel and all connection identifiers on it. Returns the guard of the lock, which
    /// contains the map of the identifiers.
    pub(super) fn lock(&self) -> MutexGuard<'_, Ids> {
        self.ids.lock()
    }

    /// Returns the number of connection identifiers whose events arrive on this channel.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Reads and acknowledges the next event of this channel, and returns a copy of the event.
    /// Returns `None`, without waiting, if no event is pending.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Option<RawEvent>> {
        loop {
            let mut ids = self.lock();
            let mut event = ptr::null_mut();
            // SAFETY: the channel is valid, and its descriptor does not block. The identifier of
            // the event exists, because identifiers are destroyed under the same lock.
            if unsafe { sys::rdma_get_cm_event(self.raw.as_ptr(), &mut event) } != 0 {
                match Errno::last().0 {
                    libc::EAGAIN => return Ok(None),
                    libc::EINTR => continue,
                    _ => return Err(failed("rdma_get_cm_event", "an event channel")),
                }
            }
            // SAFETY: the event was just taken, and its identifiers exist.
            let (id, listener, details) = unsafe {
                let (id, listener) = ((*event).id, (*event).listen_id);
                let datagram = (*id).qp_type == sys::ibv_qp_type::IBV_QPT_UD;
                (id, listener, event::copied(event, datagram))
            };
            // SAFETY: the event was just taken, is acknowledged once, and is not used afterwards.
            unsafe { sys::rdma_ack_cm_event(event) };
            let request = details.kind == sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
            let request = NonNull::new(id).filter(|_| request);
            // SAFETY: the identifier of a connection request is new and belongs to the thread that
            // takes the event (man page of rdma_get_cm_event).
            let request = request.map(|id| unsafe { IdHandle::adopt(id, self, &mut ids) });
            let about = if request.is_some() { listener } else { id };
            let owner = ids.get(&(about as usize)).and_then(Weak::upgrade);
            // From here on the code may drop identifiers, and each drop takes the lock.
            drop(ids);
            // If the map has no owner for the identifier, another thread is dropping it, and the
            // event is discarded.
            if let Some(id) = owner {
                return Ok(Some(RawEvent {
                    id,
                    request,
                    details,
                }));
            }
        }
    }

    /// Waits until an event is pending, or until `deadline` has passed; `None` means no limit.
    /// Returns whether an event is pending.
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

/// Returns `time` as a number of milliseconds for `poll(2)`. The number is rounded up, because
/// repeated waits of 0 milliseconds would be a busy loop.
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
    /// Takes ownership of an event channel that other code created, and makes its descriptor
    /// non-blocking.
    ///
    /// # Errors
    ///
    /// The error of `fcntl(2)`.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid channel, and no other code may use or destroy it. Identifiers that are
    /// already on the channel must have no pending events until
    /// [`ConnectionId::from_raw`](crate::cm::ConnectionId::from_raw) has taken ownership of them.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(raw: *mut sys::rdma_event_channel) -> Result<Self> {
        let raw = NonNull::new(raw).expect("an event channel");
        // SAFETY: the caller guarantees that the channel is valid and that no other code uses it.
        let handle = unsafe { EventChannelHandle::adopt(raw) }?;
        Ok(Self::from_handle(Arc::new(handle)))
    }
}

impl Drop for EventChannelHandle {
    fn drop(&mut self) {
        // SAFETY: the channel is valid and destroyed once, here; every identifier on it holds an
        // `Arc` of this handle, so no identifier is left.
        unsafe { sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
