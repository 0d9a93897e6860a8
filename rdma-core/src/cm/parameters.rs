//! What two ends tell each other when they connect.

use ibverbs_sys as sys;

use super::event::PeerParameters;
use crate::error::Result;
use crate::queue_pair::{Endpoint, Limit, Retries};

/// What this end tells the other when it connects or accepts.
///
/// How many reads and atomics may be outstanding is the queue pair's:
/// [`incoming_reads`](crate::QueuePairBuilder::incoming_reads) and
/// [`outgoing_reads`](crate::QueuePairBuilder::outgoing_reads).
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct ConnectionParameters {
    private_data: Vec<u8>,
    retries: Retries,
    flow_control: bool,
}

impl ConnectionParameters {
    /// Bytes for the peer's program. It gets them followed by zeros up to what the message holds:
    /// the length is not transferred. Default none.
    ///
    /// How many fit says [`PortSpace`](super::PortSpace).
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// How often both ends send again without an answer, 0 to 7. The connecting end's counts.
    /// Default 7.
    #[doc(alias = "retry_count")]
    pub fn retries(mut self, retries: u8) -> Self {
        self.retries.unanswered = retries;
        self
    }

    /// How often the peer sends again when this end has no receive posted, 0 to 6; 7 is without
    /// end, the default.
    #[doc(alias = "rnr_retry_count")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.retries.not_ready = retries;
        self
    }

    /// How long the peer is to wait when this end has no receive posted, as the code of the
    /// specification's table, 0 to 31 (IBTA volume 1, table 46). Default 12, 0.64 ms; 0, which
    /// librdmacm uses, is the longest, 655 ms.
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.retries.not_ready_timer = code;
        self
    }

    /// Whether this end says that it has flow control from end to end. Nothing is configured by
    /// it. Default no.
    pub fn flow_control(mut self, has: bool) -> Self {
        self.flow_control = has;
        self
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.private_data
    }

    pub(crate) fn rnr_timer(&self) -> u8 {
        self.retries.not_ready_timer
    }

    pub(crate) fn checked(&self) -> Result<()> {
        Limit::check(self.retries.limits())
    }

    /// As C has them, for a queue pair that takes and has outstanding as many reads as `local` says.
    pub(crate) fn to_raw(&self, local: &Endpoint, shared_receives: bool) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: std::ptr::null(),
            private_data_len: 0,
            responder_resources: local.incoming_reads,
            initiator_depth: local.outgoing_reads,
            flow_control: self.flow_control.into(),
            retry_count: self.retries.unanswered,
            rnr_retry_count: self.retries.not_ready,
            srq: shared_receives.into(),
            qp_num: local.queue_pair,
        }
    }
}

/// What both ends can: `local`'s limits, lowered to what the peer asked for.
pub(crate) fn negotiated(local: Endpoint, peer: &PeerParameters) -> Endpoint {
    Endpoint {
        incoming_reads: local.incoming_reads.min(peer.incoming_reads),
        outgoing_reads: local.outgoing_reads.min(peer.outgoing_reads),
        ..local
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_parameters_are_refused_by_name() {
        let error = ConnectionParameters::default().retries(8).checked();
        assert_eq!(
            error.unwrap_err().to_string(),
            "number of retries: 8 is above 7"
        );
        assert!(
            ConnectionParameters::default()
                .min_rnr_timer(32)
                .checked()
                .is_err()
        );
        assert!(ConnectionParameters::default().checked().is_ok());
    }
}
