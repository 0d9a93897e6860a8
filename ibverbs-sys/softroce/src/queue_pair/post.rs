//! The queues of a queue pair, locked for who posts to them.

use super::at_once::List;
use super::device::Outgoing;
use super::draft::Draft;
use super::error::PostError;
use super::host::Receives;
use super::object::{Inner, QueuePair};
use super::one_sided::Data;
use crate::proto::{
    Completion, CompletionStatus, Host, ReceiveRequest, SendOperation, SendRequest, State, Step,
    Time, Utterance, WindowBinding, Work,
};
use crate::spin::MutexGuard;

/// A send queue, locked.
pub(crate) struct Sender<'a> {
    queue_pair: &'a QueuePair,
    inner: MutexGuard<'a, Inner>,
    /// The peer is to be woken for what was said.
    has_said: bool,
    /// Something was posted that goes later.
    has_queued: bool,
    /// Requests that were done at once: they take room for as long as it lasts, as others do.
    done: usize,
}

impl QueuePair {
    /// The send queue, for one or more requests in a row.
    #[inline]
    pub(crate) fn sender(&self) -> Sender<'_> {
        Sender {
            queue_pair: self,
            inner: self.inner.lock(),
            has_said: false,
            has_queued: false,
            done: 0,
        }
    }

    /// The receive queue, for one or more requests in a row.
    pub(crate) fn receiver(&self) -> Receiver<'_> {
        Receiver {
            queue_pair: self,
            inner: self.inner.lock(),
        }
    }

    /// Posts a window's binding: what `ibv_bind_mw` does for a window of type 1. What is posted is to
    /// be transmitted.
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
    /// Posts a short message and sends it, if that can be done at once.
    #[inline]
    pub(crate) fn say(&mut self, message: &Utterance, data: Data<'_>) -> bool {
        let said = self.ready(1).is_ok() && self.queue_pair.say(&mut self.inner, message, data);
        self.has_said |= said;
        said
    }

    /// Whether nothing was posted of which something is left to be done.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_said && !self.has_queued
    }

    /// If something was said: sees to it that the peer hears it. Whether nothing else is to be sent.
    #[inline]
    pub(crate) fn flush_said(&mut self) -> bool {
        std::mem::take(&mut self.has_said) && self.queue_pair.flush_said(&self.inner)
    }

    /// Does requests of a list at once, as far as that goes; how many.
    #[inline]
    pub(crate) fn do_at_once<'l>(&mut self, list: &mut impl List<'l>) -> usize {
        let room = self.queue_pair.rules().capabilities.max_send_wr as usize;
        let before = self.done;
        loop {
            let most = room.saturating_sub(self.done);
            let done = self.queue_pair.do_at_once(&mut self.inner, list, most);
            self.done += done;
            if done == 0 || list.peek().is_none() {
                return self.done - before;
            }
            // Others shall have their turn.
            MutexGuard::bump(&mut self.inner);
        }
    }

    /// Posts a request. In an error state it is taken, and completes flushed (IBTA 10.3.1.6, 10.3.1.7).
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

    /// Posts all requests, or none.
    pub(crate) fn post_all(&mut self, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        self.ready(requests.len())?;
        let done = self.do_at_once(&mut &requests[..]);
        requests.drain(..done);
        self.has_queued |= !requests.is_empty();
        self.queue_pair.with(&mut self.inner, |transport, host| {
            for request in requests.drain(..) {
                transport.post(request, host);
            }
        });
        Ok(())
    }

    /// Moves what can go directly; whether something is left for packets.
    pub(crate) fn carry(&mut self) -> Step {
        self.queue_pair.carry(&mut self.inner)
    }

    /// Whether what was posted may wait for an answer that is on its way, and go together with what is posted until then.
    /// Through shared memory nothing is gained by that.
    pub(crate) fn may_wait(&self) -> bool {
        self.inner.partner.is_none() && self.inner.transport.may_wait()
    }

    /// Hands over all packets that may go now, as [`QueuePair::transmit`] does.
    pub(crate) fn transmit(&mut self, now: impl FnOnce() -> Time, outgoing: &mut impl Outgoing) {
        (self.queue_pair).transmit_packets(&mut self.inner, now, outgoing);
    }

    /// When there is something to do by itself.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.inner.transport.next_timeout()
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

/// A receive queue, locked.
pub(crate) struct Receiver<'a> {
    queue_pair: &'a QueuePair,
    inner: MutexGuard<'a, Inner>,
}

impl Receiver<'_> {
    /// Posts a request. In the error state it is taken, and completes flushed (IBTA 10.3.1.7).
    pub(crate) fn post(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        let state = self.inner.transport.state();
        let Some(attached) = &self.inner.attached else {
            return Err(PostError::NoQueue);
        };
        let Receives::Own(queue) = &attached.receives else {
            return Err(PostError::NoQueue);
        };
        match state {
            State::Reset => Err(PostError::State(state)),
            State::Error => {
                let flushed = Completion::new(request.id, CompletionStatus::Flushed, Work::Receive);
                self.queue_pair.with(&mut self.inner, |_, host| {
                    host.complete_receive(flushed, None);
                });
                Ok(())
            }
            _ => (queue.borrow_mut().post(request)).map_err(|_| PostError::Full),
        }
    }
}
