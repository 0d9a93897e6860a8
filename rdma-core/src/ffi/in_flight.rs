//! The requests in flight of a queue. Many threads can post to the queue at the same time without a
//! lock.

use std::fmt;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::queue_pair::QueuePairHandle;
use super::receive_ring::no_receive_queue;
use super::request::{
    Limits, ReceiveElements, Room, describe_fast_path, describe_fast_path_datagram,
    describe_fast_path_inline, describe_inline, describe_send, receive_request, scatter_fast_path,
    stack_room,
};
use super::reserved_slot::SlotGuard;
use super::ring::RequestResources;
use super::slot_table::{Reserved, SlotTable};
use super::unsignaled_chains::{ChainedRequest, UnsignaledChains};
use crate::error::Error;
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{InlineData, KeepAlive, Outcome, SendFlags, SendRequest};

/// The memory of a request in flight, and the objects (such as an address handle) that the request
/// keeps alive. The request's slot in the table of requests stores this value until the request has
/// completed.
pub(super) struct InFlightRequest<T> {
    pub(super) held: RequestResources<T>,
    /// The id of the latest earlier request that has no completion of its own. The completion of
    /// this request also completes that request. 0 if no such request exists.
    pub(super) earlier: u64,
}

impl<T> InFlightRequest<T> {
    #[inline]
    fn new(memory: Option<T>, keep: KeepAlive, earlier: u64) -> Self {
        Self {
            held: RequestResources { memory, keep },
            earlier,
        }
    }
}

