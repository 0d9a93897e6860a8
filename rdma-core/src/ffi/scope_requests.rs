//! The requests of a scope: posting. [`super::scope_end`] has the functions that wait for them.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;
use std::time::Duration;

use super::completion_queue::CompletionQueueHandle;
use super::posting::FastPathQueuePair;
use super::queue_pair::QueuePairHandle;
use super::receive_ring::no_receive_queue;
use super::request::{
    Limits, ReceiveElements, describe_fast_path, describe_inline, describe_send, receive_request,
    scatter_fast_path, stack_room,
};
use super::scope_slots::{FREE, ScopeSlots, Ticket};
use crate::error::{Error, Result};
use crate::memory::{Gather, Scatter};
use crate::queue_pair::{InlineData, KeepAlive, SendRequest};

/// The requests of a [`Scope`](crate::Scope). Each request uses one slot of a fixed table until the
/// request has ended.
pub(crate) struct ScopeRequests {
    pub(super) queue_pair: Arc<QueuePairHandle>,
    /// The completion queue for sends (at index [`SENDS`]) and the completion queue for receives
    /// (at index [`RECEIVES`]).
    pub(super) completions: [Arc<CompletionQueueHandle>; 2],
    pub(super) timeout: Duration,
    pub(super) slots: ScopeSlots,
    /// A pointer to the queue pair, by which the fast path posts requests.
    fast_path: FastPathQueuePair,
    sends: FastPath,
    receives: FastPath,
    pub(super) in_flight: Cell<usize>,
    /// The first failure that no handle can report, because the handle of the request was dropped
    /// or leaked.
    pub(super) failure: Cell<Option<Error>>,
}

/// The index, in [`ScopeRequests::completions`], of the completion queue for sends.
pub(super) const SENDS: usize = 0;

/// The index, in [`ScopeRequests::completions`], of the completion queue for receives.
pub(super) const RECEIVES: usize = 1;

/// The conditions for posting a request of a scope on the fast path, which makes few, inlined
/// checks.
struct FastPath {
    /// Limits that a request on the fast path must meet.
    limits: Limits,
    /// The value that the word of the next slot must have: [`FREE`], or `u64::MAX` if the queue
    /// pair does not support the fast path. No word has the value `u64::MAX`.
    free: u64,
}

impl FastPath {
    fn new(limits: Limits, is_fast_path: bool) -> Self {
        let free = if is_fast_path { FREE } else { u64::MAX };
        Self { limits, free }
    }
}

impl ScopeRequests {
    pub(crate) fn new(
        queue_pair: Arc<QueuePairHandle>,
        sends: &Arc<CompletionQueueHandle>,
        receives: &Arc<CompletionQueueHandle>,
        timeout: Duration,
    ) -> Self {
        let sizes = queue_pair.sizes();
        let capacity = sizes.send_requests.saturating_add(sizes.receive_requests);
        let takes_receives = sizes.receive_elements > 0 && no_receive_queue(&queue_pair).is_none();
        Self {
            sends: FastPath::new(Limits::of_sends(&queue_pair), queue_pair.is_fast_path()),
            receives: FastPath::new(Limits::of_receives(&queue_pair), takes_receives),
            fast_path: queue_pair.fast_path(),
            queue_pair,
            completions: [Arc::clone(sends), Arc::clone(receives)],
            timeout,
            slots: ScopeSlots::new(capacity),
            in_flight: Cell::new(0),
            failure: Cell::new(None),
        }
    }

    #[cold]
    fn full(&self) -> Error {
        Error::QueueFull {
            queue: "scope's",
            capacity: self.slots.capacity(),
        }
    }

