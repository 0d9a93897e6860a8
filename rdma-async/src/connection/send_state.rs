//! The state of the send queue: the requests of a connection, in the order in which they were
//! accepted.
//!
//! An accepted request gets a number. The requests of a reliable connection complete in order, so a
//! request has ended if its number is below the count of ended requests. If no request is in
//! flight, a new request is posted to the device immediately. Otherwise it is staged. All staged
//! requests are posted at the end of the turn (one round of the driver task), with one doorbell.

use std::task::Waker;

use rdma_core::memory::Claim;
use rdma_core::{PostError, SendQueue, SendRequest, WorkCompletion};

use super::HEADER_LEN;
use super::results::{ResultSlot, Results};
use super::work::{Memory, Push, Work};
use crate::error::{Error, Result};

/// Number of staged requests (accepted, but not yet posted) at which they are posted immediately.
/// Fewer requests are posted at the end of the turn, one round of the driver task. Limits the delay
/// of the first request.
const MAX_STAGED: usize = 32;
/// Minimum length, in bytes, of the application's memory from which a request always reports a
/// completion of its own, which releases the memory. Smaller requests that are posted together
/// share the completion of the last request. That completion releases the memory of all these
/// requests.
const SIGNALED_LEN: usize = 16 << 10;

/// State of the caller of an accepted request: a future waits for the end of the request, or no
/// future waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitedBy {
    /// A future waits for the request.
    Future,
    /// No future waits for the request.
    Nothing,
}

/// Time at which an accepted request is posted to the device: now, or together with other requests
/// at the end of the driver task's current round (turn).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PostTime {
    /// Immediately, after all requests that were staged earlier.
    Now,
    /// Immediately if no other request is in flight. Otherwise together with others, at the end of
    /// the driver task's current round (turn).
    AtTurnEnd,
}

/// Submission parameters of most requests: a future waits for the request. The request is posted
/// immediately if no other request is in flight, and otherwise together with others.
pub(super) const AWAITED: (AwaitedBy, PostTime) = (AwaitedBy::Future, PostTime::AtTurnEnd);
/// Submission parameters of a request for which no future waits. A failure of the request ends the
/// connection. The request is posted immediately if no other request is in flight, and otherwise
/// together with others.
pub(super) const UNAWAITED: (AwaitedBy, PostTime) = (AwaitedBy::Nothing, PostTime::AtTurnEnd);

/// Reason why the send queue has not accepted a request.
#[derive(Debug)]
pub(super) enum NotAccepted {
    /// The send queue is full, or accepts no more requests because the connection has ended.
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

/// A request that the send queue has accepted. Contains its number, and a flag that is set if the
/// caller must still ensure that the request is posted to the device.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) number: u64,
    /// Set if the caller must schedule the staged requests for the end of the driver's turn, or
    /// post them now.
    pub(super) must_post: bool,
}

/// State of a request that has not ended: the waker of its future and, for an atomic operation, the
/// slot for its result. The send queue holds the memory of the request.
#[derive(Debug, Default)]
struct RequestState {
    waker: Option<Waker>,
    slot: Option<ResultSlot>,
    is_awaited: bool,
    has_memory: bool,
}

/// A request that was accepted and is not yet posted to the device. The request either has a copy
/// of its data, or holds the memory that the device will access.
#[derive(Debug)]
enum Staged {
    /// Request whose data was copied to `staged_bytes`, and the number of its bytes.
    Copied(Push, usize),
    Held(Work, Memory),
}

impl Staged {
    /// Returns whether the request sends or writes data of the program to the peer, and not only
    /// the header of a message.
    fn contains_data(&self) -> bool {
        match self {
            Self::Copied(_, len) => *len > HEADER_LEN,
            Self::Held(work, _) => matches!(work, Work::Push(_)),
        }
    }
}

