//! A completion queue: the owner of its `ibv_cq`, and polling.
//!
//! Several threads may poll one queue. A thread may then poll the completion of a request that
//! another thread waits for. The thread stores such a completion in the inbox of the waiting
//! thread. A completion that no thread waits for is stored in the [`Stash`], for the next poll.
//!
//! ```text
//!   stash (completions put back)      device (ibv_poll_cq)
//!                 \                  /
//!                  polled completion
//!                          |
//!           polled for a scope or a drain (`poll_for`), and
//!           the id belongs to the polling thread? ------------- yes --> returned
//!                          | no
//!           the id belongs to the inbox of a waiting thread? -- yes --> that inbox
//!                          | no
//!           polled by the program (`poll`)? ------------------- yes --> returned
//!                          | no
//!                        stash, until the next poll
//! ```
//!
//! Two waits ensure that no poll misses a completion. `take_stashed` waits until no thread is
//! between polling the device and putting completions into the stash (sorting). Every user of the
//! stash waits until no other thread has the stash locked.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::channel::ChannelHandle;
use super::completion_record::CompletionRecord;
use super::context::{ContextHandle, positive};
use super::extended_queue::{Extension, Holder};
use super::stash::Stash;
use crate::completion::WorkCompletion;
use crate::error::{Errno, Error, Result};

/// The owner of a plain or extended completion queue (`ibv_cq`). Dropping this value destroys the
/// queue.
#[derive(Debug)]
pub(crate) struct CompletionQueueHandle {
    raw: NonNull<sys::ibv_cq>,
    context: Arc<ContextHandle>,
    channel: Option<Arc<ChannelHandle>>,
    /// Maximum number of completions: a copy of the C field `cqe`, which the C library writes
    /// without taking a lock of this crate.
    capacity: AtomicUsize,
    /// Locked while the queue is resized.
    resizing: Mutex<()>,
    /// Completions that were polled and put back for a later poll. For an extended queue,
    /// [`Stash::needs_slow_path`] always returns `true`.
    stash: Stash<CompletionRecord>,
    extension: Option<Box<Extension>>,
}

// SAFETY: verbs are thread-safe on a completion queue, except for iterating over the entries of an
// extended queue; only the thread that holds the extension's token does that.
unsafe impl Send for CompletionQueueHandle {}
// SAFETY: verbs are thread-safe on a completion queue, except for iterating over the entries of an
// extended queue; only the thread that holds the extension's token does that.
unsafe impl Sync for CompletionQueueHandle {}

impl CompletionQueueHandle {
    /// Creates a completion queue. `id` becomes the context value of the queue, which the events on
    /// `channel` contain.
    pub(crate) fn create(
        context: Arc<ContextHandle>,
        entries: u32,
        channel: Option<Arc<ChannelHandle>>,
        vector: u32,
        id: u64,
    ) -> Result<Self> {
        let object = || {
            format!(
                "a completion queue of {entries} entries on {}",
                context.describe()
            )
        };
        let (Ok(count), Ok(vector)) = (i32::try_from(entries), i32::try_from(vector)) else {
            return Err(Error::verb("ibv_create_cq", object(), Errno(libc::EINVAL)));
        };
        let raw_channel = channel
            .as_ref()
            .map_or(ptr::null_mut(), |channel| channel.as_raw());
        // SAFETY: the new handle keeps context and channel valid; the context value is a number
        // that is never dereferenced.
        let raw = unsafe {
            sys::ibv_create_cq(
                context.as_raw(),
                count,
                ptr::without_provenance_mut(id as usize),
                raw_channel,
                vector,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb("ibv_create_cq", object(), errno));
        };
        // SAFETY: the queue was just created from this context and channel.
        Ok(unsafe { Self::adopt(raw, context, channel, None) })
    }

