//! Bringing up queue pairs that are connected to nobody.

use ibverbs_sys::{ibv_qp_attr_mask as mask, ibv_qp_state as state};

use super::endpoint::LOW_24;
use super::{Endpoint, Transport};
use crate::error::{Error, Result};
use crate::ffi::{QueuePairHandle, empty_attributes};

/// How a datagram queue pair behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct DatagramOptions {
    qkey: u32,
    packet_sequence: Option<u32>,
}

impl Default for DatagramOptions {
    fn default() -> Self {
        Self::new(Self::DEFAULT_QKEY)
    }
}

impl DatagramOptions {
    /// The queue key of [`Self::default`], which examples of verbs use too.
    pub const DEFAULT_QKEY: u32 = 0x1111_1111;

    /// With this queue key: packets with another one are dropped.
    ///
    /// Those with the highest bit set are privileged: a request with such a key is sent with the
    /// sending queue pair's own instead (IBTA volume 1, 10.2.5).
    #[doc(alias = "qkey")]
    pub fn new(qkey: u32) -> Self {
        Self {
            qkey,
            packet_sequence: None,
        }
    }

    /// The first packet sequence number, 24 bits. Default: a random one; peers do not look at it.
    #[doc(alias = "sq_psn")]
    pub fn packet_sequence(mut self, number: u32) -> Self {
        self.packet_sequence = Some(number);
        self
    }

    /// The queue key.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }
}

/// INIT to RTR and RTR to RTS, of a queue pair that is connected to nobody.
pub(super) fn to_active(handle: &QueuePairHandle, options: &DatagramOptions) -> Result<()> {
    let sequence = options.packet_sequence;
    let sequence = sequence.unwrap_or_else(Endpoint::random_packet_sequence);
    if sequence > LOW_24 {
        let reason = format!("{sequence:#x} has more than 24 bits");
        return Err(Error::invalid("packet sequence number", reason));
    }
    let datagram = handle.kind() == Transport::Datagram;
    let mut attributes = empty_attributes();
    attributes.qp_state = state::IBV_QPS_RTR;
    attributes.qkey = options.qkey;
    let mut what = mask::IBV_QP_STATE;
    if datagram {
        what |= mask::IBV_QP_QKEY;
    }
    handle.modify(&mut attributes, what, "INIT to RTR")?;
    let mut attributes = empty_attributes();
    attributes.qp_state = state::IBV_QPS_RTS;
    attributes.sq_psn = sequence;
    let mut what = mask::IBV_QP_STATE;
    if datagram {
        what |= mask::IBV_QP_SQ_PSN;
    }
    handle.modify(&mut attributes, what, "RTR to RTS")
}
