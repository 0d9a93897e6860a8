//! Posting to the send queue and the receive queue of a queue pair, under its lock.

use super::device::Outgoing;
use super::draft::Draft;
use super::error::PostError;
use super::host::Receives;
use super::object::{Inner, QueuePair};
use super::posted::PostedList;
use crate::proto::{
    Completion, CompletionOpcode, CompletionStatus, Data, Host, ReceiveRequest, SendOperation,
    SendProgress, SendRequest, State, Time, UnqueuedMessage, WindowBinding,
};
use crate::spin::MutexGuard;

/// The locked send queue of a queue pair, to which requests are posted. Dropping this value unlocks
/// the queue.
pub(crate) struct Sender<'a> {
    queue_pair: &'a QueuePair,
    inner: MutexGuard<'a, Inner>,
    /// Set if ring messages (short messages in shared memory) were sent for which the peer process
    /// has not been woken yet.
    has_sent: bool,
    /// Set if a request was added to the queue, because it could not be executed or sent
    /// immediately.
    has_queued: bool,
    /// Number of requests that were executed while they were posted. Until the sender is dropped,
    /// these requests occupy capacity of the send queue, as if they were queued.
    done: usize,
}

impl QueuePair {
    /// Locks the queue pair for posting send requests. Returns the locked send queue, to which one
    /// or more requests can be posted.
    #[inline]
    pub(crate) fn sender(&self) -> Sender<'_> {
        Sender {
            queue_pair: self,
            inner: self.inner.lock(),
            has_sent: false,
            has_queued: false,
            done: 0,
        }
    }

    /// Locks the queue pair for posting receive requests. Returns the locked receive queue, to
    /// which one or more requests can be posted.
    pub(crate) fn receiver(&self) -> Receiver<'_> {
        Receiver {
            queue_pair: self,
            inner: self.inner.lock(),
        }
    }

    /// Posts a request to bind a type 1 window (`ibv_bind_mw`) as `binding` describes, with the
    /// work request ID `id` and the send flags `flags`. The request is then in the send queue.
    /// Afterwards the caller must start the execution of the request.
    pub(crate) fn post_bind(
        &self,
        id: u64,
        flags: u32,
        binding: WindowBinding,
    ) -> Result<(), PostError> {
        let draft = Draft::new(id, flags, SendOperation::Bind(binding));
        self.sender().post(draft.finish(self.rules())?)
    }
}

