//! Activation of queue pairs that have no peer (datagram and raw packet).

use super::endpoint::LOW_24;
use super::{Endpoint, Modification, QueuePairState, Transport};
use crate::error::{Error, Result};

/// Options for activating a datagram queue pair: its queue key, and its first packet sequence
/// number.
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
    /// The queue key (Q_Key) that [`Self::default`] uses. Example programs for verbs commonly use
    /// the same key.
    pub const DEFAULT_QKEY: u32 = 0x1111_1111;

    /// Creates options with the queue key `qkey`. The queue pair drops packets that contain another
    /// queue key.
    ///
    /// Keys with the highest bit set are privileged. If a send request contains a privileged key,
    /// the device sends the queue key of the sending queue pair instead (IBTA volume 1, 10.2.5).
    #[doc(alias = "qkey")]
    pub fn new(qkey: u32) -> Self {
        Self {
            qkey,
            packet_sequence: None,
        }
    }

    /// Sets the sequence number of the first packet that the queue pair sends, 24 bits. The default
    /// is a random number. Receivers do not check the number, because datagrams may be lost or
    /// reordered.
    #[doc(alias = "sq_psn")]
    pub fn packet_sequence(mut self, number: u32) -> Self {
        self.packet_sequence = Some(number);
        self
    }

    /// Returns the queue key (Q_Key) that the queue pair will have after activation.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }
}

/// Returns the modification that moves a datagram or raw packet queue pair from INIT to RTR (ready
/// to receive). On datagram queue pairs, the modification also sets the queue key of `options`.
pub(super) fn ready_to_receive(kind: Transport, options: &DatagramOptions) -> Modification {
    let change = Modification::to(QueuePairState::ReadyToReceive);
    match kind {
        Transport::Datagram => change.qkey(options.qkey),
        _ => change,
    }
}

/// Returns the modification that moves a datagram or raw packet queue pair from RTR (ready to
/// receive) to RTS (ready to send). On datagram queue pairs, the modification also sets the first
/// packet sequence number: the number in `options`, or a random number.
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
