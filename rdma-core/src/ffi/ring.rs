//! In-flight memory of a queue with one owner, in the order of posting.

use std::fmt;
use std::sync::Arc;

use super::queue_pair::QueuePairHandle;
use super::request::{ReceiveElements, SendElements};
use super::request_id::{BLOCK_BITS, Sequence};
use crate::error::{Error, Result};
use crate::memory::{Gather, Scatter};
use crate::queue_pair::SendRequest;

/// A bounded queue of memory that the device uses; a request's id tells its place in the order.
pub(crate) struct Ring<T: Send + 'static> {
    queue_pair: Arc<QueuePairHandle>,
    /// The memory of request `n` stands at `n` modulo the length, a power of two.
    slots: Box<[Option<T>]>,
    capacity: usize,
    /// The requests that have not been retired.
    order: Sequence,
}

impl<T: Send + 'static> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("queue_pair", &self.queue_pair.number())
            .field("capacity", &self.capacity)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl<T: Send + 'static> Ring<T> {
    pub(crate) fn new(queue_pair: Arc<QueuePairHandle>, capacity: u32) -> Self {
        let capacity = capacity.min(1 << BLOCK_BITS) as usize;
        let slots = (0..capacity.next_power_of_two()).map(|_| None).collect();
        Self {
            queue_pair,
            slots,
            capacity,
            order: Sequence::new(),
        }
    }

    pub(crate) fn queue_pair(&self) -> &Arc<QueuePairHandle> {
        &self.queue_pair
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.order.outstanding()
    }

    #[inline]
    pub(crate) fn post_send(&mut self, request: SendRequest<T>) -> Result<(), (Error, T)>
    where
        T: Gather,
    {
        if self.in_flight() == self.capacity {
            return Err((self.full("send"), request.into_memory()));
        }
        let mut elements = SendElements::new();
        if let Err(error) = elements.gather(&request, self.queue_pair.sizes()) {
            return Err((error, request.into_memory()));
        }
        let id = self.order.id(self.order.tail());
        let mut wr = elements.work_request(&request, id);
        // SAFETY: `elements` outlives the call. On success the memory moves into its slot, where
        // nobody can reach it; it leaves the slot when a completion of this queue retires it, or
        // with the destroyed queue pair.
        match unsafe { self.queue_pair.post_send(&mut wr) } {
            Ok(()) => {
                self.keep(request.into_memory());
                Ok(())
            }
            Err(error) => Err((error, request.into_memory())),
        }
    }

    #[inline]
    pub(crate) fn post_receive(&mut self, memory: T) -> Result<(), (Error, T)>
    where
        T: Scatter,
    {
        if self.in_flight() == self.capacity {
            return Err((self.full("receive"), memory));
        }
        let mut elements = ReceiveElements::new();
        if let Err(error) = elements.scatter(&memory, self.queue_pair.sizes()) {
            return Err((error, memory));
        }
        let mut wr = elements.work_request(self.order.id(self.order.tail()));
        // SAFETY: as in `post_send`.
        match unsafe { self.queue_pair.post_receive(&mut wr) } {
            Ok(()) => {
                self.keep(memory);
                Ok(())
            }
            Err(error) => Err((error, memory)),
        }
    }

    #[inline]
    fn keep(&mut self, memory: T) {
        let slot = self.slot(self.order.tail());
        self.slots[slot] = Some(memory);
        self.order.advance_tail();
    }

    /// The number of the request with this id, if it is one of this queue's and in flight.
    #[inline]
    pub(crate) fn number(&self, id: u64) -> Option<u64> {
        self.order.number(id)
    }

    /// Takes the oldest request's memory, if the request is numbered `last` or lower.
    #[inline]
    pub(crate) fn retire(&mut self, last: u64) -> Option<T> {
        while self.order.head() <= last && self.in_flight() > 0 {
            let slot = self.slot(self.order.head());
            self.order.advance_head();
            if let Some(memory) = self.slots[slot].take() {
                return Some(memory);
            }
        }
        None
    }

    /// Takes the memory of the request numbered `number` alone.
    #[inline]
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        let slot = self.slot(number);
        let memory = self.slots[slot].take();
        while self.in_flight() > 0 && self.slots[self.slot(self.order.head())].is_none() {
            self.order.advance_head();
        }
        memory
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    #[cold]
    fn full(&self, queue: &'static str) -> Error {
        Error::QueueFull {
            queue,
            capacity: self.capacity,
        }
    }
}

impl<T: Send + 'static> Drop for Ring<T> {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            self.queue_pair
                .abandon(Box::new(std::mem::take(&mut self.slots)));
        }
    }
}
