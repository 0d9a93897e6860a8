//! [`Calls`]: the slots of the calls in progress on a client's connection.

use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::core::{Core, Side};
use crate::deadlines::NO_DEADLINE;
use crate::error::Error;
use crate::payload::BodyBuffer;
use crate::status::Status;
use crate::stream::Streams;
use crate::wire::{CallId, Header};

/// Maximum time for which a call polls the connection for its answer before the call's task sleeps.
/// Longer than a call to another process of this host takes, and shorter than waking a sleeping
/// thread takes.
const MAX_POLL_TIME: Duration = Duration::from_micros(10);

/// Table of the calls in progress on a client's connection. Each call occupies one slot (entry) of
/// the table. A slot keeps its memory for the next call, so that calls do not allocate.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(super) slots: Box<[Mutex<Slot>]>,
    free: Mutex<FreeSlots>,
    /// Wakes one of the calls that wait for a slot when a slot is free, and all of them when new
    /// calls are refused.
    freed: Notify,
    /// Number of calls in progress. If a call is the only one, its request is sent immediately.
    active: AtomicU32,
    /// Set once the server accepts no new calls.
    is_closing: AtomicBool,
    long_responses: Mutex<LongResponses>,
}

/// Counts of long responses: the responses that have arrived, and the number that the server has
/// announced at its shutdown. A long response is a separate message, and is sent concurrently with
/// other messages. Therefore a long response can arrive after the frame by which the server ends
/// its shutdown.
#[derive(Debug, Default)]
struct LongResponses {
    /// Number of long responses that have arrived.
    arrived: u64,
    /// Number of long responses that the server has sent on the connection, once it has announced
    /// this number at the end of its shutdown.
    sent: Option<u64>,
}

impl LongResponses {
    /// Returns whether the server has announced the end of its shutdown, and all its long responses
    /// have arrived.
    fn are_complete(&self) -> bool {
        self.sent.is_some_and(|sent| sent <= self.arrived)
    }
}

/// List of the free call slots of a connection, and the number of calls that wait for a free slot.
#[derive(Debug)]
struct FreeSlots {
    /// Indices of the free slots. The slot that was freed last is used first, so that few slots
    /// occupy the CPU cache.
    indices: Vec<u32>,
    /// Number of calls that wait for a free slot.
    waiting: usize,
}

#[derive(Debug)]
/// Contents of one call slot, the client's entry for a call in progress. The generation is a part
/// of the call's ID, and is incremented at the end of each call. A late answer thus does not match
/// the next call in the slot.
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) phase: Phase,
    pub(super) waker: Option<Waker>,
    deadline: u64,
    pub(super) body: BodyBuffer,
    pub(super) streams: Streams,
}

#[derive(Debug)]
/// State of an entry in the client's table of running calls: free, or the progress of the call in
/// the entry.
pub(super) enum Phase {
    /// No call occupies the slot.
    Free,
    /// The call waits for its answer.
    Waiting,
    /// The answer has arrived, and the caller has not taken it.
    Answered(Answer),
}

/// Answer to a call: the response, or the reason for which the call has no response. The encoded
/// body of a response is stored in the call's slot.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The result or the service's error.
    Response { codec: u8, is_error: bool },
    /// The server's reason for which the call has no response.
    Status(Status),
    /// The deadline has passed.
    Expired,
    /// The connection has ended.
    Ended(Error),
}

impl Calls {
    /// Creates the table for at most `capacity` concurrent calls. Calls can begin only after
    /// [`Self::open_slots`], because the server perhaps allows fewer calls.
    pub(crate) fn new(capacity: u32) -> Self {
        let slot = || {
            Mutex::new(Slot {
                generation: 0,
                phase: Phase::Free,
                waker: None,
                deadline: NO_DEADLINE,
                body: BodyBuffer::default(),
                streams: Streams::default(),
            })
        };
        Self {
            slots: std::iter::repeat_with(slot)
                .take(capacity as usize)
                .collect(),
            free: Mutex::new(FreeSlots {
                indices: Vec::with_capacity(capacity as usize),
                waiting: 0,
            }),
            freed: Notify::new(),
            active: AtomicU32::new(0),
            is_closing: AtomicBool::new(false),
            long_responses: Mutex::default(),
        }
    }

