//! The parameters that the two sides of a connection exchange when they connect.

use ibverbs_sys as sys;

use super::event::PeerParameters;
use crate::error::Result;
use crate::queue_pair::{Endpoint, Limit, Retries};

/// The parameters that this side sends when it connects or accepts: private data, numbers of
/// retries, and support of flow control.
///
/// The maximum numbers of outstanding reads and atomics are settings of the queue pair:
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
    /// Sets the private data for the peer's program. The message has no length field, so the peer
    /// gets the data padded with zeros to the capacity of the message. By default no data is sent.
    ///
    /// [`PortSpace::connect_limit`](super::PortSpace::connect_limit) and
    /// [`PortSpace::accept_limit`](super::PortSpace::accept_limit) return the maximum length.
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// Sets the maximum number of retransmissions of a request, 0 to 7. If the peer still does not
    /// respond, the connection fails. The value of the connecting side applies to both sides. The
    /// default is 6, because with 7 the kernel's Soft-RoCE device never gives up.
    #[doc(alias = "retry_count")]
    pub fn retries(mut self, retries: u8) -> Self {
        self.retries.unanswered = retries;
        self
    }

    /// Sets the maximum number of times, 0 to 6, that the peer retries a request for which this
    /// side had no receive posted. The value 7 means no limit. The default is 7.
    #[doc(alias = "rnr_retry_count")]
    pub fn rnr_retries(mut self, retries: u8) -> Self {
        self.retries.not_ready = retries;
        self
    }

    /// Sets the minimum time that the peer waits before it retries a request for which this side
    /// had no receive posted. `code`, 0 to 31, is the encoded time of IBTA volume 1, table 45. The
    /// default is 12, which is 0.64 ms. (The default of librdmacm is 0, which is the longest delay,
    /// 655 ms.)
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.retries.not_ready_timer = code;
        self
    }

    /// Sets the flag by which this side declares to the peer that this side supports end-to-end
    /// flow control. The flag is only information for the peer's program, and does not change how
    /// the queue pairs work. The default is `false`.
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

    /// Converts the parameters to the C struct that librdmacm expects. The queue pair number and
    /// the limits of RDMA reads come from `local`. `shared_receives` is set if the queue pair uses
    /// a shared receive queue.
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

/// Returns a copy of `local` in which the maximum numbers of outstanding RDMA reads and atomics are
/// lowered to the numbers that the peer allows.
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
