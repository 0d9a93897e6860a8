//! In-flight memory of a queue that many threads post to, without a lock.

use std::fmt;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::queue_pair::QueuePairHandle;
use super::receive_ring::no_receive_queue;
use super::request::{
    Limits, ReceiveElements, Room, describe_inline, describe_send, describe_usual,
    describe_usual_datagram, describe_usual_inline, receive_request, scatter_usual, stack_room,
};
use super::reserved_slot::SlotGuard;
use super::ring::Held;
use super::slot_table::{Reserved, SlotTable};
use super::unfollowed::{Follow, Unfollowed};
use crate::error::Error;
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{InlineData, KeepAlive, Outcome, SendFlags, SendRequest};

/// Memory and value that a request keeps while in flight.
pub(super) struct Launched<T> {
    pub(super) held: Held<T>,
    /// The id of the unsignaled request that this request completes as well, which was posted
    /// before it in the same queue pair; 0 for none.
    pub(super) earlier: u64,
}

impl<T> Launched<T> {
    #[inline]
    fn new(memory: Option<T>, keep: KeepAlive, earlier: u64) -> Self {
        Self {
            held: Held { memory, keep },
            earlier,
        }
    }
}

/// The requests of a queue, each in a slot from reservation to release.
pub(crate) struct Slots<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    table: SlotTable<Launched<T>>,
    /// Unsignaled requests that were posted, and that no later request completes yet.
    pub(super) unfollowed: Unfollowed,
    /// Limits of usual requests; `None` if requests cannot be posted in the usual way.
    usual: Option<Limits>,
    /// Limits of datagrams; `None` if datagrams cannot be posted in the usual way.
    usual_datagrams: Option<Limits>,
}

impl<T: Send + 'static> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("queue_pair", &self.queue_pair.number())
            .field("table", &self.table)
            .finish()
    }
}

