use super::Responder;
use super::message::Refusal;
use crate::proto::endpoint::Endpoint;
use crate::proto::{CompletionStatus, Counter, Host, Incoming, Sequence, Source};
use crate::wire::Packet;

/// Maximum distance from the newest packet back to a late or duplicated packet, in sequence
/// numbers. A packet within this distance is dropped. A packet with an even older number means that
/// the peer has begun a new sequence of numbers.
const MAX_LATE: i32 = 1 << 15;

impl Responder {
    /// Receives a packet of an unreliable connection. A message with a missing or invalid packet is
    /// dropped, and the peer is not notified (IBTA 9.8.2.2).
    ///
    /// # Errors
    /// Returns the status of the receive that the message has taken, if the memory of this receive
    /// cannot be used.
    pub(in crate::proto) fn receive_unreliable(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), CompletionStatus> {
        let opcode = packet.header.bth.opcode;
        let sequence = Sequence::new(packet.header.bth.sequence);
        let starts = opcode.starts_message();
        if !self.advance_unreliable(sequence, sequence.next(), starts, host) {
            return Ok(());
        }
        match self.message.accept(endpoint, packet, host) {
            Ok(_) => Ok(()),
            Err(Refusal::Receive(status)) => Err(status),
            Err(Refusal::NotReady | Refusal::Later { .. } | Refusal::Invalid | Refusal::Access) => {
                host.count(Counter::ReceiveDropped, 1);
                self.drop_message();
                Ok(())
            }
        }
    }

    /// Receives a part (range) of a message of an unreliable connection from another process of the
    /// host. Returns whether the part was accepted and all its bytes were copied. A message with a
    /// missing or invalid part is dropped, and the peer is not notified.
    ///
    /// # Errors
    /// Returns the status of the receive that the message has taken, if the memory of this receive
    /// cannot be used.
    pub(in crate::proto) fn receive_unreliable_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        endpoint: &Endpoint,
        host: &mut H,
    ) -> Result<bool, CompletionStatus> {
        let end = part.end(endpoint);
        if !self.advance_unreliable(part.sequence, end, part.starts, host) {
            return Ok(false);
        }
        match self.message.take_from_process(part, source, endpoint, host) {
            Ok(true) => Ok(true),
            Err(Refusal::Receive(status)) => Err(status),
            Ok(false) | Err(_) => {
                host.count(Counter::ReceiveDropped, 1);
                self.drop_message();
                Ok(false)
            }
        }
    }

    /// Records the arrival of the sequence numbers from `sequence` to `end` (exclusive), as a
    /// packet or through shared memory. `starts` is set at the beginning of a message. Afterwards,
    /// `end` is expected next, unless the numbers are late. Returns `false` if the caller must drop
    /// the bytes: the numbers are late, or an earlier part of the message was lost or invalid.
    fn advance_unreliable(
        &mut self,
        sequence: Sequence,
        end: Sequence,
        starts: bool,
        host: &mut impl Host,
    ) -> bool {
        let distance = sequence.distance(self.expected);
        // InfiniBand never duplicates or reorders packets, but networks below UDP do.
        if (-MAX_LATE..0).contains(&distance) {
            host.count(Counter::DuplicateRequest, 1);
            return false;
        }
        if distance != 0 {
            host.count(Counter::OutOfSequenceRequest, 1);
            self.drop_message();
        }
        self.expected = end;
        if starts {
            // The previous message is incomplete.
            self.message.drop_packets();
            self.dropping_message = false;
        }
        !self.dropping_message
    }

    /// Drops the message in progress, and makes the responder drop the rest of its packets and
    /// parts, because a packet or part is missing or invalid.
    fn drop_message(&mut self) {
        self.message.drop_packets();
        self.dropping_message = true;
    }

    /// Drops the message that is being received, and completes its receive with the error `status`.
    pub(in crate::proto) fn abort(&mut self, status: CompletionStatus, host: &mut impl Host) {
        self.message.abort(status, host);
    }
}

#[cfg(test)]
mod tests {
    use crate::proto::testing::{Direction, Node, Pair, WireEffect, pattern, request};
    use crate::proto::{CompletionStatus as S, Remote, SendOperation, Service, State, Time};
    use crate::wire::{Packet, Transport};

    const UC: Service = Service::UnreliableConnection;

    fn write(remote: Remote) -> SendOperation {
        SendOperation::Write {
            remote,
            immediate: None,
        }
    }

    #[test]
    fn messages_arrive_without_acknowledgements() {
        let mut pair = Pair::new(UC);
        let key = pair.b.machine.post_receive(1, 1000);
        let there = pair.b.machine.register(vec![0; 1000]);
        let here = pair.a.machine.register(pattern(1000));
        pair.a.post_send(1, pattern(700));
        let list = [pair.a.machine.segment(here, 0, 1000)];
        let remote = pair.b.machine.remote(there, 0);
        pair.a.post(request(2, write(remote), &list));
        pair.run_with(|from, _| {
            assert_eq!(from, Direction::A);
            WireEffect::Deliver
        });
        assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
        assert_eq!(pair.b.machine.bytes(key)[..700], pattern(700));
        assert_eq!(pair.b.machine.bytes(there), pattern(1000));
    }