impl Sender<'_> {
    /// Sends a message with the payload `data` immediately through memory shared with the peer
    /// process. Returns `false` and sends nothing if this is impossible, for example because an
    /// earlier request must be sent first. The caller must then add the message to the send queue.
    #[inline]
    pub(crate) fn post_ring_message(&mut self, message: &UnqueuedMessage, data: Data<'_>) -> bool {
        let sent = self.ready(1).is_ok()
            && self
                .queue_pair
                .post_ring_message(&mut self.inner, message, data);
        self.has_sent |= sent;
        sent
    }

    /// Returns whether the caller has nothing left to do after posting. The result is `true` if
    /// this sender has added no request to the send queue, and has written no message to shared
    /// memory for which the peer must be woken.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_sent && !self.has_queued
    }

    /// Wakes the peer process, if it sleeps, to receive the messages that this sender has written
    /// to shared memory. Returns `true` if such messages were written and the queue pair has
    /// nothing else to send. The caller then need not transmit packets.
    #[inline]
    pub(crate) fn flush_ring_messages(&mut self) -> bool {
        if !std::mem::take(&mut self.has_sent) {
            return false;
        }
        self.queue_pair.flush_ring_messages(&self.inner);
        // A ring message is sent only if nothing else is to be sent before it, and it carries the
        // acknowledgement that is due.
        !self.has_queued || self.inner.transport.is_silent()
    }

    /// Executes one-sided requests of `list` (RDMA reads, writes and atomics) directly in the
    /// memory of the peer process, without packets. Stops at the first request that needs packets,
    /// that must wait for earlier requests, or for which the send queue has no capacity. Returns
    /// the number of executed requests. The caller must post the remaining requests in another way.
    #[inline]
    pub(crate) fn execute<'l>(&mut self, list: &mut impl PostedList<'l>) -> usize {
        let room = self.queue_pair.rules().capabilities.max_send_wr as usize;
        let before = self.done;
        loop {
            let most = room.saturating_sub(self.done);
            let done = self.queue_pair.execute_posted(&mut self.inner, list, most);
            self.done += done;
            if done == 0 || list.peek().is_none() {
                return self.done - before;
            }
            // Other threads may lock the queue pair in between.
            MutexGuard::bump(&mut self.inner);
        }
    }

    /// Posts a send request. If the queue pair is in an error state, the request is accepted, and
    /// completes as flushed (IBTA 10.3.1.6, 10.3.1.7).
    #[inline]
    pub(crate) fn post(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.ready(1)?;
        self.has_queued = true;
        let transport = &mut self.inner.transport;
        if matches!(
            transport.state(),
            State::ReadyToSend | State::SendQueueDrained
        ) {
            transport.queue(request);
        } else {
            self.queue_pair.with(&mut self.inner, |transport, host| {
                transport.post(request, host);
            });
        }
        Ok(())
    }

    /// Posts all requests of `requests`, in order. Executes the first requests directly in the
    /// memory of the peer process, if possible, and adds the remaining requests to the send queue.
    /// Fails and posts nothing if the send queue has too little space for all requests, or if the
    /// state of the queue pair does not permit posting.
    pub(crate) fn post_all(&mut self, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        self.ready(requests.len())?;
        let done = self.execute(&mut &requests[..]);
        requests.drain(..done);
        self.has_queued |= !requests.is_empty();
        self.queue_pair.with(&mut self.inner, |transport, host| {
            for request in requests.drain(..) {
                transport.post(request, host);
            }
        });
        Ok(())
    }

    /// Executes queued send requests without packets: copies their bytes within this process, or
    /// through memory shared with a peer process. Returns [`SendProgress::Idle`] if nothing can be
    /// sent now. Otherwise returns [`SendProgress::PacketsOnly`], and the caller must try to send
    /// packets and ring messages (short messages in shared memory).
    pub(crate) fn execute_all_queued(&mut self) -> SendProgress {
        self.queue_pair.execute_all_queued(&mut self.inner)
    }

    /// Returns whether posted requests can wait for the next response of the peer, to be sent
    /// together with later requests. Returns `false` if the peer shares memory with this process,
    /// because waiting then has no advantage.
    pub(crate) fn may_wait(&self) -> bool {
        self.inner.linked_peer.is_none() && self.inner.transport.may_wait()
    }

    /// Passes to `outgoing` all packets and ring messages (short messages in memory shared with a
    /// peer process) that may be sent now. All of them are sent before the queue pair is unlocked.
    pub(crate) fn transmit(&mut self, now: impl FnOnce() -> Time, outgoing: &mut impl Outgoing) {
        (self.queue_pair).transmit_queued(&mut self.inner, now, outgoing);
    }

    /// Starts the response timeout of the queue pair for messages that were sent through shared
    /// memory. Returns the time to which the caller must set the timer. Returns `None` if no
    /// response is awaited, or if the timer is set already.
    ///
    /// If the timer is set already, the timeout starts only when the timer expires. So the peer has
    /// up to twice the timeout, while the specification allows four times the timeout (IBTA
    /// 9.7.6.1.3).
    #[inline(always)]
    pub(crate) fn answer_timeout(&mut self, now: impl FnOnce() -> Time) -> Option<Time> {
        if !self.inner.transport.is_unarmed() || self.queue_pair.alarm().is_set() {
            return None;
        }
        self.inner.transport.arm(now());
        self.inner.transport.next_timeout()
    }

    /// Returns the time to which the caller must set the queue pair's timer in the NIC. Returns
    /// `None` if no timer is needed. `now` returns the present time.
    pub(crate) fn next_timeout(&mut self, now: impl FnOnce() -> Time) -> Option<Time> {
        let answer = self.answer_timeout(now);
        answer.or_else(|| self.inner.transport.next_timeout())
    }

    #[inline]
    fn ready(&self, requests: usize) -> Result<(), PostError> {
        let state = self.inner.transport.state();
        if matches!(state, State::Reset | State::Init | State::ReadyToReceive) {
            return Err(PostError::State(state));
        }
        let room = self.queue_pair.rules().capabilities.max_send_wr as usize;
        let after = self.done + self.inner.transport.outstanding() + requests;
        if after <= room || matches!(state, State::SendQueueError | State::Error) {
            Ok(())
        } else {
            Err(PostError::Full)
        }
    }
}

/// The locked receive queue of a queue pair, to which requests are posted. Dropping this value
/// unlocks the queue.
pub(crate) struct Receiver<'a> {
    queue_pair: &'a QueuePair,
    inner: MutexGuard<'a, Inner>,
}

impl Receiver<'_> {
    /// Posts a receive request. If the queue pair is in the error state, the request is accepted,
    /// and completes as flushed (IBTA 10.3.1.7).
    pub(crate) fn post(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let state = self.inner.transport.state();
        let objects = (self.inner.objects.as_ref()).ok_or(PostError::NoQueue)?;
        let Receives::Own(queue) = &objects.receives else {
            return Err(PostError::NoQueue);
        };
        match state {
            State::Reset => Err(PostError::State(state)),
            State::Error => {
                let flushed = Completion::new(
                    request.id,
                    CompletionStatus::Flushed,
                    CompletionOpcode::Receive,
                );
                self.queue_pair.with(&mut self.inner, |_, host| {
                    host.complete_receive(flushed, None);
                });
                Ok(())
            }
            _ => (queue.borrow_mut().post(request)).map_err(|_| PostError::Full),
        }
    }
}