impl<T: Send + 'static> Slots<T> {
    /// Makes a table of `capacity` slots for sends, at most 2^16.
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let limits = Limits::of_sends(&queue_pair);
        Self {
            table: SlotTable::new(capacity),
            unfollowed: Unfollowed::new(queue_pair.count_send_queue() == 1),
            usual: queue_pair.is_usual().then_some(limits),
            usual_datagrams: queue_pair.is_usual_for_datagrams().then_some(limits),
            queue_pair,
        }
    }

    /// Makes a table for receives. If the queue pair takes none, the only slot is in use for ever.
    pub(crate) fn for_receives(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let refused = no_receive_queue(&queue_pair).is_some();
        let takes_elements = queue_pair.sizes().receive_elements > 0;
        let slots = Self {
            table: SlotTable::new(if refused { 1 } else { capacity }),
            unfollowed: Unfollowed::new(true),
            usual: takes_elements.then(|| Limits::of_receives(&queue_pair)),
            usual_datagrams: None,
            queue_pair,
        };
        if refused && let Some(slot) = slots.reserve() {
            slot.into_reserved();
        }
        slots
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    pub(super) fn table(&self) -> &SlotTable<Launched<T>> {
        &self.table
    }

    pub(crate) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Takes a free slot, which is free again when the guard is dropped; `None` when every one is in
    /// use.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<SlotGuard<'_>> {
        let reserved = self.table.reserve()?;
        Some(SlotGuard::new(&self.table, reserved))
    }

    /// Guards a slot of this table again that was taken out of its guard. Returns a slot of another
    /// table with the error.
    #[inline]
    pub(crate) fn guard(&self, reserved: Reserved) -> Result<SlotGuard<'_>, (Error, Reserved)> {
        if self.table.owns(&reserved) {
            Ok(SlotGuard::new(&self.table, reserved))
        } else {
            Err((foreign_slot(), reserved))
        }
    }

    /// Takes a slot of this table out of its guard; one of another table goes back there.
    #[inline]
    pub(super) fn claim(&self, slot: SlotGuard<'_>) -> Result<Reserved, Error> {
        if self.table.owns(slot.reserved()) {
            Ok(slot.into_reserved())
        } else {
            Err(foreign_slot())
        }
    }

    /// Gives a reserved slot back unused.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        self.table.cancel(reserved);
    }

    /// Begins to post a send request, signaled or not.
    #[inline]
    fn follow(&self, is_signaled: bool) -> Follow<'_> {
        if is_signaled {
            self.unfollowed.follow()
        } else {
            self.follow_unsignaled()
        }
    }

    /// Begins to post an unsignaled request. At most half of the slots are in unsignaled requests in a
    /// row: a queue whose slots all are would never have a free slot again. Queues of one queue pair
    /// share that number.
    #[cold]
    fn follow_unsignaled(&self) -> Follow<'_> {
        // A table has at most 2^16 slots.
        let half = self.capacity() as u32 / 2;
        let queues = self.queue_pair.send_queues().max(1);
        self.unfollowed.follow_unsignaled(half / queues)
    }

    /// Posts a send request in a reserved slot, which is free again on failure. The usual ones go
    /// a way that the compiler makes one piece of code of, with the request's description, and the
    /// others [the general way](Self::post_any).
    #[inline(always)]
    pub(crate) fn post_send(
        &self,
        slot: SlotGuard<'_>,
        request: SendRequest<T>,
    ) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let reserved = match self.claim(slot) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (Some(limits), true) = (self.usual, request.is_usual() && request.is_signaled()) else {
            return self.post_datagram(reserved, request);
        };
        let (memory, description) = request.into_usual();
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !describe_usual(&mut wr, &mut room, &memory, &description, limits, id) {
            return self.post_any(reserved, SendRequest::from_usual(memory, description));
        }
        let launched = Launched::new(Some(memory), KeepAlive::Nothing, self.unfollowed.take());
        self.table.launch(&reserved, launched);
        // SAFETY: it was described, and `room` outlives the call. The memory is in the slot, where
        // nobody can reach it until `complete` takes it for a completion with this id, or the queue
        // pair is destroyed.
        let errno = unsafe { self.queue_pair.usual().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_send_error(errno)))
    }

    /// Posts a signaled datagram in the usual way, and any other request in [the general
    /// way](Self::post_any).
    #[inline]
    fn post_datagram(&self, reserved: Reserved, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !request.is_signaled() || !self.describe_usual(&mut wr, &mut room, &request, id) {
            return self.post_any(reserved, request);
        }
        let (memory, keep) = request.into_parts();
        let launched = Launched::new(Some(memory), keep, self.unfollowed.take());
        self.table.launch(&reserved, launched);
        // SAFETY: as in `post_send`, also for the address handle.
        let errno = unsafe { self.queue_pair.usual().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_send_error(errno)))
    }

    /// Describes a usual request or datagram. Returns `false` if [`describe_send`] has to check the
    /// request more closely, or to refuse it.
    #[inline]
    pub(super) fn describe_usual(
        &self,
        wr: &mut MaybeUninit<sys::ibv_send_wr>,
        room: &mut Room,
        request: &SendRequest<T>,
        id: u64,
    ) -> bool
    where
        T: Gather,
    {
        let (memory, description) = (request.memory(), request.description());
        match (request.keep(), self.usual, self.usual_datagrams) {
            (KeepAlive::Nothing, Some(limits), _) => {
                describe_usual(wr, room, memory, &description, limits, id)
            }
            (KeepAlive::Address(handle), _, Some(limits)) => {
                describe_usual_datagram(wr, room, memory, (&description, handle), limits, id)
            }
            _ => false,
        }
    }

    /// Takes back the memory of a request that was not posted.
    #[cold]
    fn withdraw(&self, reserved: Reserved, error: Error) -> (Error, T) {
        let (error, memory) = self.withdraw_any(reserved, error);
        (error, memory.expect("the memory that was put in"))
    }

    /// Takes back the memory, if there is some, of a request that was not posted.
    #[cold]
    fn withdraw_any(&self, reserved: Reserved, error: Error) -> (Error, Option<T>) {
        let Launched { mut held, earlier } = self.table.withdraw(reserved);
        if earlier != 0 {
            self.unfollowed.leave(earlier);
        }
        held.keep.settle(Outcome::NotPosted);
        (error, held.memory)
    }

    #[inline(never)]
    fn post_any(&self, reserved: Reserved, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&self.queue_pair, reserved.id());
        if let Err(error) = describe_send(&mut wr, &mut room, &request, queue_pair, id) {
            self.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let is_signaled = request.is_signaled() || request.keep().refused_in_batches().is_some();
        let (memory, keep) = request.into_parts();
        // SAFETY: it was described, and `room` outlives the call. Memory and what keeps alive are in
        // the slot, where nobody can reach them until `complete` takes them for a completion with
        // this id, or the queue pair is destroyed.
        let posted = unsafe { self.launch(&reserved, Some(memory), keep, is_signaled, &mut wr) };
        posted.map_err(|error| self.withdraw(reserved, error))
    }

    /// Puts a request into its slot and posts it.
    ///
    /// # Safety
    ///
    /// As [`QueuePairHandle::post_send`], for a request that was described.
    unsafe fn launch(
        &self,
        reserved: &Reserved,
        memory: Option<T>,
        keep: KeepAlive,
        is_signaled: bool,
        wr: &mut MaybeUninit<sys::ibv_send_wr>,
    ) -> Result<(), Error> {
        let follow = self.follow(is_signaled);
        let launched = Launched::new(memory, keep, follow.earlier());
        self.table.launch(reserved, launched);
        // SAFETY: the caller vouches for the request.
        let posted = unsafe {
            let wr = wr.assume_init_mut();
            if follow.is_signaled() {
                wr.send_flags |= SendFlags::SIGNALED.bits() as std::ffi::c_uint;
            }
            self.queue_pair.post_send(wr)
        };
        if posted.is_ok() {
            follow.posted(reserved.id());
        }
        posted
    }

    /// Posts a send request in a reserved slot, which is free again on failure. The request's data
    /// is copied. Usual requests are posted as [`Self::post_send`] posts them.
    #[inline(always)]
    pub(crate) fn post_inline<D: InlineData>(
        &self,
        slot: SlotGuard<'_>,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        let reserved = match self.claim(slot) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (Some(limits), true) = (self.usual, request.is_usual() && request.is_signaled()) else {
            return self.post_any_inline(reserved, request);
        };
        let (data, description) = request.into_usual();
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !describe_usual_inline(&mut wr, &mut room, &data, &description, limits, id) {
            let request = SendRequest::from_usual(data, description);
            return self.post_any_inline(reserved, request);
        }
        let launched = Launched::new(None, KeepAlive::Nothing, self.unfollowed.take());
        self.table.launch(&reserved, launched);
        // SAFETY: the request was described, and `room` and the data, which is copied, outlive the
        // call.
        let errno = unsafe { self.queue_pair.usual().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        let error = self.queue_pair.post_send_error(errno);
        Err((self.withdraw_any(reserved, error).0, data))
    }

    #[inline(never)]
    fn post_any_inline<D: InlineData>(
        &self,
        reserved: Reserved,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&self.queue_pair, reserved.id());
        if let Err(error) = describe_inline(&mut wr, &mut room, &request, queue_pair, id) {
            self.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let is_signaled = request.is_signaled() || request.keep().refused_in_batches().is_some();
        let (data, keep) = request.into_parts();
        // SAFETY: the request was described, and `room` and the data, which is copied, outlive the
        // call. The objects that it keeps alive are in the slot.
        let posted = unsafe { self.launch(&reserved, None, keep, is_signaled, &mut wr) };
        posted.map_err(|error| (self.withdraw_any(reserved, error).0, data))
    }

    /// Posts a receive request in a free slot; usual requests as [`Self::post_send`] posts them.
    #[inline(always)]
    pub(crate) fn post_receive(&self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let Some(reserved) = self.table.reserve() else {
            return Err((self.no_slot(), memory));
        };
        let mut room = stack_room();
        let usual = self.usual;
        let count = usual.and_then(|limits| scatter_usual(&mut room, &memory, limits));
        let Some(count) = count else {
            return self.post_any_receive(reserved, memory);
        };
        let mut wr = receive_request(&mut room, count, reserved.id());
        let launched = Launched::new(Some(memory), KeepAlive::Nothing, 0);
        self.table.launch(&reserved, launched);
        // SAFETY: as in `post_send`.
        let errno = unsafe { self.queue_pair.usual().post_receive(&mut wr) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_receive_error(errno)))
    }

    #[inline(never)]
    fn post_any_receive(&self, reserved: Reserved, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let mut elements = ReceiveElements::new();
        let (limits, context) = (self.queue_pair.sizes(), self.queue_pair.domain().context());
        if let Err(error) = elements.scatter(&memory, limits, context) {
            self.cancel(reserved);
            return Err((error, memory));
        }
        let mut wr = elements.work_request(reserved.id());
        let launched = Launched::new(Some(memory), KeepAlive::Nothing, 0);
        self.table.launch(&reserved, launched);
        // SAFETY: as in `post_send`.
        let posted = unsafe { self.queue_pair.post_receive(&mut wr) };
        posted.map_err(|error| {
            let held = self.table.withdraw(reserved).held;
            (error, held.memory.expect("the memory that was put in"))
        })
    }

    /// Returns the error of a receive that found no free slot.
    #[cold]
    pub(super) fn no_slot(&self) -> Error {
        no_receive_queue(&self.queue_pair).unwrap_or(Error::QueueFull {
            queue: "receive",
            capacity: self.capacity(),
        })
    }

    /// Takes the memory, if it has some, of the request with this id, once, and the index of its
    /// slot, which stays in use until [`Self::release`].
    #[inline]
    pub(crate) fn complete(&self, id: u64, outcome: Outcome) -> Option<(u32, Option<T>)> {
        let (index, Launched { mut held, .. }) = self.table.complete(id)?;
        held.keep.settle(outcome);
        Some((index, held.memory))
    }

    /// Takes the memory of the request with this id as [`Self::complete`] does, and that of the
    /// unsignaled requests before it, one after the other.
    #[inline]
    pub(crate) fn complete_all(&self, id: u64, outcome: Outcome) -> CompletedRun<'_, T> {
        CompletedRun {
            slots: self,
            id,
            outcome,
            is_inferred: false,
        }
    }

    /// Makes a completed slot free again; does nothing to a slot in any other state.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.table.release(index);
    }
}