    #[test]
    fn a_message_with_a_missing_packet_is_dropped_and_its_receive_is_used_for_the_next_message() {
        for lost in 0..3 {
            let mut pair = Pair::new(UC);
            let key = pair.b.machine.post_receive(1, 1000);
            pair.a.post_send(1, pattern(700));
            pair.a.post_send(2, pattern(600));
            let mut count = 0;
            pair.run_with(|_, _| {
                count += 1;
                if count == lost + 1 {
                    WireEffect::Drop
                } else {
                    WireEffect::Deliver
                }
            });
            assert_eq!(pair.b.machine.receive_ends(), [(1, S::Success)]);
            assert_eq!(pair.b.machine.received[0].0.length, 600);
            assert_eq!(pair.b.machine.bytes(key)[..600], pattern(600));
            assert_eq!(pair.b.queue_pair.state(), State::ReadyToSend);
        }
    }

    #[test]
    fn duplicates_and_late_packets_are_dropped() {
        let mut pair = Pair::new(UC);
        for id in 0..4 {
            pair.b.machine.post_receive(id, 1000);
        }
        pair.a.post_send(1, pattern(600));
        pair.a.post_send(2, pattern(10));
        pair.run_with(|_, _| WireEffect::Duplicate);
        assert_eq!(
            pair.b.machine.receive_ends(),
            [(0, S::Success), (1, S::Success)]
        );
    }

    #[test]
    fn messages_without_permission_or_without_a_receive_are_dropped() {
        let mut pair = Pair::new(UC);
        let here = pair.a.machine.register(pattern(1000));
        let list = [pair.a.machine.segment(here, 0, 1000)];
        let remote = Remote {
            address: 1,
            key: 99,
        };
        pair.a.post(request(1, write(remote), &list));
        pair.a.post_send(2, pattern(600));
        pair.run();
        assert_eq!(pair.b.machine.received.len(), 0);
        let key = pair.b.machine.post_receive(1, 1000);
        pair.a.post_send(3, pattern(500));
        pair.run();
        assert_eq!(pair.b.machine.bytes(key)[..500], pattern(500));
        assert_eq!(pair.b.machine.events, []);
    }

    #[test]
    fn a_receive_that_is_too_small_fails_the_queue_pair() {
        let mut pair = Pair::new(UC);
        pair.b.machine.post_receive(1, 100);
        pair.b.machine.post_receive(2, 100);
        pair.a.post_send(1, pattern(101));
        pair.run();
        assert_eq!(pair.a.machine.ends(), [(1, S::Success)]);
        assert_eq!(
            pair.b.machine.receive_ends(),
            [(1, S::LocalLength), (2, S::Flushed)]
        );
        assert_eq!(pair.b.queue_pair.state(), State::Error);
    }

    #[test]
    fn a_local_error_stops_only_sending() {
        let mut node = Node::ready_to_send(1, UC);
        node.machine.post_receive(5, 8);
        let list = [node.machine.segment(99, 0, 8)];
        let remote = node.machine.remote(1, 0);
        node.post(request(1, write(remote), &list));
        node.post_send(2, pattern(8));
        assert!(node.transmit(Time::default()).is_none());
        assert_eq!(
            node.machine.ends(),
            [(1, S::LocalProtection), (2, S::Flushed)]
        );
        assert_eq!(node.queue_pair.state(), State::SendQueueError);
        assert_eq!(node.machine.receives.len(), 1);
        node.post_send(3, pattern(8));
        assert_eq!(node.machine.ends()[2], (3, S::Flushed));
        node.enter(State::ReadyToSend);
        node.post_send(4, pattern(8));
        assert!(node.transmit(Time::default()).is_some());
        assert_eq!(node.machine.ends()[3], (4, S::Success));
    }

    #[test]
    fn reads_are_refused_on_this_service() {
        let mut node = Node::ready_to_send(1, UC);
        let remote = node.machine.remote(1, 0);
        node.post(request(1, SendOperation::Read { remote }, &[]));
        assert!(node.transmit(Time::default()).is_none());
        assert_eq!(node.machine.ends(), [(1, S::LocalQueuePairOperation)]);
    }

    fn of_service(packet: &Packet<'_>) -> bool {
        packet.header.bth.opcode.transport == Transport::UnreliableConnection
    }

    #[test]
    fn a_long_message_to_a_peer_without_receipts_is_sent_in_bursts() {
        let mut node = Node::ready_to_send(1, UC);
        node.post_send(1, pattern(256 * 5000));
        let mut now = Time::default();
        let mut numbers = Vec::new();
        loop {
            let burst = node.transmit_all(now);
            let packets = burst.iter().map(|bytes| Packet::parse(bytes).unwrap());
            let before = numbers.len();
            numbers.extend(
                packets
                    .filter(of_service)
                    .map(|packet| packet.header.bth.sequence),
            );
            assert!(numbers.len() - before <= 128);
            let Some(due) = node.queue_pair.next_timeout() else {
                break;
            };
            now = due;
            node.queue_pair.handle_timeout(now, &mut node.machine);
        }
        assert_eq!(numbers.len(), 5000);
        assert_eq!(node.machine.ends(), [(1, S::Success)]);
    }

    #[test]
    fn a_long_message_is_sent_at_the_rate_of_the_peer() {
        let mut pair = Pair::new(UC);
        let key = pair.b.machine.post_receive(1, 256 * 5000);
        pair.a.post_send(1, pattern(256 * 5000));
        let mut burst = 0;
        pair.run_with(|from, packet| {
            burst = match from {
                Direction::A => burst + u32::from(of_service(packet)),
                Direction::B => 0,
            };
            assert!(burst <= 128);
            WireEffect::Deliver
        });
        assert_eq!(pair.b.machine.bytes(key), pattern(256 * 5000));
        // No time has passed: no packet waited.
        assert_eq!(pair.now, Time::default());
    }
}