/// Send queue, with the state of each accepted request that has not ended. `Q` is the queue of the
/// device. Only loom models use another type.
#[derive(Debug)]
pub(super) struct SendState<Q = SendQueue<Memory>> {
    queue: Q,
    /// Maximum number of requests that have not ended. The send queue may have more entries, but
    /// the completion queue has no room for their completions.
    limit: usize,
    /// States of the requests. Request `n` is at index `n` modulo the length, which is a power of
    /// two.
    states: Box<[RequestState]>,
    /// Number of requests that were accepted since the connection was created.
    accepted: u64,
    /// Number of requests that have ended since the connection was created.
    ended: u64,
    /// Number of requests that have not ended and have a waiting future.
    awaited: usize,
    staged: Vec<Staged>,
    staged_bytes: Vec<u8>,
    /// Set once no more requests are accepted.
    is_closed: bool,
}

/// Number of requests that have ended, in total and by the latest completion. One completion can
/// end several requests.
#[derive(Debug, Default)]
pub(super) struct EndedCount {
    /// Number of requests that have ended since the connection was created.
    pub(super) total: u64,
    /// Number of requests that this completion has ended.
    pub(super) newly_ended: u64,
}

/// Queue of the requests that were posted to the device. A trait, so that the loom models (tests of
/// all interleavings of threads) can implement it without a device.
pub(super) trait Posted {
    /// Returns the number of posted requests that have not completed.
    fn in_flight(&self) -> usize;
}

impl Posted for SendQueue<Memory> {
    #[inline]
    fn in_flight(&self) -> usize {
        SendQueue::in_flight(self)
    }
}

