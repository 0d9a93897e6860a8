//! Requests of queues for many threads that are described one by one and posted at once.

use std::fmt;

use ibverbs_sys as sys;

use super::batch::{BatchRoom, Linked, posted_before};
use super::elements::MAX_ELEMENTS;
use super::in_flight::{Launched, Slots};
use super::request::{describe_send, receive_request, scatter};
use super::reserved_slot::SlotGuard;
use super::ring::Held;
use super::slot_table::Reserved;
use crate::error::{Error, Result};
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{KeepAlive, Outcome, SendRequest};

/// A batch of one thread, with room of its own. Memory moves into its slot when it is posted.
pub(crate) struct SlotsStaging<'a, T: Send + 'static, W: Linked> {
    slots: &'a Slots<T>,
    room: BatchRoom<W>,
    /// Where in the room the first staged request is.
    first: usize,
    /// Requests that were staged and not posted, in their order; the vector never grows beyond its
    /// first allocation.
    staged: Vec<Staged<T>>,
    /// The id of the last posted request, if it is unsignaled; otherwise 0. The next request that
    /// is posted completes it.
    earlier: u64,
}

struct Staged<T> {
    reserved: Reserved,
    held: Held<T>,
    is_signaled: bool,
}

impl<T> Staged<T> {
    /// Returns the id that the next request must complete as well.
    #[inline]
    fn followed(&self) -> u64 {
        if self.is_signaled {
            0
        } else {
            self.reserved.id()
        }
    }
}

impl<T: Send + 'static, W: Linked> fmt::Debug for SlotsStaging<'_, T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotsStaging")
            .field("slots", &self.slots)
            .field("len", &self.len())
            .finish()
    }
}

impl<'a, T: Send + 'static, W: Linked> SlotsStaging<'a, T, W> {
    /// Makes a batch of at most `capacity` requests.
    pub(crate) fn new(slots: &'a Slots<T>, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, slots.capacity());
        let mut room = BatchRoom::CLOSED;
        room.open(capacity, MAX_ELEMENTS);
        Self {
            slots,
            room,
            first: 0,
            staged: Vec::with_capacity(capacity),
            earlier: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.staged.len()
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.first + self.staged.len() < self.room.capacity()
    }

    #[cold]
    fn full(&self) -> Error {
        Error::QueueFull {
            queue: "batch",
            capacity: self.room.capacity(),
        }
    }

    /// Moves what is staged into its slots.
    #[inline]
    fn launch(&mut self) {
        let mut earlier = self.earlier;
        for staged in &mut self.staged {
            let held = std::mem::replace(&mut staged.held, Held::NOTHING);
            let launched = Launched { held, earlier };
            self.slots.table().launch(&staged.reserved, launched);
            earlier = staged.followed();
        }
    }

    /// Counts all as posted.
    #[inline]
    fn finish(&mut self) -> usize {
        let count = self.staged.len();
        self.staged.clear();
        (self.first, self.earlier) = (0, 0);
        count
    }

    /// Takes those from `bad` on back out of their slots.
    #[cold]
    fn recall(&mut self, bad: *mut W) -> usize {
        let count = self.staged.len();
        let posted = posted_before(self.room.index_of(bad), self.first, count);
        for staged in &mut self.staged[posted..] {
            staged.held = self.slots.table().recall(&staged.reserved).held;
        }
        if let Some(last) = self.staged[..posted].last() {
            self.earlier = last.followed();
        }
        self.staged.drain(..posted);
        self.first = if posted == count {
            0
        } else {
            self.first + posted
        };
        posted
    }

    /// Gives up what is staged; the slots are free again, however much memory the caller takes.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = T> {
        self.first = 0;
        for staged in &mut self.staged {
            self.slots.cancel(staged.reserved.moved());
            staged.held.keep.settle(Outcome::NotPosted);
        }
        let staged = self.staged.drain(..);
        staged.filter_map(|staged| staged.held.memory)
    }
}