    /// Counts a long response that has arrived. Returns whether the server has announced the end of
    /// its shutdown, and all its long responses have arrived.
    pub(super) fn count_long_response(&self) -> bool {
        let mut long_responses = self.long_responses.lock();
        long_responses.arrived += 1;
        long_responses.are_complete()
    }

    /// Stores `sent`, the number of long responses that the server has announced at the end of its
    /// shutdown. Returns whether all of these responses have arrived.
    pub(super) fn set_sent_long_responses(&self, sent: u64) -> bool {
        let mut long_responses = self.long_responses.lock();
        long_responses.sent = Some(sent);
        long_responses.are_complete()
    }

    /// Lets calls begin, after the server has sent its settings. `allowed` is the maximum number of
    /// concurrent calls that the server accepts on this connection.
    pub(super) fn open_slots(&self, allowed: u32) {
        let count = allowed.min(u32::try_from(self.slots.len()).unwrap_or(u32::MAX));
        self.update_free(|free| free.indices.extend((0..count).rev()));
    }

    /// Calls `change`, which can modify the list of the free call slots. If a slot is then free,
    /// wakes one of the calls that wait for a slot. When the woken call drops its [`WaitingCall`],
    /// the next waiting call is woken.
    fn update_free(&self, change: impl FnOnce(&mut FreeSlots)) {
        let must_wake = {
            let mut free = self.free.lock();
            change(&mut free);
            free.waiting > 0 && !free.indices.is_empty()
        };
        if must_wake {
            // Only one call, because `Notify` stores only one notification.
            self.freed.notify_one();
        }
    }

