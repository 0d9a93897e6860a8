//! Asynchronous events of a device: reading, acknowledging and waiting for them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use ibverbs_sys as sys;
use sys::ibv_event_type as Kind;

use super::context::ContextHandle;
use crate::error::{Errno, Error, Result};

/// A copy of an asynchronous event of a device. The original event has already been acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawEvent {
    /// The type of the event, as the C enumeration.
    pub(crate) kind: sys::ibv_event_type,
    /// The identifier of the object that the event affects: the number of a queue pair, work queue
    /// or port; the context value of a completion queue or shared receive queue; 0 for the device.
    pub(crate) about: u64,
}

impl ContextHandle {
    /// Makes the file descriptor for asynchronous events non-blocking. The change is permanent.
    pub(crate) fn set_async_nonblocking(&self) -> Result<()> {
        let fd = self.async_fd();
        // SAFETY: reads and sets the status flags of a descriptor that this context owns.
        let failed = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        };
        if failed {
            let errno = Errno::last();
            return Err(Error::verb("fcntl", self.describe(), errno));
        }
        Ok(())
    }

    /// Reads and acknowledges the next asynchronous event. Returns `None` if no event is pending.
    /// The event descriptor must be non-blocking.
    pub(crate) fn take_event(&self) -> Result<Option<RawEvent>> {
        let mut event = sys::ibv_async_event::default();
        // SAFETY: the context is open and `event` is a valid place for the event.
        while unsafe { sys::ibv_get_async_event(self.as_raw(), &mut event) } != 0 {
            match Errno::last() {
                Errno(libc::EINTR) => {}
                Errno(libc::EAGAIN) => return Ok(None),
                errno => {
                    return Err(Error::verb("ibv_get_async_event", self.describe(), errno));
                }
            }
        }
        // SAFETY: the event was just taken and is not acknowledged.
        let about = unsafe { about(&event) };
        // SAFETY: the event was taken above, and is acknowledged once.
        unsafe { sys::ibv_ack_async_event(&mut event) };
        Ok(Some(RawEvent {
            kind: event.event_type,
            about,
        }))
    }

    /// Waits until an asynchronous event is pending, or until `deadline` has passed. A `deadline`
    /// of `None` means no limit. Returns whether an event is pending.
    pub(crate) fn wait_event(&self, deadline: Option<Instant>) -> Result<bool> {
        wait_readable(self.async_borrowed_fd(), deadline)
            .map_err(|errno| Error::verb("poll", self.describe(), errno))
    }
}

/// Returns the identifier of the object that `event` affects: see [`RawEvent::about`].
///
/// # Safety
///
/// The event must have been taken, and not yet acknowledged.
unsafe fn about(event: &sys::ibv_async_event) -> u64 {
    // SAFETY: the kind of the event determines which pointer is valid (man page of
    // ibv_get_async_event). The object exists, because its destruction waits for the
    // acknowledgement. An element that the library did not write is all zeroes.
    unsafe {
        match event.event_type {
            Kind::IBV_EVENT_QP_FATAL
            | Kind::IBV_EVENT_QP_REQ_ERR
            | Kind::IBV_EVENT_QP_ACCESS_ERR
            | Kind::IBV_EVENT_COMM_EST
            | Kind::IBV_EVENT_SQ_DRAINED
            | Kind::IBV_EVENT_PATH_MIG
            | Kind::IBV_EVENT_PATH_MIG_ERR
            | Kind::IBV_EVENT_QP_LAST_WQE_REACHED => (*event.element.qp).qp_num.into(),
            Kind::IBV_EVENT_CQ_ERR => (*event.element.cq).cq_context.addr() as u64,
            Kind::IBV_EVENT_SRQ_ERR | Kind::IBV_EVENT_SRQ_LIMIT_REACHED => {
                (*event.element.srq).srq_context.addr() as u64
            }
            Kind::IBV_EVENT_WQ_FATAL => (*event.element.wq).wq_num.into(),
            Kind::IBV_EVENT_PORT_ACTIVE
            | Kind::IBV_EVENT_PORT_ERR
            | Kind::IBV_EVENT_LID_CHANGE
            | Kind::IBV_EVENT_PKEY_CHANGE
            | Kind::IBV_EVENT_SM_CHANGE
            | Kind::IBV_EVENT_CLIENT_REREGISTER
            | Kind::IBV_EVENT_GID_CHANGE
            | DEVICE_SPEED_CHANGE => u64::try_from(event.element.port_num).unwrap_or(0),
            _ => 0,
        }
    }
}

/// The type of the asynchronous event that reports a change of a port's speed
/// (`IBV_EVENT_DEVICE_SPEED_CHANGE`). Defined here because the C headers of the bindings lack this
/// constant.
pub(crate) const DEVICE_SPEED_CHANGE: Kind = Kind(20);

/// Waits until `fd` is readable, or until `deadline` has passed. A `deadline` of `None` means no
/// limit. Returns whether `fd` is readable.
fn wait_readable(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> Result<bool, Errno> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let (milliseconds, last) = match deadline {
            None => (-1, false),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up: a wait of less than a millisecond must not become a busy loop.
                let left = left.as_micros().div_ceil(1000);
                i32::try_from(left).map_or((i32::MAX, false), |left| (left, true))
            }
        };
        // SAFETY: `poll` is one valid entry.
        match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
            0 if last => return Ok(false),
            0 => {}
            ready if ready > 0 => return Ok(true),
            _ => match Errno::last() {
                Errno(libc::EINTR) => {}
                errno => return Err(errno),
            },
        }
    }
}
