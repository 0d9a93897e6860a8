//! The send side of a queue pair, for one owner.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::batch::BatchRoom;
use super::queue_pair::QueuePairHandle;
use super::request::{
    Limits, describe_inline, describe_send, describe_usual, describe_usual_datagram,
    describe_usual_inline, stack_room,
};
use super::ring::Ring;
use crate::error::Error;
use crate::memory::Gather;
use crate::queue_pair::{
    Description, InlineData, KeepAlive, Outcome, SendFlags, SendRequest, Target,
};

/// Posts send requests and keeps what they need.
pub(crate) struct SendRing<T: Send + 'static> {
    pub(super) ring: Ring<T>,
    /// Where batches are put together.
    pub(super) room: BatchRoom<sys::ibv_send_wr>,
    signals: Signals,
    limits: Limits,
    /// Set if the queue pair sends datagrams that may be posted in the usual way.
    sends_datagrams: bool,
}

impl<T: Send + 'static> fmt::Debug for SendRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ring.fmt(f)
    }
}

/// Limit of unsignaled requests in a row.
///
/// At least one of the requests that fit into a queue pair must be signaled, or none is ever known
/// to have completed. A queue that has the queue pair for itself may have all but one unsignaled.
/// Several queues share that number, and a queue that comes later signals its first request: the
/// others may have filled all places but one before they knew of it.
struct Signals {
    /// Number of unsignaled requests since the last signaled one.
    run: u32,
    /// Greatest such number.
    limit: u32,
    /// Number of queues of the queue pair that the limit is for.
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
        // A ring has at most 2^24 places.
        self.limit = (capacity as u32 / queues.max(1)).saturating_sub(1);
    }

    /// Returns whether a request after a run of `run` unsignaled ones may be unsignaled, if nothing
    /// has changed.
    #[inline]
    fn may_wait(&self, run: u32, queue_pair: &QueuePairHandle) -> bool {
        run < self.limit && self.queues == queue_pair.send_queues()
    }

    /// Returns whether an unsignaled request after `run` others must be signaled.
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
        let is_usual = queue_pair.is_usual();
        let ring = Ring::new(queue_pair, capacity, is_usual);
        Self {
            room: BatchRoom::CLOSED,
            signals: Signals::new(ring.queue_pair(), ring.capacity()),
            limits: Limits::of_sends(ring.queue_pair()),
            sends_datagrams: ring.queue_pair().is_usual_for_datagrams(),
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

    /// Returns whether this is the id of the oldest request in flight.
    #[inline]
    pub(crate) fn is_oldest(&self, id: u64) -> bool {
        self.ring.is_oldest(id)
    }

    /// Returns the number of requests that are completed by the completion with this id: that
    /// request and the older ones; 0 if it is not one of this queue's and in flight.
    #[inline]
    pub(crate) fn completed(&self, id: u64) -> u64 {
        self.ring.completed(id)
    }

    /// Takes the memory of the oldest request, of which there is one. `outcome` is that of the last
    /// request that ends with it, behind so many others.
    #[inline]
    pub(crate) fn retire(&mut self, outcome: Outcome, left: u64) -> Option<T> {
        self.ring.retire(outcome, left)
    }

    /// Posts a request: the usual ones in a way that the compiler makes one piece of code of, with
    /// the request's description, and the others in [the general way](Self::post_any).
    #[inline(always)]
    pub(crate) fn post(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if !request.is_usual() {
            return self.post_datagram(request);
        }
        let (memory, description) = request.into_usual();
        match self.post_usual(memory, &description) {
            Ok(()) => Ok(()),
            Err((0, memory)) => self.post_any(SendRequest::from_usual(memory, description)),
            Err((errno, memory)) => Err(self.refused(errno, memory)),
        }
    }

    /// Posts a usual request; else the memory, with the verb's error number, or 0 where it is to be
    /// posted in the general way.
    #[inline(always)]
    fn post_usual(&mut self, memory: T, description: &Description) -> Result<(), (i32, T)>
    where
        T: Gather,
    {
        let signaled = description.flags.contains(SendFlags::SIGNALED);
        if !self.ring.is_ready() || !(signaled || self.may_wait(self.signals.run)) {
            return Err((0, memory));
        }
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (limits, id) = (self.limits, self.ring.next_id());
        if !describe_usual(&mut wr, &mut room, &memory, description, limits, id) {
            return Err((0, memory));
        }
        // SAFETY: it was described, and `room` outlives the call. On success the memory moves into
        // its slot, where nobody can reach it; it leaves the slot when a completion of this queue
        // retires it, or with the destroyed queue pair.
        let errno = unsafe { self.ring.usual().post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err((errno, memory));
        }
        self.count(signaled);
        // SAFETY: it was ready, and nothing was posted since.
        unsafe { self.ring.keep_memory(memory) };
        Ok(())
    }

    /// Posts a datagram in the usual way, and any other request in [the general
    /// way](Self::post_any).
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
        if !describe_usual_datagram(&mut wr, &mut room, request.memory(), to, limits, id) {
            return self.post_any(request);
        }
        // SAFETY: as in `post_usual`, also for the address handle.
        let errno = unsafe { self.ring.usual().post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err(self.refused(errno, request.into_memory()));
        }
        self.count(signaled);
        let (memory, keep) = request.into_parts();
        // SAFETY: the ring has an empty slot, and nothing was posted since that was checked.
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
        // SAFETY: as in `post`, also for the objects that the request keeps alive.
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

    /// Posts a request whose data is copied; usual requests as [`Self::post`] posts them.
    #[inline(always)]
    pub(crate) fn post_inline<D: InlineData>(
        &mut self,
        request: SendRequest<D>,
    ) -> Result<(), (Error, D)> {
        if !request.is_usual() {
            return self.post_any_inline(request);
        }
        let (data, description) = request.into_usual();
        match self.post_usual_inline(&data, &description) {
            Ok(()) => Ok(()),
            Err(0) => self.post_any_inline(SendRequest::from_usual(data, description)),
            Err(errno) => Err(self.refused(errno, data)),
        }
    }

    /// Posts a usual request whose data is copied. Otherwise returns the verb's error number, or 0
    /// if the request must be posted in the general way.
    #[inline(always)]
    fn post_usual_inline<D: InlineData>(
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
        if !describe_usual_inline(&mut wr, &mut room, data, description, limits, id) {
            return Err(0);
        }
        // SAFETY: the request was described, and `room` and the data, which is copied, outlive the
        // call.
        let errno = unsafe { self.ring.usual().post_send(wr.as_mut_ptr()) };
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
        // SAFETY: the request was described, and `room` and the data, which is copied, outlive the
        // call. The objects that it keeps alive move into the slot.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => {
                self.count(request.is_signaled());
                self.ring.keep(None, request.into_parts().1);
                Ok(())
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    /// Returns whether a request after a run of unsignaled ones may be unsignaled too, if nothing
    /// has changed.
    #[inline]
    pub(super) fn may_wait(&self, run: u32) -> bool {
        self.signals.may_wait(run, self.ring.queue_pair())
    }

    /// Makes room for a batch.
    #[inline]
    pub(super) fn open_room(&mut self) {
        self.room.open(self.ring.capacity(), self.limits.elements());
    }

    /// Returns the limits of a usual request.
    #[inline]
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns whether the queue pair sends datagrams that may be posted in the usual way.
    #[inline]
    pub(super) fn sends_datagrams(&self) -> bool {
        self.sends_datagrams
    }

    /// Returns the request, signaled if it must be after a run of unsignaled ones.
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

    /// Returns the number of unsignaled requests since the last signaled one.
    #[inline]
    pub(super) fn run(&self) -> u32 {
        self.signals.run
    }

    /// Counts a request that was posted.
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
