//! The send queue of a queue pair for a single owner: posts requests, and keeps requests in flight.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::batch::BatchStorage;
use super::queue_pair::QueuePairHandle;
use super::request::{
    Limits, describe_fast_path, describe_fast_path_datagram, describe_fast_path_inline,
    describe_inline, describe_send, stack_room,
};
use super::ring::Ring;
use crate::error::Error;
use crate::memory::Gather;
use crate::queue_pair::{
    Description, InlineData, KeepAlive, Outcome, SendFlags, SendRequest, Target,
};

/// The send queue of a queue pair, used by a single owner. The queue posts requests, and keeps the
/// memory of each request until the request has completed.
pub(crate) struct SendRing<T: Send + 'static> {
    pub(super) ring: Ring<T>,
    /// Storage in which batches are built.
    pub(super) room: BatchStorage<sys::ibv_send_wr>,
    signals: Signals,
    limits: Limits,
    /// Set if datagrams of the queue pair can be posted on the fast path.
    sends_datagrams: bool,
}

impl<T: Send + 'static> fmt::Debug for SendRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(f)
    }
}

/// The number of consecutive unsignaled requests of a queue, and the limit of this number.
///
/// At least one of the requests that fill the send queue must be signaled, because otherwise no
/// completion would ever make room. Several queues of this crate can post to the same queue pair,
/// and share the capacity of its send queue equally. A queue that is created later makes its first
/// request signaled, because the other queues have perhaps left only one free place in the send
/// queue.
struct Signals {
    /// Number of unsignaled requests since the last signaled one.
    run: u32,
    /// Maximum number of consecutive unsignaled requests.
    limit: u32,
    /// Number of queues of the queue pair at the time when `limit` was computed.
    queues: u32,
}

impl Signals {
    fn new(queue_pair: &QueuePairHandle, capacity: usize) -> Self {
        let queues = queue_pair.count_send_queue();
        let mut signals = Self {
            run: 0,
            limit: 0,
            queues,
        };
        signals.share(queues, capacity);
        if queues > 1 {
            signals.run = signals.limit;
        }
        signals
    }

    #[cold]
    fn share(&mut self, queues: u32, capacity: usize) {
        self.queues = queues;
        // A ring has at most 2^24 slots.
        self.limit = (capacity as u32 / queues.max(1)).saturating_sub(1);
    }

    /// Returns whether the next request may be unsignaled. `run` is the number of consecutive
    /// unsignaled requests directly before the next request. Returns `false` if `run` has reached
    /// the limit. Also returns `false` if the limit is outdated, because the number of queues that
    /// share the send queue has changed.
    #[inline]
    fn may_wait(&self, run: u32, queue_pair: &QueuePairHandle) -> bool {
        run < self.limit && self.queues == queue_pair.send_queues()
    }

    /// Returns whether the next request must be made signaled, because the number `run` of
    /// unsignaled requests before it has reached the limit. The limit is this queue's share of the
    /// `capacity` of the send queue, minus 1. Updates the limit if the number of queues that share
    /// the send queue has changed.
    #[inline]
    fn is_due(&mut self, run: u32, queue_pair: &QueuePairHandle, capacity: usize) -> bool {
        let queues = queue_pair.send_queues();
        if queues != self.queues {
            self.share(queues, capacity);
        }
        run >= self.limit
    }
}

