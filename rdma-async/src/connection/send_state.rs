//! The send queue of a connection: its requests, in the order in which they were accepted.
//!
//! An accepted request gets a number. Requests of a reliable connection complete in order, so a
//! request has ended if its number is below the count of ended requests. A request is handed to the
//! device at once if no other is in flight. Otherwise it is staged, and handed over at the end of
//! the turn (one round of the driver task), with the other staged requests and under one doorbell.

use std::task::Waker;

use rdma_core::memory::Claim;
use rdma_core::{PostError, SendQueue, SendRequest, WorkCompletion};

use super::results::{ResultSlot, Results};
use super::work::{Memory, Push, Work};
use crate::error::{Error, Result};

/// Number of staged requests that are handed over without waiting for the end of the turn.
const MAX_STAGED: usize = 32;
/// Number of bytes from which a request is signaled, that is, has a completion of its own, so that
/// its memory is released early.
const LARGE: usize = 16 << 10;

/// Wait for an accepted request: by a future, or by nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedBy {
    /// A future waits for the request.
    Future,
    /// No future waits for the request.
    Nothing,
}

/// Time at which an accepted request is handed to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostTime {
    /// Immediately, together with all requests that were staged before.
    Now,
    /// At the end of the turn if a request is in flight, or else immediately.
    AtTurnEnd,
}

/// Usual mode: a future waits for the request, which is handed over with its turn.
pub(super) const AWAITED: (AwaitedBy, PostTime) = (AwaitedBy::Future, PostTime::AtTurnEnd);

/// Reason for not accepting a request.
#[derive(Debug)]
pub(super) enum NotAccepted {
    /// The send queue is full, or the connection has ended.
    Full,
    /// The device refused the request.
    Refused(Box<Error>),
}

impl NotAccepted {
    #[cold]
    fn refused(error: impl Into<Error>) -> Self {
        Self::Refused(Box::new(error.into()))
    }
}

impl<M> From<PostError<M>> for NotAccepted {
    #[cold]
    fn from(refused: PostError<M>) -> Self {
        Self::refused(refused.error)
    }
}

/// An accepted request.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) number: u64,
    /// Set if the caller must hand over the staged requests, or add the connection to the turn.
    pub(super) has_turn: bool,
}

/// State of a request that has not ended; the send queue holds its memory.
#[derive(Debug, Default)]
struct Slot {
    waker: Option<Waker>,
    place: Option<ResultSlot>,
    is_awaited: bool,
    has_memory: bool,
}

/// A staged request, which waits for the end of the turn.
#[derive(Debug)]
enum Staged {
    /// A request and the number of its bytes in `staged_bytes`.
    Copied(Push, usize),
    Held(Work, Memory),
}

/// Send queue and the state of its requests that have not ended. `Q` is another type only in
/// models.
#[derive(Debug)]
pub(super) struct SendState<Q = SendQueue<Memory>> {
    queue: Q,
    /// Maximum number of requests that have not ended. The queue may be longer than was requested,
    /// but the completion queue has no entries for the difference.
    limit: usize,
    /// State of each request: request `n` is at `n` modulo the length, which is a power of two.
    slots: Box<[Slot]>,
    /// Total number of requests that were accepted.
    accepted: u64,
    /// Total number of requests that have ended.
    ended: u64,
    /// Number of requests in flight or staged for which a future waits.
    awaited: usize,
    staged: Vec<Staged>,
    staged_bytes: Vec<u8>,
    /// Set if no more requests are accepted.
    is_closed: bool,
}

/// Effect of one completion.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Number of requests that have ended since the connection was created.
    pub(super) count: u64,
    /// Number of requests that this completion ended.
    pub(super) fresh: u64,
}

/// Queue of requests that were handed to the device.
pub(super) trait Posted {
    /// Returns the number of requests that were handed over and have not completed.
    fn in_flight(&self) -> usize;
}

impl Posted for SendQueue<Memory> {
    #[inline]
    fn in_flight(&self) -> usize {
        SendQueue::in_flight(self)
    }
}