impl<T: Send + 'static> SlotsStaging<'_, T, sys::ibv_send_wr> {
    /// Describes one more request, in a reserved slot, which is free again on failure.
    #[inline]
    pub(crate) fn stage(
        &mut self,
        slot: SlotGuard<'_>,
        request: SendRequest<T>,
    ) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let reserved = match self.slots.claim(slot) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        if let Some(error) = request.keep().refused_in_batches() {
            self.slots.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let described = if self.has_room() {
            let (wr, room) = self.room.place(self.first + self.staged.len());
            let id = reserved.id();
            if self.slots.describe_usual(wr, room, &request, id) {
                Ok(())
            } else {
                describe_send(wr, room, &request, self.slots.queue_pair(), id)
            }
        } else {
            Err(self.full())
        };
        if let Err(error) = described {
            self.slots.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let is_signaled = request.is_signaled();
        let (memory, keep) = request.into_parts();
        let memory = Some(memory);
        self.staged.push(Staged {
            reserved,
            held: Held { memory, keep },
            is_signaled,
        });
        Ok(())
    }

    /// Makes the last of the staged requests signaled, which completes those before it.
    #[inline]
    fn signal_last(&mut self) {
        let Some(last) = self.staged.last_mut().filter(|last| !last.is_signaled) else {
            return;
        };
        last.is_signaled = true;
        let (wr, _) = self.room.place(self.first + self.staged.len() - 1);
        let signaled = sys::ibv_send_flags::IBV_SEND_SIGNALED.0 as std::ffi::c_uint;
        // SAFETY: the request at this place was described, flags and all.
        unsafe { (*wr.as_mut_ptr()).send_flags |= signaled };
    }

    /// Posts what is staged, in one call. Returns how many requests were posted, all or, with the
    /// error, the first of them; the others stay staged.
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        if self.staged.is_empty() {
            return (0, Ok(()));
        }
        self.signal_last();
        if self.earlier == 0 {
            // Unsignaled requests that another batch has left were posted before this batch is.
            self.earlier = self.slots.unfollowed.take();
        }
        self.launch();
        // SAFETY: the staged requests were described at these places, each with the id of its slot.
        // Memory and what keeps alive are in the slots, where nobody can reach them until
        // `complete` takes them for a completion with the id, or the queue pair is destroyed; what
        // was not posted is recalled.
        let posted = unsafe {
            let list = self.room.chain(self.first, self.staged.len());
            self.slots.queue_pair().post_sends(list)
        };
        match posted {
            Ok(()) => (self.finish(), Ok(())),
            Err((error, bad)) => (self.recall(bad), Err(error)),
        }
    }
}

impl<T: Send + 'static> SlotsStaging<'_, T, sys::ibv_recv_wr> {
    /// Describes one more receive.
    #[inline]
    pub(crate) fn stage(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        if !self.has_room() {
            return Err((self.full(), memory));
        }
        let limits = self.slots.queue_pair().sizes();
        let context = self.slots.queue_pair().domain().context();
        let (wr, room) = self.room.place(self.first + self.staged.len());
        let count = match scatter(room, &memory, limits, context) {
            Ok(count) => count,
            Err(error) => return Err((error, memory)),
        };
        let Some(reserved) = self.slots.table().reserve() else {
            return Err((self.slots.no_slot(), memory));
        };
        wr.write(receive_request(room, count, reserved.id()));
        let held = Held {
            memory: Some(memory),
            keep: KeepAlive::Nothing,
        };
        self.staged.push(Staged {
            reserved,
            held,
            is_signaled: true,
        });
        Ok(())
    }

    /// Posts what is staged, in one call, as that of sends.
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        if self.staged.is_empty() {
            return (0, Ok(()));
        }
        self.launch();
        // SAFETY: as for sends.
        let posted = unsafe {
            let list = self.room.chain(self.first, self.staged.len());
            self.slots.queue_pair().post_receives(list)
        };
        match posted {
            Ok(()) => (self.finish(), Ok(())),
            Err((error, bad)) => (self.recall(bad), Err(error)),
        }
    }
}

impl<T: Send + 'static, W: Linked> Drop for SlotsStaging<'_, T, W> {
    fn drop(&mut self) {
        self.end().for_each(drop);
        if self.earlier != 0 {
            self.slots.unfollowed.leave(self.earlier);
        }
        self.room.close();
    }
}
