//! Bringing up queue pairs that are connected to nobody.

use super::endpoint::LOW_24;
use super::{Endpoint, Modification, QueuePairState, Transport};
use crate::error::{Error, Result};

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

/// INIT to RTR, of a queue pair that is connected to nobody.
pub(super) fn ready_to_receive(kind: Transport, options: &DatagramOptions) -> Modification {
    let change = Modification::to(QueuePairState::ReadyToReceive);
    match kind {
        Transport::Datagram => change.qkey(options.qkey),
        _ => change,
    }
}

/// RTR to RTS, of a queue pair that is connected to nobody.
pub(super) fn ready_to_send(kind: Transport, options: &DatagramOptions) -> Result<Modification> {
    let sequence = options.packet_sequence;
    let sequence = sequence.unwrap_or_else(Endpoint::random_packet_sequence);
    if sequence > LOW_24 {
        let reason = format!("{sequence:#x} has more than 24 bits");
        return Err(Error::invalid("packet sequence number", reason));
    }
    let change = Modification::to(QueuePairState::ReadyToSend);
    Ok(match kind {
        Transport::Datagram => change.send_sequence(sequence),
        _ => change,
    })
}