impl<Q: Posted> SendState<Q> {
    /// Creates the state of a send queue with `capacity` entries. Accepts at most `limit` requests
    /// that have not ended, even if the queue has more entries.
    pub(super) fn new(queue: Q, capacity: usize, limit: usize) -> Self {
        let states = capacity.next_power_of_two();
        Self {
            states: (0..states).map(|_| RequestState::default()).collect(),
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

    /// Returns the state of the request `number`. The request must not have ended.
    #[inline]
    fn request(&mut self, number: u64) -> &mut RequestState {
        let mask = self.states.len() - 1;
        &mut self.states[number as usize & mask]
    }

    /// Returns whether the send queue has room for another request: the number of unfinished
    /// requests is below the limit.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.accepted - self.ended < self.limit as u64
    }

    /// Returns whether the queue accepts another request: the queue has room and is not closed.
    #[inline]
    fn is_open(&self) -> bool {
        self.has_room() && !self.is_closed
    }

    /// Returns the number of the oldest request that was accepted but is not yet posted (staged).
    /// If there is no such request, returns the number of the next request.
    #[inline]
    pub(super) fn first_staged(&self) -> u64 {
        self.accepted - self.staged.len() as u64
    }

    /// Returns whether the queue accepts no more requests, because the connection has ended or the
    /// device has refused requests.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether every accepted request has ended, so that a new request can be posted
    /// immediately.
    pub(super) fn is_idle(&self) -> bool {
        self.accepted == self.ended
    }

    /// Returns whether at least one unfinished request has a future that waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Counts an accepted request: assigns the next number to the request, and records its state.
    /// `has_memory` states that the request holds memory, and `slot` is the slot for the result of
    /// an atomic operation. Returns the number and the flag `must_post`. If the flag is set, the
    /// caller must ensure that the staged requests are posted.
    #[inline]
    pub(super) fn count(
        &mut self,
        awaited_by: AwaitedBy,
        has_memory: bool,
        slot: Option<ResultSlot>,
    ) -> Accepted {
        let number = self.accepted;
        self.accepted += 1;
        let is_awaited = awaited_by == AwaitedBy::Future;
        self.awaited += usize::from(is_awaited);
        let request = self.request(number);
        request.is_awaited = is_awaited;
        request.has_memory = has_memory;
        request.slot = slot;
        Accepted {
            number,
            must_post: self.staged.len() == 1 || self.is_batch_full(),
        }
    }

    /// Returns whether the staged requests (accepted, but not yet posted) must be posted now,
    /// because at least [`MAX_STAGED`] requests are staged.
    #[inline]
    pub(super) fn is_batch_full(&self) -> bool {
        self.staged.len() >= MAX_STAGED
    }

    /// Cancels the requests that were accepted and not posted, and closes the queue: no further
    /// requests are accepted. Adds the wakers of the futures to `wakes`. Returns the number of the
    /// first cancelled request. Also returns `true` if any of the requests contained data and no
    /// future waited for the request, for example for a piece of a stream: no future then reports
    /// the loss of the data.
    pub(super) fn cancel_staged(&mut self, wakes: &mut Vec<Waker>) -> (u64, bool) {
        let staged = std::mem::take(&mut self.staged);
        self.staged_bytes.clear();
        let first = self.ended + self.queue.in_flight() as u64;
        let first_staged = self.accepted - staged.len() as u64;
        let has_lost = (first_staged..)
            .zip(&staged)
            .any(|(number, staged)| staged.contains_data() && !self.request(number).is_awaited);
        for number in first..self.accepted {
            let request = self.request(number);
            wakes.extend(request.waker.take());
            let was_awaited = std::mem::take(&mut request.is_awaited);
            self.awaited -= usize::from(was_awaited);
        }
        self.accepted = first;
        self.is_closed = true;
        (first, has_lost)
    }

    /// Marks the `newly_ended` oldest requests as ended, and adds the wakers of their futures to
    /// `wakes`. Returns the total number of ended requests and `newly_ended`.
    #[inline]
    pub(super) fn end(&mut self, newly_ended: u64, wakes: &mut Vec<Waker>) -> EndedCount {
        for number in self.ended..self.ended + newly_ended {
            let request = self.request(number);
            if let Some(waker) = request.waker.take() {
                wakes.push(waker);
            }
            let was_awaited = std::mem::take(&mut request.is_awaited);
            self.awaited -= usize::from(was_awaited);
        }
        self.ended += newly_ended;
        EndedCount {
            total: self.ended,
            newly_ended,
        }
    }

    /// Returns the slot for the result of the oldest request that has not ended, so that the caller
    /// can store the result. Returns `None` if this request is not an atomic operation.
    #[cfg(all(test, loom_models))]
    pub(super) fn next_slot(&mut self) -> Option<ResultSlot> {
        self.request(self.ended).slot
    }

    /// Returns whether at most one future waits for a request. This future may then poll for
    /// completions, because it delays no other future.
    pub(super) fn has_one_waiter(&self) -> bool {
        self.awaited <= 1
    }

    /// Registers `waker`, which is woken when the request `number` ends. Does nothing if the
    /// request has ended. Returns the replaced waker, which the caller must drop outside of the
    /// lock.
    #[must_use = "a waker is dropped outside of the lock"]
    pub(super) fn register(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        if number < self.ended || number >= self.accepted {
            return None;
        }
        let request = self.request(number);
        // A pipeline waits for requests that were submitted without a waiting future.
        let was_awaited = std::mem::replace(&mut request.is_awaited, true);
        let replaced = match &mut request.waker {
            Some(known) if known.will_wake(waker) => None,
            other => other.replace(waker.clone()),
        };
        self.awaited += usize::from(!was_awaited);
        replaced
    }

    /// Removes the waker of the request `number`, because the future of the request is dropped.
    /// Returns the waker. The caller must drop the waker without holding the lock, because dropping
    /// a waker can run other code.
    pub(super) fn detach(&mut self, number: u64) -> Option<Waker> {
        if number < self.ended || number >= self.accepted {
            return None;
        }
        let request = self.request(number);
        let was_awaited = std::mem::take(&mut request.is_awaited);
        // The dropped future no longer takes the result of an atomic operation.
        request.slot = None;
        let waker = request.waker.take();
        self.awaited -= usize::from(was_awaited);
        waker
    }

    /// Moves the wakers of all waiting futures to `wakes`. The caller wakes them after unlocking
    /// the send queue.
    pub(super) fn take_wakers(&mut self, wakes: &mut Vec<Waker>) {
        for number in self.ended..self.accepted {
            wakes.extend(self.request(number).waker.take());
        }
    }
}

impl SendState {
    /// Accepts a request with a copy of its data, which is the concatenation of `pieces`. Posts the
    /// request immediately, or keeps it until it is posted together with other requests.
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

