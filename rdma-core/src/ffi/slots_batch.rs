//! A batch of requests for a queue to which many threads post: the requests are posted in one call.

use std::fmt;

use ibverbs_sys as sys;

use super::batch::{BatchStorage, Linked, posted_before};
use super::elements::MAX_ELEMENTS;
use super::in_flight::{InFlightRequest, Slots};
use super::request::{describe_send, receive_request, scatter};
use super::reserved_slot::SlotGuard;
use super::ring::RequestResources;
use super::slot_table::Reserved;
use crate::error::{Error, Result};
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{KeepAlive, Outcome, SendRequest};

/// A batch of requests under construction, for a queue to which many threads post. One thread adds
/// the requests and posts them in one call. The memory of each request moves into the request's
/// slot (place in the table of requests in flight) when the batch is posted.
pub(crate) struct SlotsStaging<'a, T: Send + 'static, W: Linked> {
    slots: &'a Slots<T>,
    room: BatchStorage<W>,
    /// Index, in `room`, of the first request that was added and not posted.
    first: usize,
    /// The requests that were added and not posted, in the order of addition. The vector never
    /// reallocates.
    staged: Vec<Staged<T>>,
    /// The id of the last posted request if it is unsignaled, else 0. The next signaled request of
    /// the batch completes it as well.
    earlier: u64,
}

struct Staged<T> {
    reserved: Reserved,
    held: RequestResources<T>,
    is_signaled: bool,
}

impl<T> Staged<T> {
    /// Returns the id of this request if the request is unsignaled, or 0 if the request is
    /// signaled. An unsignaled request has no completion of its own, so the completion of a later
    /// request must complete this request as well.
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
    /// Creates an empty batch of at most `capacity` requests, which will be posted to the queue of
    /// `slots`.
    pub(crate) fn new(slots: &'a Slots<T>, capacity: usize) -> Self {
        let capacity = capacity.clamp(1, slots.capacity());
        let mut room = BatchStorage::CLOSED;
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

    /// Moves the memory of the batch's requests into their slots (places in the table of requests
    /// in flight). Called just before the batch is posted, so that completions find the memory.
    #[inline]
    fn launch(&mut self) {
        let mut earlier = self.earlier;
        for staged in &mut self.staged {
            let held = std::mem::replace(&mut staged.held, RequestResources::NOTHING);
            let launched = InFlightRequest { held, earlier };
            self.slots.table().launch(&staged.reserved, launched);
            earlier = staged.followed();
        }
    }

    /// Records that all requests in the batch were posted, and returns their number.
    #[inline]
    fn finish(&mut self) -> usize {
        let count = self.staged.len();
        self.staged.clear();
        (self.first, self.earlier) = (0, 0);
        count
    }

    /// Takes the memory of the requests that were not posted back out of their slots. The requests
    /// that were not posted are the request at `bad` and all later requests. Returns the number of
    /// requests that were posted.
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

    /// Ends the batch, and returns the memory of the requests that were not posted. Frees the slots
    /// of all these requests, even if the caller does not take the memory of each.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = T> {
        self.first = 0;
        for staged in &mut self.staged {
            self.slots.cancel(staged.reserved.duplicate());
            staged.held.keep.settle(Outcome::NotPosted);
        }
        let staged = self.staged.drain(..);
        staged.filter_map(|staged| staged.held.memory)
    }
}

impl<T: Send + 'static> SlotsStaging<'_, T, sys::ibv_send_wr> {
    /// Adds `request`, which will use the reserved slot `slot`, to the batch. On failure frees the
    /// slot, and returns the error and the memory of the request.
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
            if self.slots.describe_fast_path(wr, room, &request, id) {
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
            held: RequestResources { memory, keep },
            is_signaled,
        });
        Ok(())
    }

    /// Makes the last request of the batch signaled. The completion of this request then also
    /// completes the unsignaled requests before it.
    #[inline]
    fn signal_last(&mut self) {
        let Some(last) = self.staged.last_mut().filter(|last| !last.is_signaled) else {
            return;
        };
        last.is_signaled = true;
        let (wr, _) = self.room.place(self.first + self.staged.len() - 1);
        let signaled = sys::ibv_send_flags::IBV_SEND_SIGNALED.0 as std::ffi::c_uint;
        // SAFETY: the request at this place was filled in, including its flags.
        unsafe { (*wr.as_mut_ptr()).send_flags |= signaled };
    }

    /// Posts the requests of the batch in one call. Returns the number of posted requests, and the
    /// result of the call. After an error, the requests that were not posted stay in the batch.
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        if self.staged.is_empty() {
            return (0, Ok(()));
        }
        self.signal_last();
        if self.earlier == 0 {
            // The batch takes over a chain of unsignaled requests that were posted before, which
            // the first signaled request of the batch will complete.
            self.earlier = self.slots.unsignaled_chains.take();
        }
        self.launch();
        // SAFETY: the staged requests were filled in at these places, each with the id of its slot.
        // Memory and objects are in the slots, where no code can access them until `complete` takes
        // them for a completion with the id, or the queue pair is destroyed. Requests that were not
        // posted are recalled.
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
    /// Adds a receive into `memory` to the batch. On an error, such as a full batch, returns
    /// `memory` with the error.
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
        let held = RequestResources {
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

    /// Posts the receives of the batch in one call. Returns the number of posted receives, and the
    /// result of the call. After an error, the receives that were not posted stay in the batch.
    pub(crate) fn post(&mut self) -> (usize, Result<()>) {
        if self.staged.is_empty() {
            return (0, Ok(()));
        }
        self.launch();
        // SAFETY: the staged receives were filled in at these places, each with the id of its slot.
        // The memory is in the slots, where no code can access it until `complete` takes it for a
        // completion with the id, or the queue pair is destroyed. Other receives are recalled.
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
        if self.earlier != 0 {
            self.slots.unsignaled_chains.leave(self.earlier);
        }
        self.room.close();
        // Last, because the drop of memory may panic.
        self.end().for_each(drop);
    }
}
