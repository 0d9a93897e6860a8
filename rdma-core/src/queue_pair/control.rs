//! Operations on a connected queue pair other than posting: changes of its state, queries, and
//! draining.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Arrival, DataOrder, EnhancedEstablishment, ManualQueuePair, Modification, QueuePair,
    QueuePairAttributes, QueuePairState,
};
use crate::address::AddressVector;
use crate::error::{Error, Result};
use crate::refused::Refused;

/// The limit of the rate at which a queue pair sends data (`ibv_qp_rate_limit_attr`).
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RateLimit {
    /// The maximum rate in kilobits per second, or 0 for the rate of the port.
    #[doc(alias = "rate_limit")]
    pub kilobits: u32,
    /// The maximum burst in bytes, or 0 for the default of the device.
    #[doc(alias = "max_burst_sz")]
    pub burst: u32,
    /// The typical packet size in bytes, or 0 for the default of the device.
    #[doc(alias = "typical_pkt_sz")]
    pub packet: u16,
}

impl QueuePair {
    /// Returns the state of the queue pair.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QueuePairState> {
        self.parts.state()
    }

    /// Returns all attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Applies `change`: sets the attributes that `change` contains, which may include the state of
    /// the queue pair. For a change to RESET, use [`Self::reset`] instead.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`] if the device refuses the change, and
    /// [`Error::InvalidArgument`] for a change to RESET.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, change: &Modification) -> Result<()> {
        if change.state() == Some(QueuePairState::Reset) {
            let reason = "in RESET it is none in operation: use `reset`";
            return Err(Error::invalid("queue pair", reason));
        }
        self.parts.modify(change)
    }

    /// Moves the queue pair to the error state. The device completes all outstanding requests as
    /// flushed (`IBV_WC_WR_FLUSH_ERR`) within a bounded time, and refuses messages of the peer.
    ///
    /// Requests that are posted later are also flushed. The Soft-RoCE driver of Linux flushes
    /// receives that are posted later only when the program calls this method again. The method may
    /// be called in every state.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`].
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "IBV_QPS_ERR")]
    pub fn fail(&self) -> Result<()> {
        self.parts.modify(&Modification::to(QueuePairState::Error))
    }

    /// Begins to drain the send queue: moves the queue pair from RTS to SQD (send queue drain).
    /// Requests that the device has started complete, later requests wait, and receives continue.
    /// If `notify` is set, an asynchronous event reports that the send queue has drained.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`], for example because the device does not support the state
    /// SQD.
    #[doc(alias = "IBV_QPS_SQD")]
    pub fn pause(&self, notify: bool) -> Result<()> {
        let change = Modification::to(QueuePairState::SendQueueDrain);
        self.parts.modify(&if notify {
            change.notify_drained(true)
        } else {
            change
        })
    }

    /// Resumes sending after [`Self::pause`]: moves the queue pair from SQD to RTS. On the
    /// Soft-RoCE driver of Linux, sending resumes with the next request that is posted.
    ///
    /// # Errors
    ///
    /// [`Error::RefusedModification`], for example while the send queue is still draining.
    pub fn resume(&self) -> Result<()> {
        let rts = Modification::to(QueuePairState::ReadyToSend);
        self.parts.modify(&rts)
    }

    /// Resumes sending after a send request has failed: moves the queue pair from the state
    /// [`QueuePairState::SendQueueError`] (SQE) to [`QueuePairState::ReadyToSend`]. Only transports
    /// without acknowledgements use SQE. The device has flushed the requests after the failed
    /// request, and the program must post these requests again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queue pair is not in SQE, and
    /// [`Error::RefusedModification`].
    #[doc(alias = "IBV_QPS_SQE")]
    pub fn recover(&self) -> Result<()> {
        // Drivers do not record that the device has moved a queue pair to SQE. Therefore they rely
        // on the current state that the modification contains.
        let (state, failed) = (self.state()?, QueuePairState::SendQueueError);
        if state != failed {
            let reason = format!("it is in {state}, not in {failed}");
            return Err(Error::invalid("queue pair", reason));
        }
        let rts = Modification::to(QueuePairState::ReadyToSend);
        self.parts.modify(&rts.assuming(failed))
    }

    /// [Pauses](Self::pause) the queue pair, and waits until the requests that the device has
    /// started have completed.
    ///
    /// Later requests wait in the queue until the program calls [`Self::resume`]. Until then the
    /// queue pair is in the state [`QueuePairState::SendQueueDrain`] (SQD). In SQD the program can
    /// change the path to the peer.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::pause`], and [`Error::TimedOut`] if requests are not acknowledged
    /// within `timeout`. After [`Error::TimedOut`] the queue pair is in SQD.
    #[doc(alias = "sq_draining")]
    pub fn drain_sends(&self, timeout: Duration) -> Result<()> {
        self.pause(false)?;
        let deadline = Deadline::after(timeout);
        while self.attributes()?.is_draining() {
            deadline.wait("the send queue to drain")?;
        }
        Ok(())
    }

    /// Moves the queue pair to the [error](Self::fail) state, and waits until all posted requests
    /// have completed. The next poll of the completion queues then returns the completions of these
    /// requests, successful or flushed. If another thread polls at the same time, that thread may
    /// have got the completions already.
    ///
    /// The method posts a marker, a request without memory, to each queue of the queue pair, and
    /// waits until the markers have completed. Other threads may poll the completion queues during
    /// the call. Polls that begin during the call do not return the completions of markers. A poll
    /// that began before the call may return such completions.
    ///
    /// The completion queues must have room for two additional completions. A completion queue that
    /// the builder created for this queue pair has that room. The method does not wait for receives
    /// of a shared receive queue. The event `IBV_EVENT_QP_LAST_WQE_REACHED` reports that the queue
    /// pair consumes no more of these receives.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::fail`], [`Error::TimedOut`] if the requests do not complete within
    /// `timeout`, and [`Error::InUse`] if the calling thread is polling a completion queue of the
    /// queue pair.
    #[doc(alias = "ibv_drain_qp")]
    pub fn drain(&self, timeout: Duration) -> Result<()> {
        self.fail()?;
        let own = AddressVector::to_endpoint(&self.parts.address, &self.parts.local);
        let deadline = Deadline::after(timeout);
        let what = "the queue pair to be flushed";
        self.parts.handle.await_flush(&own, || deadline.wait(what))
    }

    /// Moves the queue pair to RESET. The queue pair can then be connected again, to the same or
    /// another peer.
    ///
    /// The device discards every request that has not completed. The memory of these requests is
    /// freed, and no completion is reported. The device may also discard completions that the
    /// program has not polled yet.
    ///
    /// # Errors
    ///
    /// Returns the queue pair with an error. The error is [`Error::InUse`] while clones or queues
    /// of the queue pair exist, because requests of such a queue would never complete. The error is
    /// [`Error::RefusedModification`] if the device refuses the change.
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

    /// Returns the order in which the data of a message is guaranteed to become visible in this
    /// host's memory. Programs that poll the last byte of a message, instead of a completion,
    /// depend on this order.
    ///
    /// `arrival` is the kind of operation that writes the data. The result is empty if the device
    /// guarantees no order.
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_order(&self, arrival: Arrival) -> DataOrder {
        let bits = self.parts.handle.data_in_order(arrival.to_raw());
        DataOrder::from_bits_retain(bits)
    }

    /// Returns the enhanced connection establishment (ECE) options that are in use: vendor-specific
    /// options that the two devices have in common.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_ece`. Most devices do not support ECE ([`Error::is_unsupported`]).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Limits the rate at which the queue pair sends data (packet pacing), if the device supports a
    /// limit.
    ///
    /// # Errors
    ///
    /// The error of `ibv_modify_qp_rate_limit`. Most devices do not support rate limits
    /// ([`Error::is_unsupported`]).
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

/// The duration of a wait with a timeout, and the time at which the wait ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    timeout: Duration,
    /// The time at which the wait ends, or `None` if the timeout is too long for an [`Instant`].
    end: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self {
            timeout,
            end: Instant::now().checked_add(timeout),
        }
    }

    /// Sleeps for 20 microseconds, or returns [`Error::TimedOut`] if the deadline has passed. The
    /// caller checks a condition between two calls. `what` is the name of the awaited event in the
    /// error.
    pub(super) fn wait(&self, what: &'static str) -> Result<()> {
        if self.end.is_some_and(|end| Instant::now() >= end) {
            let timeout = self.timeout;
            return Err(Error::TimedOut { what, timeout });
        }
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    }
}
