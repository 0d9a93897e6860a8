use std::collections::VecDeque;

use crate::proto::{Attributes, Sequence};
use crate::transfer::Brief;
use crate::wire::{Nak, Operation, Packet, Syndrome, Transport};

/// Watches what one queue pair puts on the wire: the rules that no completion shows when they are
/// broken. What it takes for acknowledged is never less than what really is, so it never blames
/// a queue pair wrongly.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Requests on the way, oldest first.
    under_way: VecDeque<UnderWay>,
    /// The number after the highest that was sent.
    next: Option<Sequence>,
    /// The peer was told that this packet is missing, and it did not come since.
    missed: Option<Sequence>,
    /// The send queue was told to be drained.
    drained: bool,
}

#[derive(Debug)]
struct UnderWay {
    /// The last number that it takes.
    last: Sequence,
    /// The responder needs a resource for it.
    is_read_or_atomic: bool,
}

impl Watch {
    /// Forgets everything: the queue pair begins anew.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// A packet left. The error says which rule it breaks.
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
        let is_read_or_atomic = opcode.operation == Operation::ReadRequest || opcode.is_atomic();
        self.asked(sequence, span, is_read_or_atomic, attributes)
    }

    /// The same of a brief.
    pub(crate) fn sent_brief(
        &mut self,
        brief: &Brief<'_>,
        attributes: &Attributes,
    ) -> Result<(), String> {
        match &brief.message {
            Some(message) => self.asked(message.sequence, 1, false, attributes),
            None => Ok(()),
        }
    }

    /// A request left that takes `span` numbers.
    fn asked(
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
                // Sent again.
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
        if self.under_way.len() > attributes.window as usize {
            return Err(format!("more than the window of {}", attributes.window));
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

    /// The queue pair told that its send queue is drained, or was made to go on.
    pub(crate) fn drained(&mut self, is: bool) {
        self.drained = is;
    }

    /// A packet came.
    pub(crate) fn arrived(&mut self, packet: &Packet<'_>) {
        let sequence = Sequence::new(packet.header.bth.sequence);
        if !packet.header.bth.opcode.is_response() {
            self.came(sequence);
            return;
        }
        let refused = packet.header.aeth.is_some_and(|aeth| {
            matches!(
                aeth.syndrome,
                Syndrome::ReceiverNotReady { .. } | Syndrome::Nak(Nak::SequenceError)
            )
        });
        self.executed(sequence, refused);
    }

    /// A brief came.
    pub(crate) fn heard(&mut self, brief: &Brief<'_>) {
        if let Some(message) = &brief.message {
            self.came(message.sequence);
        }
        if let Some(sequence) = brief.acknowledged {
            self.executed(sequence, false);
        }
    }

    /// A request of the peer's came.
    fn came(&mut self, sequence: Sequence) {
        if self.missed == Some(sequence) {
            self.missed = None;
        }
    }

    /// The peer answered all up to this number, the last one perhaps by refusing it.
    fn executed(&mut self, sequence: Sequence, refused: bool) {
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