impl<T: Send + 'static> SendRing<T> {
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>) -> Self {
        let sizes = queue_pair.sizes();
        let capacity = if queue_pair.kind().has_send_queue() {
            sizes.send_requests
        } else {
            0
        };
        let is_fast_path = queue_pair.is_fast_path();
        let ring = Ring::new(queue_pair, capacity, is_fast_path);
        Self {
            room: BatchStorage::CLOSED,
            signals: Signals::new(ring.queue_pair(), ring.capacity()),
            limits: Limits::of_sends(ring.queue_pair()),
            sends_datagrams: ring.queue_pair().is_fast_path_for_datagrams(),
            ring,
        }
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        self.ring.queue_pair()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    /// Returns whether `id` is the id of the oldest request in flight.
    #[inline]
    pub(crate) fn is_oldest(&self, id: u64) -> bool {
        self.ring.is_oldest(id)
    }

    /// Returns the number of requests that the completion with the id `id` completes: the request
    /// with this id, and all older requests in flight. Returns 0 if no request of this queue with
    /// this id is in flight.
    #[inline]
    pub(crate) fn completed(&self, id: u64) -> u64 {
        self.ring.completed(id)
    }

    /// Removes the oldest request in flight. Returns its memory, or `None` for an inline request.
    /// The caller must ensure that a request is in flight. Called for a completion of this request
    /// or of a later request. `left` is the number of requests from the removed request to the
    /// request with the completion, or 0 if the completion is that of the removed request.
    /// `outcome` is the outcome in the completion.
    #[inline]
    pub(crate) fn retire(&mut self, outcome: Outcome, left: u64) -> Option<T> {
        self.ring.retire(outcome, left)
    }

    /// Posts a request. On failure returns the error and the memory of the request. The function is
    /// inlined, because most requests need only few checks. Requests that need all checks are
    /// posted by [`Self::post_any`].
    #[inline(always)]
    pub(crate) fn post(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if !request.is_fast_path() {
            return self.post_datagram(request);
        }
        let (memory, description) = request.into_described();
        match self.post_fast_path(memory, &description) {
            Ok(()) => Ok(()),
            Err((0, memory)) => self.post_any(SendRequest::from_described(memory, description)),
            Err((errno, memory)) => Err(self.refused(errno, memory)),
        }
    }

    /// Posts a request after few, inlined checks. On failure returns an error number and the
    /// memory. The number is the error number of `ibv_post_send`, or 0 if the request needs more
    /// checks and was not posted.
    #[inline(always)]
    fn post_fast_path(&mut self, memory: T, description: &Description) -> Result<(), (i32, T)>
    where
        T: Gather,
    {
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        if !self.ring.is_ready() || !(signaled || self.may_wait(self.signals.run)) {
            return Err((0, memory));
        }
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (limits, id) = (self.limits, self.ring.next_id());
        if !describe_fast_path(&mut wr, &mut room, &memory, description, limits, id) {
            return Err((0, memory));
        }
        // SAFETY: the request was filled in, and `room` outlives the call. On success the memory
        // moves into its slot, where no code can access it. The memory leaves the slot when a
        // completion of this queue retires the request, or when the queue pair is destroyed.
        let errno = unsafe { self.ring.fast_path().post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err((errno, memory));
        }
        self.count(signaled);
        // SAFETY: the ring was ready, and no request was posted since.
        unsafe { self.ring.keep_memory(memory) };
        Ok(())
    }

    /// Posts a datagram on the fast path, or any other request on [the general
    /// path](Self::post_any).
    #[inline]
    fn post_datagram(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        let description = request.description();
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        let (KeepAlive::Address(handle), Target::Datagram { .. }) =
            (request.keep(), description.target)
        else {
            return self.post_any(request);
        };
        let is_ready = self.sends_datagrams && self.ring.has_empty_slot();
        if !is_ready || !(signaled || self.may_wait(self.signals.run)) {
            return self.post_any(request);
        }
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (limits, id) = (self.limits, self.ring.next_id());
        let to = (&description, handle);
        if !describe_fast_path_datagram(&mut wr, &mut room, request.memory(), to, limits, id) {
            return self.post_any(request);
        }
        // SAFETY: the request was filled in, and `room` outlives the call. On success memory and
        // address handle move into the slot, where they stay until the request is retired or the
        // queue pair is destroyed.
        let errno = unsafe { self.ring.fast_path().post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err(self.refused(errno, request.into_memory()));
        }
        self.count(signaled);
        let (memory, keep) = request.into_parts();
        // SAFETY: the ring has an empty slot, and no request was posted since that was checked.
        unsafe { self.ring.keep_in_empty_slot(memory, keep) };
        Ok(())
    }

    #[cold]
    fn refused<D>(&self, errno: i32, memory: D) -> (Error, D) {
        (self.ring.queue_pair().post_send_error(errno), memory)
    }

    #[inline(never)]
    fn post_any(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if self.ring.in_flight() == self.ring.capacity() {
            return Err((self.full(), request.into_memory()));
        }
        let request = self.signal(request, self.signals.run);
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (self.ring.queue_pair(), self.ring.next_id());
        if let Err(error) = describe_send(&mut wr, &mut room, &request, queue_pair, id) {
            return Err((error, request.into_memory()));
        }
        // SAFETY: the request was filled in, and `room` outlives the call. On success memory and
        // objects move into the slot, where they stay until the request is retired or the queue
        // pair is destroyed.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => {
                self.count(request.is_signaled());
                let (memory, keep) = request.into_parts();
                self.ring.keep(Some(memory), keep);
                Ok(())
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    /// Posts a request with inline data. Most requests take a fast path, as in [`Self::post`].
    #[inline(always)]
    pub(crate) fn post_inline<D: InlineData>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        if !request.is_fast_path() {
            return self.post_any_inline(request);
        }
        let (data, description) = request.into_described();
        match self.post_fast_path_inline(&data, &description) {
            Ok(()) => Ok(()),
            Err(0) => self.post_any_inline(SendRequest::from_described(data, description)),
            Err(errno) => Err(self.refused(errno, data)),
        }
    }

    /// Posts a request with inline data after few, inlined checks. On failure returns the error
    /// number of `ibv_post_send`, or 0 if the request needs more checks and was not posted.
    #[inline(always)]
    fn post_fast_path_inline<D: InlineData>(
        &mut self,
        data: &D,
        description: &Description,
    ) -> Result<(), i32> {
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        if !self.ring.is_ready() || !(signaled || self.may_wait(self.signals.run)) {
            return Err(0);
        }
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (limits, id) = (self.limits, self.ring.next_id());
        if !describe_fast_path_inline(&mut wr, &mut room, data, description, limits, id) {
            return Err(0);
        }
        // SAFETY: the request was filled in. `room` and the data, which is copied, outlive the
        // call.
        let errno = unsafe { self.ring.fast_path().post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err(errno);
        }
        self.count(signaled);
        self.ring.keep_nothing();
        Ok(())
    }

    #[inline(never)]
    fn post_any_inline<D: InlineData>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        if self.ring.in_flight() == self.ring.capacity() {
            return Err((self.full(), request.into_memory()));
        }
        let request = self.signal(request, self.signals.run);
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (self.ring.queue_pair(), self.ring.next_id());
        if let Err(error) = describe_inline(&mut wr, &mut room, &request, queue_pair, id) {
            return Err((error, request.into_memory()));
        }
        // SAFETY: the request was filled in. `room` and the data, which is copied, outlive the
        // call. The objects that the request keeps alive move into the slot.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => {
                self.count(request.is_signaled());
                self.ring.keep(None, request.into_parts().1);
                Ok(())
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    /// Returns whether the next request may be unsignaled. `run` is the number of consecutive
    /// unsignaled requests directly before the next request. Returns `false` if `run` has reached
    /// the limit. Also returns `false` if the limit is outdated, because the number of queues that
    /// share the send queue has changed.
    #[inline]
    pub(super) fn may_wait(&self, run: u32) -> bool {
        self.signals.may_wait(run, self.ring.queue_pair())
    }

    /// Prepares the storage for the C structs of a batch, before the batch begins. The storage has
    /// room for as many requests as the send queue.
    #[inline]
    pub(super) fn open_room(&mut self) {
        self.room.open(self.ring.capacity(), self.limits.elements());
    }

    /// Returns the limits of the fast path (posting with few, inlined checks), for example the
    /// maximum number of memory ranges. A request that exceeds a limit must be posted with all
    /// checks.
    #[inline]
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns whether datagrams of the queue pair can be posted after few, inlined checks.
    #[inline]
    pub(super) fn sends_datagrams(&self) -> bool {
        self.sends_datagrams
    }

    /// Returns `request`, and makes the request signaled if the maximum number of consecutive
    /// unsignaled requests is reached. `run` is the number of unsignaled requests directly before
    /// `request`.
    #[inline]
    pub(super) fn signal<D>(&mut self, request: SendRequest<D>, run: u32) -> SendRequest<D> {
        if request.is_signaled() {
            return request;
        }
        let (queue_pair, capacity) = (self.ring.queue_pair(), self.ring.capacity());
        if self.signals.is_due(run, queue_pair, capacity) {
            request.signaled()
        } else {
            request
        }
    }

    /// Returns the number of unsignaled requests since the last signaled request of this queue.
    #[inline]
    pub(super) fn run(&self) -> u32 {
        self.signals.run
    }

    /// Updates the number of consecutive unsignaled requests after a request was posted. `signaled`
    /// states whether the request is signaled, which resets the number to 0.
    #[inline]
    pub(super) fn count(&mut self, signaled: bool) {
        self.signals.run = if signaled { 0 } else { self.signals.run + 1 };
    }

    #[inline]
    pub(super) fn set_run(&mut self, run: u32) {
        self.signals.run = run;
    }

    #[cold]
    pub(super) fn full(&self) -> Error {
        let kind = self.ring.queue_pair().kind();
        if !kind.has_send_queue() {
            let reason = format!("{kind} queue pairs have no send queue");
            return Error::invalid("request", reason);
        }
        Error::QueueFull {
            queue: "send",
            capacity: self.ring.capacity(),
        }
    }
}
