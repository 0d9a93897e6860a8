use smallvec::SmallVec;

use super::endpoint::{Endpoint, MULTICAST};
use super::{Arrival, Path, Sequence, Service};
use crate::wire::{Aeth, Header, Opcode, Operation, Packet, Syndrome, Transport};

/// What a receiver of an unreliable service owes senders that asked how far it is.
///
/// Such a service has no acknowledgements, because in InfiniBand the link holds a sender back. A socket does not: it
/// drops what it has no room for, and a sender on the same host would lose most of a long message. So every
/// now and then it asks, in a packet of its own, and the receiver of this crate answers when it has taken that
/// packet from its socket. Others do not know the opcode, which is of those that the specification leaves to
/// manufacturers, and drop it (IBTA 9.2.1, 9.7.2).
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

/// Senders that ask at once; of more, some wait in vain for a while.
const MOST: usize = 32;

impl Receipts {
    /// Notes a question.
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
        } else if self.owed.len() < MOST {
            self.owed.push(receipt);
        }
    }

    /// Appends an answer.
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

/// A header of ours.
pub(super) fn header(endpoint: &Endpoint, operation: Operation, sequence: Sequence) -> Header {
    let mut header = endpoint.header(operation, sequence);
    header.bth.opcode = Opcode::new(Transport::Manufacturer, operation);
    header
}
