//! Tests of retransmissions to a peer that keeps packets after a gap.

use super::*;

/// Passes a gap report to `node`: the peer expects the packet with the index `expected`, and keeps
/// those with the indices `kept`.
fn report(node: &mut Node, expected: u32, kept: &[u32]) {
    let mut header = response(O::ReadResponseOnly, expected, Syndrome::Ack { credits: 31 });
    header.bth.opcode = Opcode::GAPS;
    let mut bits = [0; 8];
    for place in kept.iter().map(|place| place - expected) {
        bits[place as usize / 8] |= 0x80 >> (place % 8);
    }
    node.receive_made(header, &bits);
}

/// Returns the indices of the packets that `node` sends.
fn sent(node: &mut Node) -> Vec<u32> {
    let packets = node.transmit_all(Time::default());
    let place = |bytes: &Vec<u8>| (Sequence::new(sequence(bytes)) + (0x100_0000 - FIRST)).value();
    packets.iter().map(place).collect()
}

#[test]
fn only_the_missing_packets_are_sent_again() {
    let mut node = lone_sends(8);
    assert_eq!(sent(&mut node).len(), 8);
    report(&mut node, 2, &[3, 6]);
    node.receive_made(nak(2, Nak::SequenceError), &[]);
    assert_eq!(sent(&mut node), [2, 4, 5]);
    // The NAK acknowledges the packets before the gap, and the report nothing.
    assert_eq!(node.machine.ends().len(), 2);
    report(&mut node, 2, &[3, 6]);
    node.receive_made(nak(2, Nak::SequenceError), &[]);
    assert_eq!(sent(&mut node), []);
    node.receive_made(ack(7), &[]);
    assert_eq!(node.machine.ends().len(), 8);
    assert_eq!(node.queue_pair.next_timeout(), None);
}

#[test]
fn a_peer_that_reports_no_gaps_gets_all_packets_again() {
    let mut node = lone_sends(8);
    assert_eq!(sent(&mut node).len(), 8);
    node.receive_made(nak(2, Nak::SequenceError), &[]);
    // The report of a gap comes too late: the packets are being sent again.
    report(&mut node, 2, &[3, 6]);
    assert_eq!(sent(&mut node), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_packet_that_is_lost_again_is_sent_again_once_a_later_packet_arrives() {
    let mut node = lone_sends(4);
    assert_eq!(sent(&mut node).len(), 4);
    report(&mut node, 0, &[1, 2, 3]);
    assert_eq!(sent(&mut node), [0]);
    for id in 4..6 {
        node.post_send(id, vec![0; 8]);
    }
    assert_eq!(sent(&mut node), [4, 5]);
    report(&mut node, 0, &[1, 2, 3]);
    assert_eq!(sent(&mut node), []);
    report(&mut node, 0, &[1, 2, 3, 4]);
    assert_eq!(sent(&mut node), [0]);
    node.receive_made(ack(5), &[]);
    assert_eq!(node.machine.ends().len(), 6);
}

#[test]
fn the_loss_of_the_last_packets_is_detected_by_the_arrival_of_a_repetition() {
    let mut node = lone_sends(6);
    assert_eq!(sent(&mut node).len(), 6);
    report(&mut node, 1, &[2]);
    node.receive_made(nak(1, Nak::SequenceError), &[]);
    assert_eq!(sent(&mut node), [1]);
    node.receive_made(ack(2), &[]);
    assert_eq!(sent(&mut node), [3, 4, 5]);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 0);
}

#[test]
fn a_timeout_repeats_all_packets() {
    let mut node = lone_sends(4);
    assert_eq!(sent(&mut node).len(), 4);
    report(&mut node, 0, &[1, 2]);
    assert_eq!(sent(&mut node), [0]);
    let now = node.queue_pair.next_timeout().unwrap();
    node.queue_pair.handle_timeout(now, &mut node.machine);
    assert_eq!(sent(&mut node), [0, 1, 2, 3]);
}

#[test]
fn a_nak_counts_as_a_retry_although_a_report_preceded_it() {
    let mut node = lone_sends(4);
    node.queue_pair.attributes_mut().retry_count = 0;
    assert_eq!(sent(&mut node).len(), 4);
    report(&mut node, 0, &[1]);
    assert_eq!(node.machine.ends(), []);
    node.receive_made(nak(0, Nak::SequenceError), &[]);
    assert_eq!(node.machine.ends()[0], (0, S::RetryExceeded));
}

#[test]
fn reports_of_packets_that_were_never_sent_are_ignored() {
    let mut node = lone_sends(4);
    assert_eq!(sent(&mut node).len(), 4);
    report(&mut node, 4, &[5, 20]);
    assert_eq!(sent(&mut node), []);
    report(&mut node, 1, &[2, 40]);
    assert_eq!(sent(&mut node), [1]);
    assert_eq!(node.machine.ends(), []);
    node.receive_made(ack(0), &[]);
    // An old report, whose packets are acknowledged.
    report(&mut node, 0, &[2]);
    assert_eq!(sent(&mut node), []);
    node.receive_made(ack(3), &[]);
    assert_eq!(node.machine.ends().len(), 4);
}

#[test]
fn a_read_request_among_missing_packets_is_sent_again_as_a_whole() {
    let mut pair = Pair::new(RC);
    pair.b.queue_pair.attributes_mut().max_kept = 64;
    pair.b.machine.post_receive(0, 8);
    pair.b.machine.post_receive(2, 8);
    pair.a.post_send(0, vec![1; 8]);
    let (read, key) = read(&mut pair, 1, 256 * 5);
    pair.a.post(read);
    pair.a.post_send(2, vec![2; 8]);
    let (mut lost, mut sent) = (false, Vec::new());
    pair.run_with(|from, packet| {
        let opcode = packet.header.bth.opcode;
        if from == Direction::A {
            sent.push(opcode.operation);
            if opcode.operation == O::ReadRequest && !lost {
                lost = true;
                return WireEffect::Drop;
            }
        }
        WireEffect::Deliver
    });
    let again = [O::SendOnly, O::ReadRequest, O::SendOnly, O::ReadRequest];
    assert_eq!(sent, again);
    assert_eq!(pair.a.machine.bytes(key), pattern(256 * 5));
    assert_eq!(pair.a.machine.ends().len(), 3);
    assert_eq!(pair.b.machine.received.len(), 2);
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 0);
}

#[test]
fn all_messages_arrive_although_any_two_packets_are_lost() {
    for first in 0..24 {
        for second in 0..24 {
            let mut pair = Pair::new(RC);
            pair.b.queue_pair.attributes_mut().max_kept = 8;
            let key = pair.b.machine.post_receive(0, 256 * 10);
            pair.a.post_send(0, pattern(256 * 10));
            let mut count = 0;
            pair.run_with(|_, _| {
                count += 1;
                match count - 1 == first || count - 1 == second {
                    true => WireEffect::Drop,
                    false => WireEffect::Deliver,
                }
            });
            assert_eq!(pair.b.machine.bytes(key), pattern(256 * 10));
            assert_eq!(pair.a.machine.ends(), [(0, S::Success)]);
            assert_eq!(pair.b.machine.receive_ends(), [(0, S::Success)]);
        }
    }
}
