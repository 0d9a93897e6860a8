use std::collections::VecDeque;

use crate::proto::{Attributes, Sequence};
use crate::transfer::RingMessage;
use crate::wire::{Nak, Operation, Packet, Syndrome, Transport};

/// Checker of the protocol rules for the packets that one queue pair sends. A violation of these
/// rules does not change a completion, so checks of completions cannot detect the violation. If it
/// is uncertain whether a packet is acknowledged, the checker counts the packet as acknowledged, so
/// every reported violation is real.
#[derive(Debug, Default)]
pub(crate) struct PacketChecker {
    /// Outstanding requests, oldest first.
    under_way: VecDeque<UnderWay>,
    /// Sequence number after the highest one that was sent.
    next: Option<Sequence>,
    /// Sequence number of a packet that this queue pair has requested by a NAK, and that has not
    /// arrived since.
    missed: Option<Sequence>,
    /// Set while the queue pair is in the state "send queue drained" and has reported that its send
    /// queue is drained.
    drained: bool,
}

#[derive(Debug)]
struct UnderWay {
    /// Last sequence number of the request. An acknowledgement of this number completes the
    /// request.
    last: Sequence,
    /// Set if the request is a read or an atomic, which occupies a resource of the responder.
    is_read_or_atomic: bool,
}

impl PacketChecker {
    /// Discards the records of all packets and requests. Called when the queue pair starts again
    /// after a reset.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Checks that a packet that the queue pair has sent obeys protocol rules, such as the path MTU
    /// and the order of sequence numbers. The error describes the violated rule.
    pub(crate) fn sent(
        &mut self,
        packet: &Packet<'_>,
        attributes: &Attributes,
    ) -> Result<(), String> {
        let bth = &packet.header.bth;
        let opcode = bth.opcode;
        let mtu = attributes.path_mtu.bytes();
        let length = packet.payload.len();
        if length > mtu {
            return Err(format!("the payload is over the path MTU {mtu}"));
        }
        let full = opcode.is_first() || opcode.is_middle();
        if full && opcode.has_payload() && length != mtu {
            return Err("a packet with more behind it is not full (IBTA 9.2.1)".to_owned());
        }
        let acknowledged = matches!(
            opcode.transport,
            Transport::ReliableConnection | Transport::ExtendedReliableConnection
        );
        if !acknowledged {
            return Ok(());
        }
        let sequence = Sequence::new(bth.sequence);
        if !opcode.is_request() {
            return self.answered(sequence, packet);
        }
        let span = match packet.header.reth {
            Some(reth) if opcode.operation == Operation::ReadRequest => {
                reth.length.div_ceil(mtu as u32).max(1)
            }
            _ => 1,
        };
        let is_read_or_atomic = opcode.operation == Operation::ReadRequest
            || opcode.is_atomic()
            || opcode.is_atomic_write()
            || opcode.is_flush();
        self.check_request(sequence, span, is_read_or_atomic, attributes)
    }

    /// Checks that the queue pair was allowed to send this [`RingMessage`] (short message without
    /// packet headers), for example by the order of sequence numbers. The error describes the
    /// violated rule.
    pub(crate) fn sent_ring_message(
        &mut self,
        ring_message: &RingMessage<'_>,
        attributes: &Attributes,
    ) -> Result<(), String> {
        match &ring_message.message {
            Some(message) => self.check_request(message.sequence, 1, false, attributes),
            None => Ok(()),
        }
    }

    /// Checks that the queue pair may send a request with `span` sequence numbers, of which
    /// `sequence` is the first. The request must be in order, must be within the window, and must
    /// not be sent while the program has stopped the send queue. The error describes the violated
    /// rule.
    fn check_request(
        &mut self,
        sequence: Sequence,
        span: u32,
        is_read_or_atomic: bool,
        attributes: &Attributes,
    ) -> Result<(), String> {
        if self.drained {
            return Err("the send queue is drained".to_owned());
        }
        if let Some(next) = self.next {
            let distance = sequence.distance(next);
            if distance < 0 {
                // The request was sent before, so this is a retransmission.
                return Ok(());
            }
            if distance > 0 {
                return Err(format!("{next:?} is left out"));
            }
        }
        self.next = Some(sequence + span);
        self.under_way.push_back(UnderWay {
            last: sequence + (span - 1),
            is_read_or_atomic,
        });
        if self.under_way.len() > attributes.max_window as usize {
            return Err(format!("more than the window of {}", attributes.max_window));
        }
        let reads = self.under_way.iter().filter(|u| u.is_read_or_atomic);
        if reads.count() > usize::from(attributes.max_initiated) {
            return Err(format!(
                "more than {} reads and atomics",
                attributes.max_initiated
            ));
        }
        Ok(())
    }

    fn answered(&mut self, sequence: Sequence, packet: &Packet<'_>) -> Result<(), String> {
        let syndrome = packet.header.aeth.map(|aeth| aeth.syndrome);
        if syndrome == Some(Syndrome::Nak(Nak::SequenceError)) {
            if self.missed == Some(sequence) {
                return Err("a gap is told once until it is filled (IBTA 9.7.5.2.8)".to_owned());
            }
            self.missed = Some(sequence);
        }
        Ok(())
    }

    /// Records whether the queue pair has reported its send queue as drained (`is`). While the send
    /// queue is drained, no request is outstanding, and the queue pair must send no new request.
    pub(crate) fn set_drained(&mut self, is: bool) {
        self.drained = is;
    }

    /// Records a packet that has arrived at the queue pair. A response completes the requests that
    /// the response acknowledges. A request that the queue pair had missed is no longer recorded as
    /// missing.
    pub(crate) fn arrived(&mut self, packet: &Packet<'_>) {
        let sequence = Sequence::new(packet.header.bth.sequence);
        if !packet.header.bth.opcode.is_response() {
            self.record_request(sequence);
            return;
        }
        let refused = packet.header.aeth.is_some_and(|aeth| {
            matches!(
                aeth.syndrome,
                Syndrome::ReceiverNotReady { .. } | Syndrome::Nak(Nak::SequenceError)
            )
        });
        self.record_response(sequence, refused);
    }

    /// Records a [`RingMessage`] (short message without packet headers) that has arrived at the
    /// queue pair.
    pub(crate) fn arrived_short(&mut self, ring_message: &RingMessage<'_>) {
        if let Some(message) = &ring_message.message {
            self.record_request(message.sequence);
        }
        if let Some(sequence) = ring_message.acknowledged {
            self.record_response(sequence, false);
        }
    }

    /// Records that a request of the peer with the sequence number `sequence` has arrived at the
    /// queue pair. If the queue pair had requested this number by a NAK, the NAK is then no longer
    /// pending.
    fn record_request(&mut self, sequence: Sequence) {
        if self.missed == Some(sequence) {
            self.missed = None;
        }
    }

    /// Records that the peer has answered the requests up to and including the sequence number
    /// `sequence`. If `refused` is set, the peer has refused the request with the number `sequence`
    /// itself, so this request stays outstanding.
    fn record_response(&mut self, sequence: Sequence, refused: bool) {
        if self.next.is_none_or(|next| sequence.distance(next) >= 0) {
            return;
        }
        while let Some(first) = self.under_way.front() {
            let distance = first.last.distance(sequence);
            if distance > 0 || (distance == 0 && refused) {
                break;
            }
            self.under_way.pop_front();
        }
    }
}
