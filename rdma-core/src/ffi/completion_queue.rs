//! A completion queue.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::channel::ChannelHandle;
use super::context::{ContextHandle, positive};
use super::stash::Stash;
use crate::completion::WorkCompletion;
use crate::error::{Errno, Error, Result};

/// Owner of an `ibv_cq`.
#[derive(Debug)]
pub(crate) struct CompletionQueueHandle {
    raw: NonNull<sys::ibv_cq>,
    context: Arc<ContextHandle>,
    channel: Option<Arc<ChannelHandle>>,
    /// Completions that were polled and put back.
    stash: Stash<WorkCompletion>,
}

// SAFETY: verbs are thread-safe on a completion queue.
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
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                context,
                channel,
                stash: Stash::new(),
            }),
            None => Err(Error::verb("ibv_create_cq", object(), Errno::last())),
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

    /// How many completions it has room for.
    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: the queue is valid; `cqe` changes only in a resize.
        usize::try_from(unsafe { (*self.raw.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Takes up to `room.len()` completions and returns how many: those that were put back before
    /// those that the device has.
    #[inline]
    pub(crate) fn poll(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        if self.stash.in_use() {
            return self.poll_stash(room);
        }
        match self.poll_device(room)? {
            // What was there may have been put into the stash meanwhile.
            0 if self.stash.in_use() => self.poll_stash(room),
            count => Ok(count),
        }
    }

    #[inline]
    fn poll_device(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let limit = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is valid; `WorkCompletion` is a transparent `ibv_wc`, `room` has at
        // least `limit` of them.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), limit, room.as_mut_ptr().cast()) };
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            // Negative is all that the verb says of a failure.
            Err(_) => Err(self.error("ibv_poll_cq", Errno(libc::EIO))),
        }
    }

    #[cold]
    fn poll_stash(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let mut stash = self.stash.open();
        let count = room.len().min(stash.len());
        for (place, completion) in room.iter_mut().zip(stash.drain(..count)) {
            *place = completion;
        }
        drop(stash);
        if count > 0 {
            return Ok(count);
        }
        self.poll_device(room)
    }

    /// Takes up to `room.len()` completions whose ids are `mine` and returns how many. What it
    /// finds of others it puts back, for their next poll; `mine` must not poll this queue.
    pub(crate) fn poll_for(
        &self,
        room: &mut [WorkCompletion],
        mut mine: impl FnMut(u64) -> bool,
    ) -> Result<usize> {
        // Open all the while: who polls and finds nothing waits for what is put back here.
        let mut stash = self.stash.open();
        let mut found = 0;
        stash.retain(|completion| {
            let take = found < room.len() && mine(completion.id());
            if take {
                room[found] = *completion;
                found += 1;
            }
            !take
        });
        if found > 0 {
            return Ok(found);
        }
        for index in 0..self.poll_device(room)? {
            let completion = room[index];
            if mine(completion.id()) {
                room[found] = completion;
                found += 1;
            } else {
                stash.push_back(completion);
            }
        }
        Ok(found)
    }

    /// Gives completions that were polled to whoever polls next, in their order.
    pub(crate) fn put_back(&self, completions: &[WorkCompletion]) {
        if !completions.is_empty() {
            self.stash.open().extend(completions);
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

    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::verb(
            verb,
            format!("a completion queue of {}", self.context.describe()),
            errno,
        )
    }
}

impl Drop for CompletionQueueHandle {
    fn drop(&mut self) {
        // SAFETY: the queue is valid and destroyed once, here; queue pairs that use it hold an
        // `Arc` of this handle, so none is left. Events are acknowledged where they are taken.
        let errno = unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            tracing::error!(device = %self.context.name(), %errno, "ibv_destroy_cq failed");
        }
    }
}

/// The immediate data of a completion that has some, in network byte order.
#[inline]
pub(crate) fn raw_immediate(completion: &sys::ibv_wc) -> u32 {
    // SAFETY: both variants of this union are plain 32-bit numbers.
    unsafe { completion.__bindgen_anon_1.imm_data }
}

/// A completion of nothing, as room to poll into.
pub(crate) fn empty_completion() -> sys::ibv_wc {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    unsafe { std::mem::zeroed() }
}