    /// Takes ownership of an `ibv_cq`. Dropping the returned value destroys the queue.
    ///
    /// # Safety
    ///
    /// The queue must be valid and created from this context and channel, and no other code may own
    /// it. `extension` must be `Some`, with the fields of the queue, if the queue is extended, and
    /// `None` if it is not.
    pub(super) unsafe fn adopt(
        raw: NonNull<sys::ibv_cq>,
        context: Arc<ContextHandle>,
        channel: Option<Arc<ChannelHandle>>,
        extension: Option<Box<Extension>>,
    ) -> Self {
        if let Some(channel) = &channel {
            channel.attach();
        }
        // SAFETY: the queue is valid and no other code uses it yet.
        let capacity = unsafe { raw.as_ref().cqe };
        Self {
            raw,
            context,
            channel,
            capacity: AtomicUsize::new(usize::try_from(capacity).unwrap_or(0)),
            resizing: Mutex::default(),
            stash: Stash::new(extension.is_some()),
            extension,
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    pub(crate) fn channel(&self) -> Option<&Arc<ChannelHandle>> {
        self.channel.as_ref()
    }

    pub(crate) fn extension(&self) -> Option<&Extension> {
        self.extension.as_deref()
    }

    pub(super) fn stash(&self) -> &Stash<CompletionRecord> {
        &self.stash
    }

    /// Returns the maximum number of completions that the queue holds.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Polls up to `room.len()` completions into `room`, and returns them. Completions that an
    /// earlier poll has put back come before completions from the device.
    #[inline]
    pub(crate) fn poll<'r>(&self, room: &'r mut [WorkCompletion]) -> Result<&'r [WorkCompletion]> {
        if self.stash.needs_slow_path() {
            return self.poll_stash(room);
        }
        let count = self.poll_raw(room);
        if count > 0 {
            if self.stash.is_awaited() {
                return self.deliver_awaited(room, count as usize);
            }
            // SAFETY: the device wrote `count` completions into `room`, at most its length.
            return Ok(unsafe { room.get_unchecked(..count as usize) });
        }
        // Another thread may have moved completions of the device into the stash meanwhile.
        if count == 0 && self.stash.needs_slow_path() {
            return self.poll_stash(room);
        }
        if count == 0 {
            Ok(&[])
        } else {
            Err(self.poll_error())
        }
    }

