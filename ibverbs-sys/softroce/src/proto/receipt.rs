use smallvec::SmallVec;

use super::endpoint::{Endpoint, MULTICAST};
use super::{Arrival, Path, Sequence, Service};
use crate::wire::{Aeth, Header, Opcode, Operation, Packet, Syndrome, Transport};

/// Receipts that a queue pair of an unreliable service must still send. A receipt confirms that
/// packets were received.
///
/// An unreliable service has no acknowledgements, because InfiniBand links have flow control. A
/// socket has no flow control, and drops packets when its buffer is full. So a sender on the same
/// host would lose most of a long message. Therefore the sender regularly sends a separate packet
/// that requests a receipt. A receiver of this crate sends the receipt once it has taken the
/// request from its socket. Other implementations drop the request, because its opcode is reserved
/// for manufacturers (IBTA 9.2.1, 9.7.2).
#[derive(Debug, Default)]
pub(super) struct Receipts {
    owed: SmallVec<[Receipt; 4]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Receipt {
    path: Path,
    destination: u32,
    sequence: Sequence,
}

/// Maximum number of receipts (confirmations of received packets) that wait to be sent. The limit
/// bounds the memory for the requests of many senders. Further receipt requests are dropped. Their
/// senders continue after a timeout.
const MAX_WAITING: usize = 32;

impl Receipts {
    /// Handles a receipt request: schedules a receipt (confirmation of received packets) to the
    /// sender of `packet`. `arrival` contains the addresses of the packet, and `endpoint` describes
    /// the receiving queue pair. Ignores a request with a wrong queue key, or to a multicast group.
    pub(super) fn asked(&mut self, endpoint: &Endpoint, arrival: &Arrival, packet: &Packet<'_>) {
        let bth = &packet.header.bth;
        let Some(deth) = packet.header.deth else {
            return;
        };
        let datagram = endpoint.service == Service::UnreliableDatagram;
        if datagram && deth.queue_key != endpoint.attributes.queue_key
            || bth.destination == MULTICAST
        {
            return;
        }
        let answer = Path {
            source: arrival.local,
            destination: arrival.source,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let path = endpoint.attributes.path.filter(|_| !datagram);
        let receipt = Receipt {
            path: path.unwrap_or(answer),
            destination: deth.source,
            sequence: Sequence::new(bth.sequence),
        };
        let same = |owed: &&mut Receipt| {
            owed.path == receipt.path && owed.destination == receipt.destination
        };
        if let Some(owed) = self.owed.iter_mut().find(same) {
            owed.sequence = receipt.sequence;
        } else if self.owed.len() < MAX_WAITING {
            self.owed.push(receipt);
        }
    }

    /// Returns whether this queue pair has no receipt (confirmation of received packets) to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Appends a packet with a receipt (confirmation of received packets) to `out`, and returns the
    /// path that the packet takes to its destination. Returns `None` if no receipt must be sent.
    pub(super) fn poll_transmit(&mut self, endpoint: &Endpoint, out: &mut Vec<u8>) -> Option<Path> {
        let receipt = self.owed.pop()?;
        let mut header = header(endpoint, Operation::Acknowledge, receipt.sequence);
        header.bth.destination = receipt.destination;
        header.aeth = Some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            message_sequence: 0,
        });
        header.emit(out);
        Some(receipt.path)
    }
}

/// Returns the header of a receipt request or of a receipt. A receipt is a confirmation of received
/// packets. `operation` selects the header: a send for a receipt request, and an acknowledgement
/// for a receipt. Both headers have opcodes that the specification reserves for manufacturers.
pub(super) fn header(endpoint: &Endpoint, operation: Operation, sequence: Sequence) -> Header {
    let mut header = endpoint.header(operation, sequence);
    header.bth.opcode = Opcode::new(Transport::Manufacturer, operation);
    header
}