/// The table of the requests in flight of a queue. Each request uses a slot: an entry of the table
/// that is reserved before the request is posted, and released after the request has completed.
pub(crate) struct Slots<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    table: SlotTable<InFlightRequest<T>>,
    /// The posted unsignaled requests that no signaled request has followed yet.
    pub(super) unsignaled_chains: UnsignaledChains,
    /// Limits that requests must meet to take the fast path (posting with few, inlined checks), or
    /// `None` if the queue pair does not support the fast path.
    fast_path: Option<Limits>,
    /// Limits that datagrams on the fast path must meet, or `None` if the queue pair does not
    /// support the fast path for datagrams.
    fast_path_datagrams: Option<Limits>,
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
    /// Creates the table for the send requests of a queue pair, with `capacity` slots (entries for
    /// requests in flight). `capacity` must be at most 2^16.
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let limits = Limits::of_sends(&queue_pair);
        Self {
            table: SlotTable::new(capacity),
            unsignaled_chains: UnsignaledChains::new(queue_pair.count_send_queue() == 1),
            fast_path: queue_pair.is_fast_path().then_some(limits),
            fast_path_datagrams: queue_pair.is_fast_path_for_datagrams().then_some(limits),
            queue_pair,
        }
    }

    /// Creates the table for the receives of a queue pair, with `capacity` slots (entries for
    /// receives in flight). If the queue pair has no receive queue, the table has a single slot.
    /// This slot stays in use, so that every post fails.
    pub(crate) fn for_receives(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let refused = no_receive_queue(&queue_pair).is_some();
        let takes_elements = queue_pair.sizes().receive_elements > 0;
        let slots = Self {
            table: SlotTable::new(if refused { 1 } else { capacity }),
            unsignaled_chains: UnsignaledChains::new(true),
            fast_path: takes_elements.then(|| Limits::of_receives(&queue_pair)),
            fast_path_datagrams: None,
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

    pub(super) fn table(&self) -> &SlotTable<InFlightRequest<T>> {
        &self.table
    }

    pub(crate) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Reserves a free slot (a table entry for a request in flight). Dropping the returned guard
    /// frees the slot. Returns `None` if every slot is in use.
    #[inline]
    pub(crate) fn reserve(&self) -> Option<SlotGuard<'_>> {
        let reserved = self.table.reserve()?;
        Some(SlotGuard::new(&self.table, reserved))
    }

    /// Creates a guard for the reserved slot (table entry) `reserved`. Dropping the guard frees the
    /// slot. If the slot belongs to another table, returns an error and the slot.
    #[inline]
    pub(crate) fn guard(&self, reserved: Reserved) -> Result<SlotGuard<'_>, (Error, Reserved)> {
        if self.table.owns(&reserved) {
            Ok(SlotGuard::new(&self.table, reserved))
        } else {
            Err((foreign_slot(), reserved))
        }
    }

    /// Removes a reserved slot (table entry) from its guard, so that the caller can use the slot
    /// for a request. If the slot belongs to another table, returns an error and frees the slot in
    /// that table.
    #[inline]
    pub(super) fn claim(&self, slot: SlotGuard<'_>) -> Result<Reserved, Error> {
        if self.table.owns(slot.reserved()) {
            Ok(slot.into_reserved())
        } else {
            Err(foreign_slot())
        }
    }

    /// Frees a reserved slot (table entry) that no request has used, so that another request can
    /// use the slot.
    pub(crate) fn cancel(&self, reserved: Reserved) {
        self.table.cancel(reserved);
    }

    /// Begins posting a send request that follows a chain of unsignaled requests. An unsignaled
    /// request has no completion of its own: the completion that completes the new request also
    /// completes the chain. The result contains the id of the last request of the chain, and states
    /// whether the new request must be signaled. The new request must be signaled if `is_signaled`
    /// is `true`, or if unsignaled requests use too many slots.
    #[inline]
    fn chain(&self, is_signaled: bool) -> ChainedRequest<'_> {
        if is_signaled {
            self.unsignaled_chains.chain_signaled()
        } else {
            self.chain_unsignaled()
        }
    }

    /// Begins posting a request that the program made unsignaled. The request becomes signaled if
    /// unsignaled requests already use half of the slots, because only the completion of a signaled
    /// request frees the slots of unsignaled requests. If the queue pair has several send queues,
    /// each queue may use an equal share of that half.
    #[cold]
    fn chain_unsignaled(&self) -> ChainedRequest<'_> {
        // A table has at most 2^16 slots.
        let half = self.capacity() as u32 / 2;
        let queues = self.queue_pair.send_queues().max(1);
        self.unsignaled_chains.chain_unsignaled(half / queues)
    }

    /// Posts a send request. The reserved slot (table entry) `slot` keeps the memory of the request
    /// until the request has completed. On failure frees the slot, and returns the error and the
    /// memory. Most requests take a fast path, which is inlined together with the code that creates
    /// the request. All other requests take [the general path](Self::post_any).
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
        let (Some(limits), true) = (
            self.fast_path,
            request.is_fast_path() && request.is_signaled(),
        ) else {
            return self.post_datagram(reserved, request);
        };
        let (memory, description) = request.into_described();
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !describe_fast_path(&mut wr, &mut room, &memory, &description, limits, id) {
            return self.post_any(reserved, SendRequest::from_described(memory, description));
        }
        let launched = InFlightRequest::new(
            Some(memory),
            KeepAlive::Nothing,
            self.unsignaled_chains.take(),
        );
        self.table.launch(&reserved, launched);
        // SAFETY: the request was filled in, and `room` outlives the call. The memory is in the
        // slot, where no code can access it until `complete` takes it for a completion with this
        // id, or the queue pair is destroyed.
        let errno = unsafe { self.queue_pair.fast_path().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_send_error(errno)))
    }

    /// Posts a send request, usually a datagram. The reserved slot (table entry) `reserved` keeps
    /// the memory of the request until the request has completed. Signaled requests are posted with
    /// few checks if possible. All other requests take [`Self::post_any`], which decides whether an
    /// unsignaled request must become signaled. On failure frees the slot, and returns the error
    /// and the memory.
    #[inline]
    fn post_datagram(&self, reserved: Reserved, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !request.is_signaled() || !self.describe_fast_path(&mut wr, &mut room, &request, id) {
            return self.post_any(reserved, request);
        }
        let (memory, keep) = request.into_parts();
        let launched = InFlightRequest::new(Some(memory), keep, self.unsignaled_chains.take());
        self.table.launch(&reserved, launched);
        // SAFETY: the request was filled in, and `room` outlives the call. The memory and the
        // address handle are in the slot, where no code can access them until the request has
        // completed or the queue pair is destroyed.
        let errno = unsafe { self.queue_pair.fast_path().post_send(wr.as_mut_ptr()) };
        if errno == 0 {
            return Ok(());
        }
        Err(self.withdraw(reserved, self.queue_pair.post_send_error(errno)))
    }

    /// Fills in the C work request `wr` for `request`, after few, inlined checks. Returns `false`
    /// if the request needs the full checks of [`describe_send`]. `id` becomes the work request id.
    #[inline]
    pub(super) fn describe_fast_path(
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
        match (request.keep(), self.fast_path, self.fast_path_datagrams) {
            (KeepAlive::Nothing, Some(limits), _) => {
                describe_fast_path(wr, room, memory, &description, limits, id)
            }
            (KeepAlive::Address(handle), _, Some(limits)) => {
                describe_fast_path_datagram(wr, room, memory, (&description, handle), limits, id)
            }
            _ => false,
        }
    }

    /// Frees the slot of a request that the device refused, and returns the memory of the request
    /// together with `error`.
    #[cold]
    fn withdraw(&self, reserved: Reserved, error: Error) -> (Error, T) {
        let (error, memory) = self.withdraw_any(reserved, error);
        (error, memory.expect("the memory that was put in"))
    }

    /// Frees the slot of a request that the device refused, and returns the memory of the request
    /// together with `error`. The memory is `None` for an inline request.
    #[cold]
    fn withdraw_any(&self, reserved: Reserved, error: Error) -> (Error, Option<T>) {
        let InFlightRequest { mut held, earlier } = self.table.withdraw(reserved);
        if earlier != 0 {
            self.unsignaled_chains.leave(earlier);
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
        // SAFETY: the request was filled in, and `room` outlives the call. The memory and objects
        // of the request are in the slot, where no code can access them until `complete` takes them
        // for a completion with this id, or the queue pair is destroyed.
        let posted = unsafe { self.launch(&reserved, Some(memory), keep, is_signaled, &mut wr) };
        posted.map_err(|error| self.withdraw(reserved, error))
    }

    /// Posts the work request `wr` to the device. Before the post, stores `memory`, and the objects
    /// that the request keeps alive, in the slot (table entry) `reserved`.
    ///
    /// # Safety
    ///
    /// `wr` must have been filled in, and must meet the requirements of
    /// [`QueuePairHandle::post_send`].
    unsafe fn launch(
        &self,
        reserved: &Reserved,
        memory: Option<T>,
        keep: KeepAlive,
        is_signaled: bool,
        wr: &mut MaybeUninit<sys::ibv_send_wr>,
    ) -> Result<(), Error> {
        let chained = self.chain(is_signaled);
        let launched = InFlightRequest::new(memory, keep, chained.earlier());
        self.table.launch(reserved, launched);
        // SAFETY: the caller guarantees that the request is filled in and valid.
        let posted = unsafe {
            let wr = wr.assume_init_mut();
            if chained.is_signaled() {
                wr.send_flags |= SendFlags::SIGNALED.bits() as std::ffi::c_uint;
            }
            self.queue_pair.post_send(wr)
        };
        if posted.is_ok() {
            chained.posted(reserved.id());
        }
        posted
    }

    /// Posts a send request with inline data: the post copies the data. The request uses the
    /// reserved slot (table entry) `slot` until the request has completed. On failure frees the
    /// slot, and returns the error and the data. Simple requests are posted with few, inlined
    /// checks.
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
        let (Some(limits), true) = (
            self.fast_path,
            request.is_fast_path() && request.is_signaled(),
        ) else {
            return self.post_any_inline(reserved, request);
        };
        let (data, description) = request.into_described();
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let id = reserved.id();
        if !describe_fast_path_inline(&mut wr, &mut room, &data, &description, limits, id) {
            let request = SendRequest::from_described(data, description);
            return self.post_any_inline(reserved, request);
        }
        let launched =
            InFlightRequest::new(None, KeepAlive::Nothing, self.unsignaled_chains.take());
        self.table.launch(&reserved, launched);
        // SAFETY: the request was filled in. `room` and the data, which is copied, outlive the
        // call.
        let errno = unsafe { self.queue_pair.fast_path().post_send(wr.as_mut_ptr()) };
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
        // SAFETY: the request was filled in. `room` and the data, which is copied, outlive the
        // call. The objects that the request keeps alive are in the slot.
        let posted = unsafe { self.launch(&reserved, None, keep, is_signaled, &mut wr) };
        posted.map_err(|error| (self.withdraw_any(reserved, error).0, data))
    }

    /// Posts a receive into `memory`, and keeps the memory in a free slot of the table until the
    /// receive has completed. On failure, for example if no slot is free, returns the error and the
    /// memory. Most receives take a fast path, as in [`Self::post_send`].
    #[inline(always)]
    pub(crate) fn post_receive(&self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        let Some(reserved) = self.table.reserve() else {
            return Err((self.no_slot(), memory));
        };
        let mut room = stack_room();
        let fast_path = self.fast_path;
        let count = fast_path.and_then(|limits| scatter_fast_path(&mut room, &memory, limits));
        let Some(count) = count else {
            return self.post_any_receive(reserved, memory);
        };
        let mut wr = receive_request(&mut room, count, reserved.id());
        let launched = InFlightRequest::new(Some(memory), KeepAlive::Nothing, 0);
        self.table.launch(&reserved, launched);
        // SAFETY: the request was filled in, and `room` outlives the call. The memory is in the
        // slot, where no code can access it until the request has completed or the queue pair is
        // destroyed.
        let errno = unsafe { self.queue_pair.fast_path().post_receive(&mut wr) };
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
        let launched = InFlightRequest::new(Some(memory), KeepAlive::Nothing, 0);
        self.table.launch(&reserved, launched);
        // SAFETY: the request was filled in, and `elements` outlives the call. The memory is in the
        // slot, where no code can access it until the request has completed or the queue pair is
        // destroyed.
        let posted = unsafe { self.queue_pair.post_receive(&mut wr) };
        posted.map_err(|error| {
            let held = self.table.withdraw(reserved).held;
            (error, held.memory.expect("the memory that was put in"))
        })
    }

    /// Returns the error of a receive that cannot be posted because every slot is in use.
    #[cold]
    pub(super) fn no_slot(&self) -> Error {
        no_receive_queue(&self.queue_pair).unwrap_or(Error::QueueFull {
            queue: "receive",
            capacity: self.capacity(),
        })
    }

    /// Takes the memory of the request with the id `id` out of the request's slot (table entry).
    /// `outcome` is the outcome with which the request has ended. Returns the index of the slot,
    /// which stays in use until [`Self::release`], and the memory (`None` for an inline request).
    /// Returns `None` if no request with this id is in flight.
    #[inline]
    pub(crate) fn complete(&self, id: u64, outcome: Outcome) -> Option<(u32, Option<T>)> {
        let (index, InFlightRequest { mut held, .. }) = self.table.complete(id)?;
        held.keep.settle(outcome);
        Some((index, held.memory))
    }

    /// Returns an iterator over the requests that the completion of the request `id` completes:
    /// this request, and then the earlier unsignaled requests. Each item is the slot index and the
    /// memory of a request. The iterator removes the memory from the slot. `outcome` is the outcome
    /// of the request `id`.
    #[inline]
    pub(crate) fn complete_all(&self, id: u64, outcome: Outcome) -> CompletedRun<'_, T> {
        CompletedRun {
            slots: self,
            id,
            outcome,
            is_inferred: false,
        }
    }

    /// Frees the slot (table entry) of a completed request, so that another request can use the
    /// slot. Has no effect on a slot in any other state.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.table.release(index);
    }
}