impl<Q: Posted> SendState<Q> {
    /// Creates the state of a queue for `capacity` requests, with at most `limit` requests that
    /// have not ended.
    pub(super) fn new(queue: Q, capacity: usize, limit: usize) -> Self {
        let slots = capacity.next_power_of_two();
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            limit: capacity.min(limit),
            queue,
            accepted: 0,
            ended: 0,
            awaited: 0,
            staged: Vec::new(),
            staged_bytes: Vec::new(),
            is_closed: false,
        }
    }

    #[inline]
    fn slot(&mut self, number: u64) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[number as usize & mask]
    }

    /// Returns whether the send queue has room for another request.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.accepted - self.ended < self.limit as u64
    }

    /// Returns whether the next request will be accepted.
    #[inline]
    fn is_open(&self) -> bool {
        self.has_room() && !self.is_closed
    }

    /// Returns the number of the first staged request, or of the next request if none is staged.
    #[inline]
    pub(super) fn first_staged(&self) -> u64 {
        self.accepted - self.staged.len() as u64
    }

    /// Returns whether no more requests are accepted.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether every accepted request has ended.
    pub(super) fn is_settled(&self) -> bool {
        self.accepted == self.ended
    }

    /// Returns whether a future waits for any request.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Counts a request as accepted, and returns its number.
    #[inline]
    pub(super) fn count(
        &mut self,
        awaited_by: AwaitedBy,
        has_memory: bool,
        place: Option<ResultSlot>,
    ) -> Accepted {
        let number = self.accepted;
        self.accepted += 1;
        let is_awaited = awaited_by == AwaitedBy::Future;
        self.awaited += usize::from(is_awaited);
        let slot = self.slot(number);
        slot.is_awaited = is_awaited;
        slot.has_memory = has_memory;
        slot.place = place;
        Accepted {
            number,
            has_turn: self.staged.len() == 1 || self.is_batch_full(),
        }
    }

    /// Returns whether the staged requests have reached [`MAX_STAGED`], so that they are handed
    /// over now.
    #[inline]
    pub(super) fn is_batch_full(&self) -> bool {
        self.staged.len() >= MAX_STAGED
    }

    /// Cancels the requests that were not handed to the device, and accepts no more. Adds the
    /// wakers of their futures to `wakes`, and returns the number of the first cancelled request.
    pub(super) fn give_up(&mut self, wakes: &mut Vec<Waker>) -> u64 {
        self.staged.clear();
        self.staged_bytes.clear();
        let first = self.ended + self.queue.in_flight() as u64;
        for number in first..self.accepted {
            let slot = self.slot(number);
            wakes.extend(slot.waker.take());
            let was_awaited = std::mem::take(&mut slot.is_awaited);
            self.awaited -= usize::from(was_awaited);
        }
        self.accepted = first;
        self.is_closed = true;
        first
    }

    /// Ends the next `fresh` requests, and adds the wakers of their futures to `wakes`.
    #[inline]
    pub(super) fn end(&mut self, fresh: u64, wakes: &mut Vec<Waker>) -> Ended {
        for number in self.ended..self.ended + fresh {
            let slot = self.slot(number);
            if let Some(waker) = slot.waker.take() {
                wakes.push(waker);
            }
            let was_awaited = std::mem::take(&mut slot.is_awaited);
            self.awaited -= usize::from(was_awaited);
        }
        self.ended += fresh;
        Ended {
            count: self.ended,
            fresh,
        }
    }

    /// Returns the place for the result of the next request that ends.
    #[cfg(all(test, loom_models))]
    pub(super) fn next_place(&mut self) -> Option<ResultSlot> {
        self.slot(self.ended).place
    }

    /// Returns whether futures wait for at most one request.
    pub(super) fn has_one_waiter(&self) -> bool {
        self.awaited <= 1
    }

    /// Registers `waker`, which is woken when the request ends, unless the request has ended.
    /// Returns the waker that was replaced, which the caller drops outside of the lock.
    #[must_use = "a waker is dropped outside of the lock"]
    pub(super) fn register(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        if number < self.ended || number >= self.accepted {
            return None;
        }
        match &mut self.slot(number).waker {
            Some(known) if known.will_wake(waker) => None,
            place => place.replace(waker.clone()),
        }
    }

    /// Removes the future of a request that has not ended, and returns its waker.
    pub(super) fn detach(&mut self, number: u64) -> Option<Waker> {
        if number < self.ended || number >= self.accepted {
            return None;
        }
        let slot = self.slot(number);
        let was_awaited = std::mem::take(&mut slot.is_awaited);
        // The future that would have taken the result of an atomic is gone.
        slot.place = None;
        let waker = slot.waker.take();
        self.awaited -= usize::from(was_awaited);
        waker
    }

    /// Takes the wakers of all futures that wait.
    pub(super) fn take_wakers(&mut self, wakes: &mut Vec<Waker>) {
        for number in self.ended..self.accepted {
            wakes.extend(self.slot(number).waker.take());
        }
    }
}