    /// Accepts a request that holds `memory` until the request completes: posts the request, or
    /// stages it (keeps it for a later post together with other requests). Returns the memory if
    /// the request is not accepted.
    #[inline]
    pub(super) fn accept_held(
        &mut self,
        work: Work,
        memory: Memory,
        (awaited_by, posting): (AwaitedBy, PostTime),
        slot: Option<ResultSlot>,
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
        Ok(self.count(awaited_by, true, slot))
    }

    /// Accepts a request that binds or invalidates a memory window, and for which a future waits.
    /// First posts all requests that wait to be posted. Then calls `begin`, which creates the
    /// request, and posts it. If the queue is full or closed, does not call `begin`.
    pub(super) fn accept_window(
        &mut self,
        begin: impl FnOnce() -> rdma_core::Result<SendRequest<()>>,
    ) -> Result<Accepted, NotAccepted> {
        if !self.is_open() {
            return Err(NotAccepted::Full);
        }
        self.post_staged().map_err(NotAccepted::refused)?;
        let request = begin().map_err(NotAccepted::refused)?;
        self.queue.post_inline(request)?;
        Ok(self.count(AwaitedBy::Future, false, None))
    }

    /// Returns `true` if the next request is posted immediately: no other request is in flight, or
    /// `posting` is [`PostTime::Now`]. In the second case, first posts all earlier requests, to
    /// keep the order. Returns `false` if the request is to be posted later, together with others.
    #[inline]
    fn is_posted_now(&mut self, posting: PostTime) -> Result<bool, NotAccepted> {
        if self.is_idle() {
            return Ok(true);
        }
        if posting == PostTime::Now {
            self.post_staged().map_err(NotAccepted::refused)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Posts the staged requests to the device with one doorbell. After an error, the caller must
    /// call [`Self::cancel_staged`] to cancel the requests that the device has not accepted.
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
                    let signaled = is_last || size_of_claim(&memory) >= SIGNALED_LEN;
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
        // A request that is accepted before the cancellation would get the number of a cancelled
        // request.
        self.is_closed |= outcome.is_err();
        outcome
    }

    /// Marks the request of a completion as ended, and with it all earlier requests, because
    /// requests complete in order. Stores the results of atomic operations in `results`. Adds the
    /// wakers of the waiting futures to `wakes`. The caller must wake these wakers. Passes the
    /// memory of each request to `recycle`. Returns the numbers of ended requests.
    #[inline]
    pub(super) fn complete(
        &mut self,
        completion: &WorkCompletion,
        results: &Results,
        wakes: &mut Vec<Waker>,
        mut recycle: impl FnMut(Memory),
    ) -> EndedCount {
        let before = self.queue.in_flight() as u64;
        let mask = self.states.len() - 1;
        let mut next = self.ended;
        for memory in self.queue.complete(completion) {
            // The queue yields memory only for requests that hold memory. Requests without memory
            // are skipped.
            while !self.states[next as usize & mask].has_memory {
                next += 1;
            }
            if let Some(slot) = self.states[next as usize & mask].slot
                && let Some(found) = memory.0.as_ref().and_then(|result| result.first_chunk())
            {
                results.set(slot, u64::from_ne_bytes(*found));
            }
            next += 1;
            recycle(memory);
        }
        let newly_ended = before - self.queue.in_flight() as u64;
        self.end(newly_ended, wakes)
    }
}

/// Returns `request` as a signaled request if `signaled` is set, and otherwise as an unsignaled
/// request. The device reports a completion only for a signaled request.
#[inline]
fn signaled_if<T>(signaled: bool, request: SendRequest<T>) -> SendRequest<T> {
    if signaled {
        request
    } else {
        request.unsignaled()
    }
}

/// Returns the number of bytes of the application's memory that a request holds. Memory that this
/// crate has allocated for the request is not counted.
fn size_of_claim((_, claim): &Memory) -> usize {
    match claim {
        Some(Claim::Read(claim)) => claim.len(),
        Some(Claim::Write(claim)) => claim.len(),
        None => 0,
    }
}