/// An iterator over a completed request and the earlier unsignaled requests that the same
/// completion completes, the latest first. Each item is the slot (table entry) index and the memory
/// of a request. Dropping the iterator frees the remaining slots and drops their memory.
pub(crate) struct CompletedRun<'a, T: Send + 'static> {
    slots: &'a Slots<T>,
    /// Id of the request that the iterator returns next, or 0 if no request is left.
    id: u64,
    /// Outcome that the completion reports, for the request that has the completion.
    outcome: Outcome,
    /// Set after the iterator has returned the first request. The completion of that request also
    /// completes all further requests.
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
    /// Frees the slot (table entry) at `index`, whose request has completed.
    #[inline]
    pub(crate) fn release(&self, index: u32) {
        self.slots.release(index);
    }

    /// Releases the objects `keep`, which a completed request has kept alive. If the request
    /// changed a memory window, records whether the window is bound, according to the outcome of
    /// the request.
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
        /// A guard with the requests that the iterator has not returned yet. Dropping the guard
        /// frees their slots and drops their memory, even if an earlier drop of a request's memory
        /// has panicked.
        struct Rest<'r, 'a, T: Send + 'static>(&'r mut CompletedRun<'a, T>);

        impl<T: Send + 'static> Rest<'_, '_, T> {
            fn release(&mut self) {
                while let Some((index, memory)) = self.0.next() {
                    self.0.slots.release(index);
                    drop(memory);
                }
            }
        }

        impl<T: Send + 'static> Drop for Rest<'_, '_, T> {
            fn drop(&mut self) {
                self.release();
            }
        }

        Rest(self).release();
    }
}

impl<T: Send + 'static> Iterator for CompletedRun<'_, T> {
    type Item = (u32, Option<T>);

    #[inline]
    fn next(&mut self) -> Option<(u32, Option<T>)> {
        if self.id == 0 {
            return None;
        }
        // The iteration ends at a request that has already had a completion of its own, for example
        // because it failed. That completion has also taken the requests before it.
        let taken = self.slots.table.complete(mem::take(&mut self.id));
        let (index, InFlightRequest { held, earlier }) = taken?;
        let RequestResources { memory, keep } = held;
        if matches!(keep, KeepAlive::Nothing) {
            // Dropping `KeepAlive::Nothing` has no effect, but the compiler does not know that.
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