    /// Refuses new calls from now on, because the server is shutting down or the connection has
    /// ended.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.freed.notify_waiters();
    }

    /// Returns whether new calls are refused, because [`Self::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Takes a free call slot without waiting. [`Self::begin`] can then begin a call in the slot.
    /// Returns `None` if no slot is free, or if other calls wait for a slot.
    pub(super) fn try_take_slot(&self) -> Option<FreeSlot> {
        let mut free = self.free.lock();
        match free.waiting {
            0 => free.indices.pop().map(FreeSlot),
            _ => None,
        }
    }

    /// Returns whether [`Self::try_take_slot`] would now return a free call slot.
    pub(super) fn has_free_slot(&self) -> bool {
        let free = self.free.lock();
        free.waiting == 0 && !free.indices.is_empty()
    }

    /// Waits until a call slot is free, and takes this slot. The caller can then begin a call with
    /// [`Self::begin`]. Calls get slots in the order in which they began to wait. Fails if new
    /// calls are refused.
    pub(super) async fn take_slot(&self, core: &Core) -> Result<FreeSlot, Error> {
        let (_waiting, mut may_take) = WaitingCall::new(self);
        loop {
            let mut freed = pin!(self.freed.notified());
            // A notification from here on ends the wait.
            freed.as_mut().enable();
            if self.is_closing.load(Ordering::SeqCst) {
                return Err(core.end().cloned().unwrap_or(Error::ShuttingDown));
            }
            if may_take && let Some(index) = self.free.lock().indices.pop() {
                return Ok(FreeSlot(index));
            }
            freed.await;
            may_take = true;
        }
    }

    /// Begins a call on the connection `core` in a free slot from [`Self::take_slot`] or
    /// [`Self::try_take_slot`]. `deadline` is a time in microseconds since the creation of the
    /// connection, and `streams` contains the streams of the call, if any. Returns the call, whose
    /// request is not sent yet. Fails if the connection has ended or is closing.
    pub(super) fn begin<C: Deref<Target = Core>>(
        core: C,
        slot: FreeSlot,
        deadline: u64,
        streams: Streams,
    ) -> Result<PendingCall<C>, Error> {
        let id = calls(&core).occupy(slot, deadline, streams);
        core.deadlines.add(deadline);
        let pending = PendingCall {
            core,
            id,
            is_sent: false,
        };
        // Checked after the slot is occupied. Otherwise a concurrent `fail` could miss the slot.
        match pending.core.end() {
            Some(end) => Err(end.clone()),
            None if pending.calls().is_closing() => Err(Error::ShuttingDown),
            None => Ok(pending),
        }
    }

    /// Stores the deadline and the streams of a new call in its slot, the client's entry for a call
    /// in progress. Returns the ID of the call.
    fn occupy(&self, FreeSlot(index): FreeSlot, deadline: u64, streams: Streams) -> CallId {
        self.active.fetch_add(1, Ordering::Relaxed);
        let mut slot = self.slots[index as usize].lock();
        slot.phase = Phase::Waiting;
        slot.deadline = deadline;
        slot.streams = streams;
        let generation = slot.generation;
        CallId { index, generation }
    }

    /// Returns whether exactly one call is in progress. The caller then sends the request of this
    /// call immediately, because no other request can share the message.
    pub(super) fn has_one_call(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 1
    }

    /// Ends the calls whose deadlines have passed at `now`, a time in microseconds since the
    /// creation of the connection. Returns the earliest deadline of the other calls, or
    /// `NO_DEADLINE`.
    pub(crate) fn expire(&self, now: u64) -> u64 {
        let mut next = NO_DEADLINE;
        for slot in &self.slots {
            let (waker, streams) = {
                let mut slot = slot.lock();
                if !matches!(slot.phase, Phase::Waiting) {
                    continue;
                }
                if slot.deadline > now {
                    next = next.min(slot.deadline);
                    continue;
                }
                (slot.answer(Answer::Expired), slot.streams.clone())
            };
            streams.fail(&Error::Cancelled);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        next
    }

    /// Fails all calls in progress with `error`, because the connection has ended. New calls are
    /// refused from now on.
    pub(crate) fn fail(&self, error: &Error) {
        self.close();
        for slot in &self.slots {
            let (waker, streams) = {
                let mut slot = slot.lock();
                let streams = slot.streams.clone();
                (slot.answer(Answer::Ended(error.clone())), streams)
            };
            streams.fail(error);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Frees the slot of the call `id`, the client's entry for a call in progress. Returns `true`
    /// if the caller must cancel the call at the server, because the server is perhaps still
    /// executing the call, or because the response was not decoded.
    fn release(&self, id: CallId) -> bool {
        let (was_waiting, left) = {
            let mut slot = self.slots[id.index as usize].lock();
            slot.generation = slot.generation.wrapping_add(1);
            let phase = std::mem::replace(&mut slot.phase, Phase::Free);
            slot.body.clear();
            slot.deadline = NO_DEADLINE;
            let left = (slot.waker.take(), std::mem::take(&mut slot.streams));
            (
                // A response that was not decoded may have lent memory to this end.
                matches!(
                    phase,
                    Phase::Waiting | Phase::Answered(Answer::Expired | Answer::Response { .. })
                ),
                left,
            )
        };
        let (waker, streams) = left;
        drop(waker);
        streams.fail(&Error::Cancelled);
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.update_free(|free| free.indices.push(id.index));
        was_waiting
    }
}

/// Index of a free slot that was taken from the list, so that one call can begin in the slot.
#[derive(Debug)]
#[must_use = "the slot is lost unless a call begins in it"]
pub(super) struct FreeSlot(u32);

/// Guard of a call that waits for a free slot of the connection. The call counts as waiting until
/// the guard is dropped.
struct WaitingCall<'c>(&'c Calls);

impl<'c> WaitingCall<'c> {
    /// Counts a call that waits for a free slot, until the returned guard is dropped. Also returns
    /// `true` if no other call waits, so that this call may take a free slot immediately.
    fn new(calls: &'c Calls) -> (Self, bool) {
        let mut free = calls.free.lock();
        free.waiting += 1;
        (Self(calls), free.waiting == 1)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.update_free(|free| free.waiting -= 1);
    }
}

impl Slot {
    /// Stores the answer to the call in this slot, if the call still waits for an answer. Returns
    /// the waker of the task that made the call. The caller must wake this task after unlocking the
    /// slot.
    pub(super) fn answer(&mut self, answer: Answer) -> Option<Waker> {
        if !matches!(self.phase, Phase::Waiting) {
            return None;
        }
        self.phase = Phase::Answered(answer);
        self.waker.take()
    }
}

/// A call in progress of a client, which occupies a call slot. Dropping this value frees the slot,
/// and cancels the call at the server if no answer has arrived.
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub(super) struct PendingCall<C: Deref<Target = Core>> {
    pub(super) core: C,
    pub(super) id: CallId,
    /// Set once the server may have received the request.
    pub(super) is_sent: bool,
}

impl<C: Deref<Target = Core>> PendingCall<C> {
    pub(super) fn calls(&self) -> &Calls {
        calls(&self.core)
    }

    /// Returns the deadline of the call; `None` without a deadline.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = self.calls().slots[self.id.index as usize].lock().deadline;
        self.core.deadlines.time(deadline)
    }

    /// Polls an RDMA connection for at most [`MAX_POLL_TIME`], until the answer arrives. Does not
    /// poll if this could delay another task, see [`rdma_async::Rdma::poll_briefly`].
    pub(super) fn poll_briefly(&self, cx: &Context<'_>) {
        let link = self.core.outbox.link();
        let Some(rdma) = link.as_ref().and_then(|link| link.rdma()) else {
            return;
        };
        let slot = &self.calls().slots[self.id.index as usize];
        let is_answered = || matches!(slot.lock().phase, Phase::Answered(_)).then_some(());
        rdma.poll_briefly(cx, MAX_POLL_TIME, is_answered);
    }

    /// Polls for the answer to the call. When the answer has arrived, calls `take` with the answer
    /// and the buffer that contains the encoded response, and returns the result of `take`.
    pub(super) fn poll_answer<T>(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(Answer, &mut BodyBuffer) -> T,
    ) -> Poll<T> {
        let slot = &self.calls().slots[self.id.index as usize];
        let (answer, mut body) = {
            let slot = &mut *slot.lock();
            match std::mem::replace(&mut slot.phase, Phase::Free) {
                Phase::Answered(answer) => {
                    // After an answer from the server, no cancellation is needed. After an expired
                    // deadline, the server may still be executing the call.
                    if let Answer::Expired = answer {
                        slot.phase = Phase::Answered(Answer::Expired);
                    }
                    (answer, std::mem::take(&mut slot.body))
                }
                phase => {
                    slot.phase = phase;
                    match &mut slot.waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    return Poll::Pending;
                }
            }
        };
        // The lock is not held here: dropping a decoded bulk can end the connection, which locks
        // every slot.
        let taken = take(answer, &mut body);
        slot.lock().body = body;
        Poll::Ready(taken)
    }
}

