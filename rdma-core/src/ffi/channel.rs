//! A completion event channel, on which completion queues notify the program.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::context::{ContextHandle, positive};
use crate::error::{Errno, Error, Result};

/// Maximum number of events that [`ChannelHandle::drain`] reads at a time. The array for these
/// events has this length and is on the stack.
const BATCH: usize = 16;

/// The owner of a completion channel (`ibv_comp_channel`) with a non-blocking descriptor. Dropping
/// this value destroys the channel.
#[derive(Debug)]
pub(crate) struct ChannelHandle {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Arc<ContextHandle>,
    /// Number of completion queues attached to this channel. [`Self::drain_alone`] holds the lock
    /// while it reads events, so that no second queue can be attached during that time.
    queues: Mutex<usize>,
}

// SAFETY: verbs are thread-safe on a channel: an event is one `read` of its descriptor.
unsafe impl Send for ChannelHandle {}
// SAFETY: verbs are thread-safe on a channel: an event is one `read` of its descriptor.
unsafe impl Sync for ChannelHandle {}

impl ChannelHandle {
    pub(crate) fn create(context: Arc<ContextHandle>) -> Result<Self> {
        // SAFETY: the handle of the context keeps it open.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_raw()) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb(
                "ibv_create_comp_channel",
                context.describe(),
                errno,
            ));
        };
        // SAFETY: the channel was just created from this context.
        unsafe { Self::adopt(raw, context) }
    }

    /// Takes ownership of a completion channel, and makes its descriptor non-blocking. Destroys the
    /// channel if `fcntl` fails.
    ///
    /// # Safety
    ///
    /// The channel must be valid and created from `context`, and no other code may own it.
    pub(super) unsafe fn adopt(
        raw: NonNull<sys::ibv_comp_channel>,
        context: Arc<ContextHandle>,
    ) -> Result<Self> {
        let channel = Self {
            raw,
            context,
            queues: Mutex::new(0),
        };
        channel.set_nonblocking()?;
        Ok(channel)
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_comp_channel {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open until the channel is destroyed, after the borrow has
        // ended.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    /// Adds 1 to the number of completion queues that are attached to this channel.
    pub(super) fn attach(&self) {
        *self.queues.lock() += 1;
    }

    /// Subtracts 1 from the number of completion queues that are attached to this channel. The
    /// caller must ensure that the detached queue generates no further events.
    pub(super) fn detach(&self) {
        *self.queues.lock() -= 1;
    }

    /// Reads and discards all pending events if exactly one completion queue is attached to this
    /// channel. All events are then for that queue. Returns `true` in this case. With any other
    /// number of queues, reads no event and returns `false`.
    pub(crate) fn drain_alone(&self) -> Result<bool> {
        let queues = self.queues.lock();
        let is_alone = *queues == 1;
        if is_alone {
            self.drain(|_| ())?;
        }
        Ok(is_alone)
    }

    /// Reads and acknowledges every pending event, and calls `each` with the context value of the
    /// completion queue that produced the event. The context value is the id that was set when the
    /// queue was created. Returns the number of events.
    pub(crate) fn drain(&self, mut each: impl FnMut(u64)) -> Result<usize> {
        let mut taken = 0;
        loop {
            let mut contexts = [0; BATCH];
            // `take` has acknowledged these events. `each` may drop a queue, and the destruction of
            // a queue waits for the acknowledgement of its events.
            let (count, outcome) = self.take(&mut contexts);
            taken += count;
            contexts[..count].iter().copied().for_each(&mut each);
            outcome?;
            if count < BATCH {
                return Ok(taken);
            }
        }
    }

    /// Reads and acknowledges one pending event, and returns the context value (id) of the
    /// completion queue that produced the event. Returns `None` if no event is pending.
    pub(crate) fn next_event(&self) -> Result<Option<u64>> {
        let mut context = [0];
        let (count, outcome) = self.take(&mut context);
        outcome?;
        Ok((count > 0).then_some(context[0]))
    }

    /// Reads and acknowledges up to `contexts.len()` pending events. Stores in `contexts`, for each
    /// event, the context value (id) of the completion queue that produced the event. Returns the
    /// number of events, and the error if reading an event failed.
    fn take(&self, contexts: &mut [u64]) -> (usize, Result<()>) {
        let mut taken = 0;
        // An acknowledgement takes a lock and wakes waiters, so consecutive events of one queue are
        // acknowledged together.
        let mut run: Option<(*mut sys::ibv_cq, u32)> = None;
        let mut outcome = Ok(());
        while taken < contexts.len() {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel and both places are valid; the descriptor does not block.
            let failed =
                unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut context) };
            if failed != 0 {
                let errno = Errno::last();
                match errno.0 {
                    libc::EAGAIN => break,
                    libc::EINTR => continue,
                    _ => {
                        outcome = Err(self.error("ibv_get_cq_event", errno));
                        break;
                    }
                }
            }
            contexts[taken] = context as u64;
            taken += 1;
            run = Some(match run {
                Some((current, count)) if current == queue => (current, count + 1),
                Some((current, count)) => {
                    acknowledge(current, count);
                    (queue, 1)
                }
                None => (queue, 1),
            });
        }
        if let Some((queue, count)) = run {
            acknowledge(queue, count);
        }
        (taken, outcome)
    }

    /// Waits until an event is pending, or until `timeout` has passed; `None` means no limit.
    /// Returns whether an event is pending. A signal also ends the wait, with the result `false`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        let milliseconds = match timeout {
            None => -1,
            // Rounded up: a wait of less than a millisecond must not become a busy loop.
            Some(timeout) => i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
        };
        let mut poll = libc::pollfd {
            fd: self.raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one valid entry.
        match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
            0 => Ok(false),
            ready if ready > 0 => Ok(true),
            _ => match Errno::last() {
                Errno(libc::EINTR) => Ok(false),
                errno => Err(self.error("poll", errno)),
            },
        }
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is valid; the field is set at creation and never changes.
        unsafe { (*self.raw.as_ptr()).fd }
    }

    fn set_nonblocking(&self) -> Result<()> {
        let fd = self.raw_fd();
        // SAFETY: reads and sets the status flags of a descriptor that this channel owns.
        let failed = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            flags < 0 || libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        };
        if failed {
            Err(self.error("fcntl", Errno::last()))
        } else {
            Ok(())
        }
    }

    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::verb(
            verb,
            format!("a completion channel of {}", self.context.describe()),
            errno,
        )
    }
}

impl AsRawFd for ChannelHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.raw_fd()
    }
}

/// Acknowledges `count` events that the completion queue `queue` produced.
fn acknowledge(queue: *mut sys::ibv_cq, count: u32) {
    // SAFETY: `ibv_get_cq_event` returned this queue `count` times; its destruction waits for these
    // acknowledgements (man page of ibv_get_cq_event), so the queue still exists.
    unsafe { sys::ibv_ack_cq_events(queue, count) };
}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: the channel is valid and destroyed once, here; every queue that uses it holds an
        // `Arc` of this handle, so no such queue is left.
        let errno = unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            tracing::error!(device = %self.context.name(), %errno, "ibv_destroy_comp_channel failed");
        }
    }
}