    /// Polls the device, and returns the result of `ibv_poll_cq`: the number of completions, or a
    /// negative number on failure. Drivers write only the fields that are defined for the
    /// completion, and leave other fields unchanged.
    #[inline]
    fn poll_raw(&self, room: &mut [WorkCompletion]) -> i32 {
        let limit = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid; `WorkCompletion` is a transparent `ibv_wc`, and `room` has at
        // least `limit` elements.
        unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), limit, room.as_mut_ptr().cast()) }
    }

    /// Polls the device for completions with few checks, and writes the completions to `room`.
    /// Returns an empty slice without polling if the queue is extended or has a channel, or if the
    /// queue's [stash](super::stash::Stash) (the store of completions for later polls) is possibly
    /// not empty. Also returns an empty slice if polling fails.
    ///
    /// The caller must not wait for notifications. The caller must pass the completions of all
    /// requests other than its own to [`Self::deliver`].
    #[inline]
    pub(super) fn poll_plain<'r>(&self, room: &'r mut [WorkCompletion]) -> &'r [WorkCompletion] {
        if self.channel.is_some() || self.stash.needs_slow_path() {
            return &[];
        }
        let count = self.poll_raw(room);
        if count <= 0 {
            return &[];
        }
        // SAFETY: the device wrote `count` completions into `room`, which is at most its length.
        unsafe { room.get_unchecked(..count as usize) }
    }

    fn poll_device(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        usize::try_from(self.poll_raw(room)).map_err(|_| self.poll_error())
    }

    #[cold]
    fn poll_error(&self) -> Error {
        // The verb reports a failure only by a negative number, not by an errno.
        self.error("ibv_poll_cq", Errno(libc::EIO))
    }

    #[cold]
    fn poll_stash<'r>(&self, room: &'r mut [WorkCompletion]) -> Result<&'r [WorkCompletion]> {
        if let Some(extension) = &self.extension {
            let count = extension.poll(self, room)?;
            return Ok(&room[..count]);
        }
        let count = self.fill(room)?;
        self.deliver_awaited(room, count)
    }

    /// Removes the completions that other threads wait for, by storing them in the inboxes of these
    /// threads. Returns the remaining completions. The first `count` elements of `room` are the
    /// polled completions. Polls again if no completion remains.
    #[cold]
    fn deliver_awaited<'r>(
        &self,
        room: &'r mut [WorkCompletion],
        mut count: usize,
    ) -> Result<&'r [WorkCompletion]> {
        loop {
            let kept = self.retain_own(&mut room[..count]);
            // A program that waits for an event treats an empty result as an empty queue, so the
            // loop continues if all completions were delivered to other threads.
            if kept > 0 || count == 0 {
                return Ok(&room[..kept]);
            }
            count = self.fill(room)?;
        }
    }

    /// Fills `room` with completions that were put back earlier, and then with completions from the
    /// device. Returns the number of completions.
    fn fill(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let count = self.take_stashed(room);
        // Polls the device even if the stash had completions: a caller that puts them back again
        // would otherwise never receive the device's completions.
        let more = match room.len() - count {
            0 => Ok(0),
            _ => self.poll_device(&mut room[count..]),
        };
        match more {
            // Another thread may have moved completions of the device into the stash meanwhile.
            Ok(0) if count == 0 => Ok(self.take_stashed(room)),
            Ok(more) => Ok(count + more),
            // The next poll reports the failure again. Returning the error now would lose the
            // completions that were found.
            Err(_) if count > 0 => Ok(count),
            Err(error) => Err(error),
        }
    }

    fn take_stashed(&self, room: &mut [WorkCompletion]) -> usize {
        if !self.stash.needs_slow_path() {
            return 0;
        }
        let mut stash = self.stash.open_sorted();
        let count = room.len().min(stash.len());
        for (place, record) in room.iter_mut().zip(stash.drain(..count)) {
            *place = record.completion;
        }
        count
    }

    /// Removes the completions that other threads wait for, by storing them in the inboxes of these
    /// threads. Moves the remaining completions to the front of `completions`, and returns the
    /// number of remaining completions.
    fn retain_own(&self, completions: &mut [WorkCompletion]) -> usize {
        let mut kept = 0;
        for index in 0..completions.len() {
            let completion = completions[index];
            let record = || CompletionRecord::from(&completion);
            if !self.stash.deliver(completion.id(), record) {
                completions.swap(kept, index);
                kept += 1;
            }
        }
        kept
    }

    /// Polls the queue for completions of the calling thread, and writes them to `room`. The
    /// function `mine` returns whether an id belongs to this thread. Returns the number of these
    /// completions. Stores every other completion in the inbox of the thread that waits for it, or
    /// else in the stash (the store for later polls). `mine` must not poll this queue, because this
    /// thread can hold locks of the queue.
    pub(crate) fn poll_for(
        &self,
        room: &mut [WorkCompletion],
        mut mine: impl FnMut(u64) -> bool,
    ) -> Result<usize> {
        let mut found = 0;
        let mut take = |record: &CompletionRecord| {
            let id = record.completion.id();
            let take = found < room.len() && mine(id);
            if take {
                room[found] = record.completion;
                found += 1;
            }
            take || self.stash.deliver(id, || *record)
        };
        if let Some(extension) = &self.extension {
            let outcome = extension.sort(self, &mut take);
            // The next poll reports the failure again. Returning the error now would lose the
            // completions that were found.
            return if found > 0 {
                Ok(found)
            } else {
                outcome.map(|()| 0)
            };
        }
        if self.channel.is_none() {
            if !self.stash.needs_slow_path() {
                // Without a channel no thread sleeps until a notification. Therefore no other
                // thread has to see immediately that a completion is put back.
                return self.poll_and_sort(take).map(|()| found);
            }
        } else if let Some(_sorting) = self.stash.sort() {
            // Before a thread sleeps it polls once more, and that poll waits until this sorting has
            // ended.
            return self.poll_and_sort(take).map(|()| found);
        }
        // The stash stays locked during the whole poll. Therefore a thread that polls once more
        // before it sleeps waits for the completions that are put back here.
        let mut stash = self.stash.open();
        let before = stash.len();
        stash.retain(|record| !take(record));
        if stash.len() < before {
            return Ok(found);
        }
        let mut fresh = [WorkCompletion::default(); BATCH];
        let count = self.poll_device(&mut fresh)?;
        for completion in &fresh[..count] {
            let record = CompletionRecord::from(completion);
            if !take(&record) {
                stash.push_back(record);
            }
        }
        Ok(found)
    }

    /// Polls the device, and calls `take` with each completion. A completion for which `take`
    /// returns `false` belongs to another thread, and is put into the stash (the store for later
    /// polls). The stash is locked only if there is such a completion.
    fn poll_and_sort(&self, mut take: impl FnMut(&CompletionRecord) -> bool) -> Result<()> {
        let mut fresh = [WorkCompletion::default(); BATCH];
        let mut stash = None;
        let count = self.poll_device(&mut fresh)?;
        for completion in &fresh[..count] {
            let record = CompletionRecord::from(completion);
            if !take(&record) {
                stash
                    .get_or_insert_with(|| self.stash.open())
                    .push_back(record);
            }
        }
        Ok(())
    }

    /// Stores a polled completion in the inbox of the thread that waits for the completion. If no
    /// thread waits, puts the completion back into the stash for the next poll.
    pub(super) fn deliver(&self, completion: &WorkCompletion) {
        let record = || CompletionRecord::from(completion);
        if !self.stash.deliver(completion.id(), record) {
            self.put_back(std::slice::from_ref(completion));
        }
    }

    /// Stores polled completions in the stash. Later polls return these completions in their order.
    pub(crate) fn put_back(&self, completions: &[WorkCompletion]) {
        if !completions.is_empty() {
            let records = completions.iter().map(CompletionRecord::from);
            self.stash.open().extend(records);
        }
    }

    /// Requests one completion event for the next completion (`ibv_req_notify_cq`). If
    /// `solicited_only` is `true`, only a solicited receive or a failed request generates the
    /// event.
    pub(crate) fn request_notification(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is valid.
        let errno = unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), solicited_only.into()) };
        if errno == 0 {
            Ok(())
        } else {
            Err(self.error("ibv_req_notify_cq", positive(errno)))
        }
    }

    /// Resizes the queue to hold at least `entries` completions.
    pub(crate) fn resize(&self, entries: u32) -> Result<()> {
        let Ok(count) = i32::try_from(entries) else {
            return Err(self.error("ibv_resize_cq", Errno(libc::EINVAL)));
        };
        // For an extended queue, ensures that no thread is iterating over the entries during the
        // resize.
        let _held = match &self.extension {
            Some(extension) => Some(extension.hold(Holder::Verb)?),
            None => None,
        };
        let _resizing = self.resizing.lock();
        // SAFETY: the queue is valid.
        let errno = unsafe { sys::ibv_resize_cq(self.raw.as_ptr(), count) };
        if errno != 0 {
            return Err(self.error("ibv_resize_cq", positive(errno)));
        }
        // SAFETY: the queue is valid; only a resize changes the field, and `resizing` is locked.
        let capacity = unsafe { ptr::addr_of!((*self.raw.as_ptr()).cqe).read() };
        let capacity = usize::try_from(capacity).unwrap_or(0);
        self.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Sets event moderation: the device generates an event after `count` completions or after
    /// `period`, whichever is earlier.
    pub(crate) fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        let Ok(microseconds) = u16::try_from(period.as_micros()) else {
            return Err(Error::invalid(
                "moderation",
                format!("a period of {period:?} is longer than 65535 microseconds"),
            ));
        };
        let mut attributes = sys::ibv_modify_cq_attr {
            attr_mask: sys::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
            moderate: sys::ibv_moderate_cq {
                cq_count: count,
                cq_period: microseconds,
            },
        };
        // SAFETY: the queue and the attributes are valid.
        let errno = unsafe { sys::ibv_modify_cq(self.raw.as_ptr(), &mut attributes) };
        if errno == 0 {
            Ok(())
        } else {
            Err(self.error("ibv_modify_cq", positive(errno)))
        }
    }

    pub(super) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::verb(
            verb,
            format!("a completion queue of {}", self.context.describe()),
            errno,
        )
    }
}

/// Maximum number of completions that a thread takes from the device in one call while the thread
/// searches for its own completions.
pub(super) const BATCH: usize = 16;

impl Drop for CompletionQueueHandle {
    fn drop(&mut self) {
        // SAFETY: the queue is valid and destroyed once, here; queue pairs that use it hold an
        // `Arc` of this handle, so no such queue pair is left. All events taken from the channel
        // have been acknowledged.
        let errno = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            tracing::error!(device = %self.context.name(), %errno, "ibv_destroy_cq failed");
        } else if let Some(channel) = &self.channel {
            channel.detach();
        }
    }
}
