//! A completion queue.

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

/// Owner of an `ibv_cq`, plain or extended.
#[derive(Debug)]
pub(crate) struct CompletionQueueHandle {
    raw: NonNull<sys::ibv_cq>,
    context: Arc<ContextHandle>,
    channel: Option<Arc<ChannelHandle>>,
    /// The C field `cqe`, which the C library writes without a lock of ours.
    capacity: AtomicUsize,
    /// Held while the size changes.
    resizing: Mutex<()>,
    /// Completions that were polled and put back. Always a detour where there is an `extension`.
    stash: Stash<CompletionRecord>,
    extension: Option<Box<Extension>>,
}

// SAFETY: verbs are thread-safe on a completion queue. Going through the entries of an extended one
// is not, and is for the one thread that holds the extension's token.
unsafe impl Send for CompletionQueueHandle {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueueHandle {}

impl CompletionQueueHandle {
    /// `id` is what the channel's events carry for this queue.
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
        // SAFETY: context and channel are valid for as long as their handles, which the new handle
        // keeps; the context value is a number that is never followed as a pointer.
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
            return Err(Error::verb("ibv_create_cq", object(), Errno::last()));
        };
        // SAFETY: the queue was just created; context and channel are the ones it was made of.
        Ok(unsafe { Self::own(raw, context, channel, None) })
    }

    /// Takes a queue over.
    ///
    /// # Safety
    ///
    /// The queue is valid, is nobody else's, and was made of this context and channel; it is an
    /// extended one with these fields exactly if there is an extension.
    pub(super) unsafe fn own(
        raw: NonNull<sys::ibv_cq>,
        context: Arc<ContextHandle>,
        channel: Option<Arc<ChannelHandle>>,
        extension: Option<Box<Extension>>,
    ) -> Self {
        if let Some(channel) = &channel {
            channel.attach();
        }
        // SAFETY: the queue is valid and nobody else uses it yet.
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

    /// How many completions it has room for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Takes up to `room.len()` completions and returns them: those that were put back before those
    /// that the device has.
    #[inline]
    pub(crate) fn poll<'r>(&self, room: &'r mut [WorkCompletion]) -> Result<&'r [WorkCompletion]> {
        if self.stash.detour() {
            return self.poll_stash(room);
        }
        let count = self.ask_device(room);
        if count > 0 {
            if self.stash.is_awaited() {
                return self.divert(room, count as usize);
            }
            // SAFETY: the device wrote so many completions into the room, and no more than it has.
            return Ok(unsafe { room.get_unchecked(..count as usize) });
        }
        // What was there may have been put into the stash meanwhile.
        if count == 0 && self.stash.detour() {
            return self.poll_stash(room);
        }
        if count == 0 {
            Ok(&[])
        } else {
            Err(self.poll_error())
        }
    }

    /// What `ibv_poll_cq` returns: how many completions there are, or a negative number. Drivers
    /// write the fields that a completion has, and leave the others as they are.
    #[inline]
    fn ask_device(&self, room: &mut [WorkCompletion]) -> i32 {
        let limit = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid; `WorkCompletion` is a transparent `ibv_wc`, `room` has at
        // least `limit` of them.
        unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), limit, room.as_mut_ptr().cast()) }
    }

    /// What the device has, if the queue is polled in the plain way and that goes well.
    ///
    /// The caller does not wait for announcements, and [hands on](Self::hand_on) what is not its own.
    #[inline]
    pub(super) fn poll_plain<'r>(&self, room: &'r mut [WorkCompletion]) -> &'r [WorkCompletion] {
        if self.channel.is_some() || self.stash.detour() {
            return &[];
        }
        let count = self.ask_device(room);
        if count <= 0 {
            return &[];
        }
        // SAFETY: the device wrote so many completions into the room, and no more than it has.
        unsafe { room.get_unchecked(..count as usize) }
    }

    fn poll_device(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        usize::try_from(self.ask_device(room)).map_err(|_| self.poll_error())
    }

    #[cold]
    fn poll_error(&self) -> Error {
        // Negative is all that the verb says of a failure.
        self.error("ibv_poll_cq", Errno(libc::EIO))
    }

    #[cold]
    fn poll_stash<'r>(&self, room: &'r mut [WorkCompletion]) -> Result<&'r [WorkCompletion]> {
        if let Some(extension) = &self.extension {
            let count = extension.poll(self, room)?;
            return Ok(&room[..count]);
        }
        let count = self.fill(room)?;
        self.divert(room, count)
    }

    /// Returns what is left of `count` completions without those that others await, or, if that is
    /// nothing, of the next ones.
    #[cold]
    fn divert<'r>(
        &self,
        room: &'r mut [WorkCompletion],
        mut count: usize,
    ) -> Result<&'r [WorkCompletion]> {
        loop {
            let kept = self.leave_out_awaited(&mut room[..count]);
            // "Nothing" would tell a program that waits for an event that the queue is empty.
            if kept > 0 || count == 0 {
                return Ok(&room[..kept]);
            }
            count = self.fill(room)?;
        }
    }

    /// Takes what was put back, and then what the device has; returns how many that are.
    fn fill(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let count = self.take_stashed(room);
        // What the device has comes behind that, so that those who put back what is not theirs come
        // to see it.
        let more = match room.len() - count {
            0 => Ok(0),
            _ => self.poll_device(&mut room[count..]),
        };
        match more {
            // What was there may have been put into the stash meanwhile.
            Ok(0) if count == 0 => Ok(self.take_stashed(room)),
            Ok(more) => Ok(count + more),
            // A failure comes again; what was found would not.
            Err(_) if count > 0 => Ok(count),
            Err(error) => Err(error),
        }
    }

    fn take_stashed(&self, room: &mut [WorkCompletion]) -> usize {
        if !self.stash.detour() {
            return 0;
        }
        let mut stash = self.stash.open_sorted();
        let count = room.len().min(stash.len());
        for (place, record) in room.iter_mut().zip(stash.drain(..count)) {
            *place = record.completion;
        }
        count
    }

    /// Moves the completions that nobody awaits to the front; returns how many those are.
    fn leave_out_awaited(&self, completions: &mut [WorkCompletion]) -> usize {
        let mut kept = 0;
        for index in 0..completions.len() {
            let completion = completions[index];
            let record = || CompletionRecord::from(&completion);
            if !self.stash.divert(completion.id(), record) {
                completions.swap(kept, index);
                kept += 1;
            }
        }
        kept
    }

    /// Takes up to `room.len()` completions whose ids are `mine` and returns how many. What it
    /// finds of others it puts back, for their next poll; `mine` must not poll this queue.
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
            take || self.stash.divert(id, || *record)
        };
        if let Some(extension) = &self.extension {
            let outcome = extension.sort(self, &mut take);
            // A failure comes again; what was found would not.
            return if found > 0 {
                Ok(found)
            } else {
                outcome.map(|()| 0)
            };
        }
        if self.channel.is_none() {
            if !self.stash.detour() {
                // Nobody sleeps until an announcement, so nobody misses what is put back a moment
                // later.
                return self.poll_and_sort(take).map(|()| found);
            }
        } else if let Some(_sorting) = self.stash.sort() {
            // Who polls and finds nothing, before he sleeps, waits for what is put back here.
            return self.poll_and_sort(take).map(|()| found);
        }
        // Open all the while, for the same reason.
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

    /// Takes completions from the device; those that are not taken go into the stash, which is
    /// opened, and so locked, for them alone.
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

    /// Gives a completion that was polled to its waiter, or else to whoever polls next.
    pub(super) fn hand_on(&self, completion: &WorkCompletion) {
        let record = || CompletionRecord::from(completion);
        if !self.stash.divert(completion.id(), record) {
            self.put_back(std::slice::from_ref(completion));
        }
    }

    /// Gives completions that were polled to whoever polls next, in their order.
    pub(crate) fn put_back(&self, completions: &[WorkCompletion]) {
        if !completions.is_empty() {
            let records = completions.iter().map(CompletionRecord::from);
            self.stash.open().extend(records);
        }
    }

    /// Asks for an event at the next completion, or the next solicited one.
    pub(crate) fn request_notification(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the queue is valid.
        let errno = unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), solicited_only.into()) };
        if errno == 0 {
            Ok(())
        } else {
            Err(self.error("ibv_req_notify_cq", positive(errno)))
        }
    }

    /// Makes room for at least `entries` completions.
    pub(crate) fn resize(&self, entries: u32) -> Result<()> {
        let Ok(count) = i32::try_from(entries) else {
            return Err(self.error("ibv_resize_cq", Errno(libc::EINVAL)));
        };
        // Of an extended queue, nobody is between two of its entries meanwhile.
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
        // SAFETY: the queue is valid; the field changes in a resize alone, and this is the only one.
        let capacity = unsafe { ptr::addr_of!((*self.raw.as_ptr()).cqe).read() };
        let capacity = usize::try_from(capacity).unwrap_or(0);
        self.capacity.store(capacity, Ordering::Relaxed);
        Ok(())
    }

    /// Lets events wait for `count` completions or for `period`, whichever comes first.
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

/// How many completions are looked at at once for those of one waiter.
pub(super) const BATCH: usize = 16;

impl Drop for CompletionQueueHandle {
    fn drop(&mut self) {
        // SAFETY: the queue is valid and destroyed once, here; queue pairs that use it hold an
        // `Arc` of this handle, so none is left. Events are acknowledged where they are taken.
        let errno = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            tracing::error!(device = %self.context.name(), %errno, "ibv_destroy_cq failed");
        } else if let Some(channel) = &self.channel {
            channel.detach();
        }
    }
}
