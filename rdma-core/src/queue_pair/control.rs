//! Operations on a queue pair in use, other than posting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Arrival, DataOrder, EnhancedEstablishment, ManualQueuePair, Modification, QueuePair,
    QueuePairAttributes, QueuePairState,
};
use crate::address::AddressVector;
use crate::error::{Error, Result};
use crate::refused::Refused;

/// Limit of the rate at which a queue pair sends (`ibv_qp_rate_limit_attr`).
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RateLimit {
    /// The most to send, in thousands of bits a second; 0 is as fast as the port.
    #[doc(alias = "rate_limit")]
    pub kilobits: u32,
    /// The most bytes to send at once; 0 leaves it to the device.
    #[doc(alias = "max_burst_sz")]
    pub burst: u32,
    /// The size of most packets, in bytes; 0 leaves it to the device.
    #[doc(alias = "typical_pkt_sz")]
    pub packet: u16,
}

impl QueuePair {
    /// Returns the state of the queue pair.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QueuePairState> {
        self.parts.state()
    }

    /// Returns all attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Changes its attributes, perhaps its state; not to RESET, which [`Self::reset`] is for.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`], and [`Error::InvalidArgument`] for a change to RESET.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, change: &Modification) -> Result<()> {
        if change.state() == Some(QueuePairState::Reset) {
            let reason = "in RESET it is none in operation: use `reset`";
            return Err(Error::invalid("queue pair", reason));
        }
        self.parts.modify(change)
    }

    /// Moves the queue pair to the error state: everything outstanding completes as flushed, in
    /// bounded time, and messages of the peer are refused.
    ///
    /// Requests that are posted later are flushed too. Linux's Soft-RoCE leaves receives posted
    /// later alone until this is called again, which is allowed in every state.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`].
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn fail(&self) -> Result<()> {
        self.parts.modify(&Modification::to(QueuePairState::Error))
    }

    /// Begins to drain the send queue, RTS to SQD: requests that were begun are completed, later
    /// ones wait, receives go on. With `notify` an asynchronous event tells when that is done.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`]; devices that do not have this state refuse.
    #[doc(alias = "IBV_QPS_SQD")]
    pub fn pause(&self, notify: bool) -> Result<()> {
        let change = Modification::to(QueuePairState::SendQueueDrain);
        self.parts.modify(&if notify {
            change.notify_drained(true)
        } else {
            change
        })
    }

    /// Goes on sending after [`Self::pause`], SQD to RTS. Linux's Soft-RoCE does so with the next
    /// request that is posted.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`], also while it still drains.
    pub fn resume(&self) -> Result<()> {
        let rts = Modification::to(QueuePairState::ReadyToSend);
        self.parts.modify(&rts)
    }

    /// Goes on sending after a failed request of a queue pair without acknowledgements, SQE to RTS.
    /// Requests that were flushed have to be posted again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] in any other state, and [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_SQE")]
    pub fn recover(&self) -> Result<()> {
        // Drivers do not see a queue pair enter SQE, and take the caller's word for it.
        let (state, failed) = (self.state()?, QueuePairState::SendQueueError);
        if state != failed {
            let reason = format!("it is in {state}, not in {failed}");
            return Err(Error::invalid("queue pair", reason));
        }
        let rts = Modification::to(QueuePairState::ReadyToSend);
        self.parts.modify(&rts.assuming(failed))
    }

    /// [Pauses](Self::pause) the queue pair and waits until the requests that were begun have
    /// completed.
    ///
    /// Later requests wait in the queue, and the queue pair stays in SQD, until it is
    /// [resumed](Self::resume): meanwhile the path to the peer can be changed.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::pause`], and [`Error::TimedOut`] when the peer leaves requests
    /// unanswered for longer than `timeout`; the queue pair is in SQD then.
    #[doc(alias = "sq_draining")]
    pub fn drain_sends(&self, timeout: Duration) -> Result<()> {
        self.pause(false)?;
        let deadline = Deadline::after(timeout);
        while self.attributes()?.is_draining() {
            deadline.wait("the send queue to drain")?;
        }
        Ok(())
    }

    /// [Fails](Self::fail) the queue pair and waits until everything that was posted has completed.
    /// Every completion, flushed or not, is then in the completion queues, for their next poll, or
    /// was taken by a poll that began before.
    ///
    /// For this, a request without memory is posted to each queue of the queue pair and awaited.
    /// Other threads may poll the completion queues meanwhile, and do not see the completions of
    /// these two requests, except in a poll that began before. The completion queues must have room
    /// for two more completions than for the requests; completion queues that the queue pair made
    /// for itself have it. Receives of a shared queue are not awaited: the event
    /// `IBV_EVENT_QP_LAST_WQE_REACHED` reports their end.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::fail`]; [`Error::TimedOut`] when it takes longer than `timeout`;
    /// [`Error::InUse`] in a thread that is polling the completions of the queue pair.
    #[doc(alias = "ibv_drain_qp")]
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        self.fail()?;
        let own = AddressVector::to_endpoint(&self.parts.address, &self.parts.local);
        let deadline = Deadline::after(timeout);
        let what = "the queue pair to be flushed";
        self.parts.handle.await_flush(&own, || deadline.wait(what))
    }

    /// Moves it to RESET, from where it can be brought up again, with another peer too.
    ///
    /// The device forgets every request that has not completed: its memory is freed, and its
    /// completion never comes. Completions that nobody has polled may be forgotten too.
    ///
    /// # Errors
    ///
    /// The queue pair, with [`Error::InUse`] while there are clones or queues of it, because what
    /// was posted to them would never complete, or with [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_RESET")]
    pub fn reset(self) -> Result<ManualQueuePair, Refused<Self>> {
        let parts = match Arc::try_unwrap(self.parts) {
            Ok(parts) => parts,
            Err(parts) => {
                let error = parts.in_use();
                return Err(Refused::new(Self { parts }, error));
            }
        };
        match parts.reset(&Modification::to(QueuePairState::Reset)) {
            Ok(()) => Ok(ManualQueuePair::renewed(parts)),
            Err(error) => Err(Refused::new(Self::new(parts), error)),
        }
    }

    /// Returns in which units the data of a message comes into memory in order, for programs that
    /// wait for its last byte instead of a completion. Empty if the device promises nothing.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_order(&self, arrival: Arrival) -> DataOrder {
        let bits = self.parts.handle.data_in_order(arrival.to_raw());
        DataOrder::from_bits_retain(bits)
    }

    /// Returns the options that the devices of both ends have agreed on.
    ///
    /// # Errors
    ///
    /// The verb's: most devices have nothing to agree on ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_query_ece")]
    pub fn enhancements(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets how fast it may send.
    ///
    /// # Errors
    ///
    /// The verb's: most devices cannot ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn limit_rate(&self, limit: RateLimit) -> Result<()> {
        let RateLimit {
            kilobits,
            burst,
            packet,
        } = limit;
        self.parts.handle.limit_rate(kilobits, burst, packet)
    }
}

/// When to stop waiting.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    timeout: Duration,
    /// `None` where that is too far away to be told.
    end: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: Instant::now().checked_add(timeout),
        }
    }

    /// Lets other threads run, for a moment, if there is time left.
    pub(super) fn wait(&self, what: &'static str) -> Result<()> {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            let timeout = self.timeout;
            return Err(Error::TimedOut { what, timeout });
        }
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    }
}