/// The slots of a request that has completed and of the unsignaled requests before it, the latest
/// first. Slots that are not taken are released, and their memory is dropped.
pub(crate) struct CompletedRun<'a, T: Send + 'static> {
    slots: &'a Slots<T>,
    /// Id of the next request; 0 when there is none.
    id: u64,
    /// Outcome that the completion tells.
    outcome: Outcome,
    /// Set if the completion is that of a later request.
    is_inferred: bool,
}

impl<T: Send + 'static> fmt::Debug for CompletedRun<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletedRun")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> CompletedRun<'_, T> {
    /// Makes a completed slot free again.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.slots.release(index);
    }

    /// Releases the objects that the current request kept alive.
    #[cold]
    #[inline(never)]
    fn settle(&self, mut keep: KeepAlive) {
        let outcome = if self.is_inferred {
            keep.inferred(self.outcome, &self.slots.queue_pair)
        } else {
            self.outcome
        };
        keep.settle(outcome);
    }

    #[cold]
    #[inline(never)]
    fn release_rest(&mut self) {
        while let Some((index, memory)) = self.next() {
            self.slots.release(index);
            drop(memory);
        }
    }
}

impl<T: Send + 'static> Iterator for CompletedRun<'_, T> {
    type Item = (u32, Option<T>);

    #[inline]
    fn next(&mut self) -> Option<(u32, Option<T>)> {
        if self.id == 0 {
            return None;
        }
        // A request with a completion of its own, as failed requests have, also took those before
        // it: the run ends there.
        let taken = self.slots.table.complete(mem::take(&mut self.id));
        let (index, Launched { held, earlier }) = taken?;
        let Held { memory, keep } = held;
        if matches!(keep, KeepAlive::Nothing) {
            // `Nothing` needs no drop, which the compiler does not see.
            mem::forget(keep);
        } else {
            self.settle(keep);
        }
        (self.id, self.is_inferred) = (earlier, true);
        Some((index, memory))
    }
}

impl<T: Send + 'static> Drop for CompletedRun<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.id != 0 {
            self.release_rest();
        }
    }
}

#[cold]
fn foreign_slot() -> Error {
    Error::invalid("reserved slot", "it is of another queue")
}

impl<T: Send + 'static> Drop for Slots<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.table.abandon() {
            self.queue_pair.abandon(memory);
        }
    }
}
