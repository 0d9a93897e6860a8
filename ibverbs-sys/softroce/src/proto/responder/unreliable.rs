use super::Responder;
use super::message::Refusal;
use crate::proto::endpoint::Endpoint;
use crate::proto::{CompletionStatus, Counter, Host, Sequence};
use crate::wire::Packet;

/// How far behind the newest packet one may be to be taken for late or duplicated. One that is farther behind
/// is of a peer that counts anew.
const LATE: i32 = 1 << 15;

impl Responder {
    /// Takes a packet of an unreliable connection. A message of which a packet is missing or wrong is dropped,
    /// and the peer hears nothing of it (IBTA 9.8.2.2). The status is that of an error of this side's.
    pub(in crate::proto) fn receive_unreliable(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let opcode = packet.header.bth.opcode;
        let sequence = Sequence::new(packet.header.bth.sequence);
        let distance = sequence.distance(self.expected);
        // InfiniBand has no such packets, networks below UDP have.
        if (-LATE..0).contains(&distance) {
            host.count(Counter::DuplicateRequest, 1);
            return Ok(());
        }
        if distance != 0 {
            host.count(Counter::OutOfSequenceRequest, 1);
            self.skip();
        }
        self.expected = sequence.next();
        if opcode.starts_message() {
            // The one before did not end.
            self.message.drop_packets();
            self.skipping = false;
        } else if self.skipping {
            return Ok(());
        }
        match self.message.accept(endpoint, packet, host) {
            Ok(_) => Ok(()),
            Err(Refusal::Receive(status)) => Err(status),
            Err(Refusal::NotReady | Refusal::Invalid | Refusal::Access) => {
                host.count(Counter::ReceiveDropped, 1);
                self.skip();
                Ok(())
            }
        }
    }

    fn skip(&mut self) {
        self.message.drop_packets();
        self.skipping = true;
    }

    /// Ends the receive of the message under way with an error of this side's.
    pub(in crate::proto) fn abort(&mut self, status: CompletionStatus, host: &mut impl Host) {
        self.message.abort(status, host);
    }
}