    /// Increments the number of requests of the scope that are in flight.
    #[inline]
    fn count(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Posts a send request. Most requests take a fast path, which is inlined together with the
    /// code that creates the request. All other requests take [the general path](Self::post_any).
    ///
    /// # Safety
    ///
    /// Until the request has ended, the memory of the request must stay in place, and no code may
    /// access it in a way that conflicts with the device.
    #[inline(always)]
    pub(super) unsafe fn post_send<M: Gather>(
        &self,
        request: SendRequest<M>,
    ) -> Result<(Ticket<'_>, M), (Error, M)> {
        let (memory, description, keep) = request.signaled().into_pieces();
        let KeepAlive::Nothing = keep else {
            let request = SendRequest::from_pieces((memory, description, keep));
            // SAFETY: the caller guarantees the same requirements.
            return unsafe { self.post_any(request) };
        };
        // Dropping `KeepAlive::Nothing` has no effect, but the compiler does not know that.
        mem::forget(keep);
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (ticket, limits) = (self.slots.next(), self.sends.limits);
        let id = ticket.id();
        if !ticket.has_word(self.sends.free)
            || !describe_fast_path(&mut wr, &mut room, &memory, &description, limits, id)
        {
            let pieces = (memory, description, KeepAlive::Nothing);
            // SAFETY: the caller guarantees the same requirements.
            return unsafe { self.post_any(SendRequest::from_pieces(pieces)) };
        }
        // SAFETY: the request was filled in, and `room` outlives the call; the caller guarantees
        // that the memory is valid.
        let errno = unsafe { self.fast_path.post_send(wr.as_mut_ptr()) };
        if errno != 0 {
            return Err((self.queue_pair.post_send_error(errno), memory));
        }
        self.slots.launch(ticket);
        self.count();
        Ok((ticket, memory))
    }

    /// Posts a send request of any kind, with all checks.
    ///
    /// # Safety
    ///
    /// Until the request has ended, the memory of the request must stay in place, and no code may
    /// access it in a way that conflicts with the device.
    #[inline(never)]
    unsafe fn post_any<M: Gather>(
        &self,
        request: SendRequest<M>,
    ) -> Result<(Ticket<'_>, M), (Error, M)> {
        let Some(ticket) = self.slots.reserve() else {
            return Err((self.full(), request.into_memory()));
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&*self.queue_pair, ticket.id());
        if let Err(error) = describe_send(&mut wr, &mut room, &request, queue_pair, id) {
            return Err((error, request.into_memory()));
        }
        // SAFETY: the request was filled in, and `room` outlives the call; the caller guarantees
        // that the memory is valid. The objects that the request keeps alive are in `request`, and
        // then in the slot until the request has ended; this thread does not poll in between.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => {
                let (memory, keep) = request.into_parts();
                self.slots.launch_with(ticket, keep);
                self.count();
                Ok((ticket, memory))
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    #[inline]
    pub(super) fn post_inline<D: InlineData>(
        &self,
        request: SendRequest<D>,
    ) -> Result<Ticket<'_>, (Error, D)> {
        let request = request.signaled();
        let Some(ticket) = self.slots.reserve() else {
            return Err((self.full(), request.into_memory()));
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&*self.queue_pair, ticket.id());
        if let Err(error) = describe_inline(&mut wr, &mut room, &request, queue_pair, id) {
            return Err((error, request.into_memory()));
        }
        // SAFETY: the request was filled in. `room` and the data, which is copied, outlive the
        // call. The objects that the request keeps alive are in `request`, and then in the slot
        // until the request has ended.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => {
                self.slots.launch_with(ticket, request.into_parts().1);
                self.count();
                Ok(ticket)
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    /// Posts a receive into `memory`. Most receives take a fast path with few checks. All other
    /// receives take [the general path](Self::post_any_receive).
    ///
    /// # Safety
    ///
    /// Until the receive has ended, `memory` must stay in place, and no code may access it in a way
    /// that conflicts with the device.
    #[inline(always)]
    pub(super) unsafe fn post_receive<M: Scatter>(
        &self,
        memory: M,
    ) -> Result<(Ticket<'_>, M), (Error, M)> {
        let (mut room, ticket) = (stack_room(), self.slots.next());
        let count = if ticket.has_word(self.receives.free) {
            scatter_fast_path(&mut room, &memory, self.receives.limits)
        } else {
            None
        };
        let Some(count) = count else {
            // SAFETY: the caller guarantees the same requirements.
            return unsafe { self.post_any_receive(memory) };
        };
        let mut wr = receive_request(&mut room, count, ticket.id());
        // SAFETY: `room` outlives the call; the caller guarantees that the memory is valid.
        let errno = unsafe { self.fast_path.post_receive(&mut wr) };
        if errno != 0 {
            return Err((self.queue_pair.post_receive_error(errno), memory));
        }
        self.slots.launch(ticket);
        self.count();
        Ok((ticket, memory))
    }

    /// Posts a receive into `memory` with all checks (the general path), which supports every
    /// receive.
    ///
    /// # Safety
    ///
    /// Until the receive has ended, `memory` must stay in place, and no code may access it in a way
    /// that conflicts with the device.
    #[inline(never)]
    unsafe fn post_any_receive<M: Scatter>(
        &self,
        memory: M,
    ) -> Result<(Ticket<'_>, M), (Error, M)> {
        if let Some(error) = no_receive_queue(&self.queue_pair) {
            return Err((error, memory));
        }
        let mut elements = ReceiveElements::new();
        let (limits, context) = (self.queue_pair.sizes(), self.queue_pair.domain().context());
        if let Err(error) = elements.scatter(&memory, limits, context) {
            return Err((error, memory));
        }
        let Some(ticket) = self.slots.reserve() else {
            return Err((self.full(), memory));
        };
        let mut wr = elements.work_request(ticket.id());
        // SAFETY: `elements` outlives the call; the caller guarantees that the memory is valid.
        match unsafe { self.queue_pair.post_receive(&mut wr) } {
            Ok(()) => {
                self.slots.launch(ticket);
                self.count();
                Ok((ticket, memory))
            }
            Err(error) => Err((error, memory)),
        }
    }
}