impl SendState {
    /// Accepts a request whose data is copied.
    #[inline]
    pub(super) fn accept_copied(
        &mut self,
        push: Push,
        pieces: [&[u8]; 2],
        (awaited_by, posting): (AwaitedBy, PostTime),
    ) -> Result<Accepted, NotAccepted> {
        if !self.is_open() {
            return Err(NotAccepted::Full);
        }
        if self.is_posted_now(posting)? {
            match pieces {
                [data, []] => self.queue.post_inline(push.request(data))?,
                pieces => self.queue.post_inline(push.request(pieces))?,
            }
        } else {
            for piece in pieces {
                self.staged_bytes.extend_from_slice(piece);
            }
            let len = pieces.iter().map(|piece| piece.len()).sum();
            self.staged.push(Staged::Copied(push, len));
        }
        Ok(self.count(awaited_by, false, None))
    }

    /// Accepts a request that keeps memory until it has completed. If the request is not accepted,
    /// returns the memory.
    #[inline]
    pub(super) fn accept_held(
        &mut self,
        work: Work,
        memory: Memory,
        (awaited_by, posting): (AwaitedBy, PostTime),
        place: Option<ResultSlot>,
    ) -> Result<Accepted, (NotAccepted, Memory)> {
        if !self.is_open() {
            return Err((NotAccepted::Full, memory));
        }
        match self.is_posted_now(posting) {
            Ok(true) => {
                let posted = self.queue.post(work.request(memory));
                posted
                    .map_err(|PostError { error, memory }| (NotAccepted::refused(error), memory))?;
            }
            Ok(false) => self.staged.push(Staged::Held(work, memory)),
            Err(refused) => return Err((refused, memory)),
        }
        Ok(self.count(awaited_by, true, place))
    }

    /// Returns whether the next request is to be handed to the device now. If so, the staged
    /// requests have been handed over before it.
    #[inline]
    fn is_posted_now(&mut self, posting: PostTime) -> Result<bool, NotAccepted> {
        if self.is_settled() {
            return Ok(true);
        }
        if posting == PostTime::Now {
            self.post_staged().map_err(NotAccepted::refused)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Hands the staged requests to the device, under one doorbell. After an error, the caller must
    /// cancel the requests that the device did not take, with [`Self::give_up`].
    pub(super) fn post_staged(&mut self) -> Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        let mut bytes = &self.staged_bytes[..];
        let mut batch = self.queue.batch();
        let last = self.staged.len() - 1;
        let mut outcome = Ok(());
        for (index, staged) in self.staged.drain(..).enumerate() {
            let is_last = index == last;
            let pushed = match staged {
                Staged::Copied(push, len) => {
                    let (data, rest) = bytes.split_at(len);
                    bytes = rest;
                    let request = signaled_if(is_last, push.request(data));
                    batch.push_inline(request).map_err(|refused| refused.error)
                }
                Staged::Held(work, memory) => {
                    let signaled = is_last || size_of_claim(&memory) >= LARGE;
                    let request = signaled_if(signaled, work.request(memory));
                    batch.push(request).map_err(|refused| refused.error)
                }
            };
            if let Err(error) = pushed {
                outcome = Err(Error::from(error));
                break;
            }
        }
        if outcome.is_ok() {
            outcome = batch
                .post_and_keep()
                .map(drop)
                .map_err(|refused| refused.error.into());
        }
        drop(batch);
        self.staged_bytes.clear();
        // A request that was accepted before the others are given up would take the number of one
        // of them.
        self.is_closed |= outcome.is_err();
        outcome
    }

    /// Ends the requests that a completion completes: stores the results of atomics, adds the
    /// wakers of futures to `wakes`, and passes the memory of each request to `recycle`.
    #[inline]
    pub(super) fn complete(
        &mut self,
        completion: &WorkCompletion,
        results: &Results,
        wakes: &mut Vec<Waker>,
        mut recycle: impl FnMut(Memory),
    ) -> Ended {
        let before = self.queue.in_flight() as u64;
        let mask = self.slots.len() - 1;
        let mut next = self.ended;
        for memory in self.queue.complete(completion) {
            // The queue yields memory only for requests that kept some; others are skipped.
            while !self.slots[next as usize & mask].has_memory {
                next += 1;
            }
            if let Some(place) = self.slots[next as usize & mask].place
                && let Some(found) = memory.0.as_ref().and_then(|place| place.first_chunk())
            {
                results.set(place, u64::from_ne_bytes(*found));
            }
            next += 1;
            recycle(memory);
        }
        let fresh = before - self.queue.in_flight() as u64;
        self.end(fresh, wakes)
    }
}

#[inline]
fn signaled_if<T>(signaled: bool, request: SendRequest<T>) -> SendRequest<T> {
    if signaled {
        request
    } else {
        request.unsignaled()
    }
}

/// Returns the number of bytes of the application's memory that a request claims.
fn size_of_claim((_, claim): &Memory) -> usize {
    match claim {
        Some(Claim::Read(claim)) => claim.len(),
        Some(Claim::Write(claim)) => claim.len(),
        None => 0,
    }
}