impl<C: Deref<Target = Core>> Drop for PendingCall<C> {
    fn drop(&mut self) {
        let is_unanswered = self.calls().release(self.id);
        if is_unanswered && self.is_sent && self.core.end().is_none() {
            self.core.send_control(&Header::Cancel { id: self.id });
        }
    }
}

/// Returns the call slots of the connection `core`, which must be a client's end.
pub(super) fn calls(core: &Core) -> &Calls {
    match &core.side {
        Side::Client(calls) => calls,
        Side::Server(_) => unreachable!("a client's connection has the client's state"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;
    use crate::address::Address;
    use crate::client::Client;
    use crate::health::{HealthServer, HealthStates};
    use crate::server::Server;

    #[tokio::test]
    async fn a_connection_can_end_while_an_answer_is_decoded() {
        let server = Server::new(HealthServer::new(HealthStates::default()));
        let server = server.listen(Address::memory()).await.unwrap();
        let client = Client::connect(server.address()).await.unwrap();
        let core = Arc::clone(&client.any().unwrap().core);
        let slot = calls(&core).take_slot(&core).await.unwrap();
        let begun = Calls::begin(Arc::clone(&core), slot, NO_DEADLINE, Streams::default());
        let pending = begun.unwrap();
        let slot = &calls(&core).slots[pending.id.index as usize];
        slot.lock().answer(Answer::Status(Status::Cancelled));
        // In a thread, so that a deadlock fails the test.
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut cx = Context::from_waker(Waker::noop());
            let polled = pending.poll_answer(&mut cx, |_, _| pending.core.fail(Error::Cancelled));
            sender.send(polled.is_ready()).unwrap();
        });
        assert!(receiver.recv_timeout(Duration::from_secs(60)).unwrap());
        assert!(core.end().is_some());
    }
}
