//! Tests of packets that are kept after a gap.

use super::*;

/// Creates node 2, which keeps packets after a gap.
fn keeping(most: u32) -> Node {
    let mut node = node();
    node.queue_pair.attributes_mut().max_kept = most;
    for id in 0..50 {
        node.machine.post_receive(id, 8);
    }
    node
}

/// Returns the sequence number of the only gap report in `packets`, as the index of the packet, and
/// the bits of the report.
fn report(packets: &[Vec<u8>]) -> (u32, Vec<u8>) {
    let mut reports = packets.iter().filter_map(|bytes| {
        let packet = Packet::parse(bytes).unwrap();
        let place = answer(bytes).1;
        (packet.header.bth.opcode == Opcode::GAPS).then(|| (place, packet.payload.to_vec()))
    });
    let report = reports.next().expect("a gap report");
    assert_eq!(reports.next(), None);
    report
}

fn receive_sends(node: &mut Node, places: impl IntoIterator<Item = u32>) {
    for place in places {
        node.receive_made(made(O::SendOnly, place), &[place as u8]);
    }
}

fn completed(node: &Node) -> Vec<u64> {
    node.machine
        .receive_ends()
        .iter()
        .map(|end| end.0)
        .collect()
}

#[test]
fn packets_after_a_gap_are_executed_in_order_once_the_gap_is_filled() {
    let mut node = keeping(64);
    receive_sends(&mut node, [0, 2, 4, 3, 3]);
    let packets = node.transmit_all(Time::default());
    assert_eq!(report(&packets), (1, vec![0b0111_0000, 0, 0, 0]));
    // The report comes before the NAK, which is that of a peer that keeps nothing.
    assert_eq!(answer(&packets[0]).0, O::ReadResponseOnly);
    assert_eq!(answer(&packets[1]), refusal(1, Nak::SequenceError));
    assert_eq!(packets.len(), 2);
    assert_eq!(completed(&node), [0]);
    receive_sends(&mut node, [1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 4, ACK)]);
    let lengths: Vec<_> = node
        .machine
        .received
        .iter()
        .map(|end| end.0.length)
        .collect();
    assert_eq!((completed(&node), lengths), ((0..5).collect(), vec![1; 5]));
    // Repetitions of kept packets are duplicates.
    receive_sends(&mut node, [2, 3, 4]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 4, ACK)]);
    assert_eq!(completed(&node).len(), 5);
}

#[test]
fn packets_above_the_path_mtu_are_not_kept() {
    let mut node = keeping(64);
    receive_sends(&mut node, [0]);
    node.receive_made(made(O::SendOnly, 2), &[2; 1 << 13]);
    // No gap report: only the NAK of a peer that keeps nothing.
    let packets = node.transmit_all(Time::default());
    assert_eq!(packets.len(), 1);
    assert_eq!(answer(&packets[0]), refusal(1, Nak::SequenceError));
    // The packet is refused only when it arrives again in order.
    receive_sends(&mut node, [1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    assert_eq!(completed(&node), [0, 1]);
}

#[test]
fn each_of_several_gaps_is_requested_in_turn() {
    let mut node = keeping(64);
    receive_sends(&mut node, [1, 3, 40]);
    let (place, bits) = report(&node.transmit_all(Time::default()));
    assert_eq!(place, 0);
    assert_eq!(bits, [0b0101_0000, 0, 0, 0, 0, 0b1000_0000, 0, 0]);
    receive_sends(&mut node, [0]);
    let packets = node.transmit_all(Time::default());
    assert_eq!(report(&packets).0, 2);
    assert_eq!(answer(&packets[1]), refusal(2, Nak::SequenceError));
    receive_sends(&mut node, 2..40);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 40, ACK)]);
}

#[test]
fn packets_beyond_the_limit_are_not_kept() {
    let mut node = keeping(3);
    receive_sends(&mut node, 1..6);
    let (_, bits) = report(&node.transmit_all(Time::default()));
    assert_eq!(bits, [0b0110_0000, 0, 0, 0]);
    receive_sends(&mut node, [0]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 2, ACK)]);
    receive_sends(&mut node, 3..6);
    assert_eq!(completed(&node), (0..6).collect::<Vec<_>>());
}

#[test]
fn a_packet_that_requests_an_acknowledgement_is_answered_with_a_report() {
    let mut node = keeping(64);
    receive_sends(&mut node, [1]);
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    let mut quiet = made(O::SendOnly, 2);
    quiet.bth.acknowledge = false;
    node.receive_made(quiet, &[2]);
    assert_eq!(answers(&mut node), []);
    // A repetition that requests an acknowledgement, and a new packet.
    for place in [1, 3] {
        receive_sends(&mut node, [place]);
        assert_eq!(report(&node.transmit_all(Time::default())).0, 0);
    }
}

#[test]
fn requests_with_a_response_of_their_own_are_not_kept() {
    let mut node = keeping(64);
    let key = node.machine.register(vec![1; 8]);
    let remote = node.machine.remote(key, 0);
    node.receive_made(atomic(1, remote, 1), &[]);
    node.receive_made(addressed(O::ReadRequest, 2, remote, 8), &[]);
    assert_eq!(answers(&mut node), [refusal(0, Nak::SequenceError)]);
    receive_sends(&mut node, [0]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
    assert_eq!(node.machine.bytes(key), [1; 8]);
}

#[test]
fn a_kept_message_without_a_receive_is_refused_in_its_turn() {
    let mut node = keeping(64);
    node.machine.receives.truncate(2);
    receive_sends(&mut node, [1, 2, 3]);
    node.transmit_all(Time::default());
    receive_sends(&mut node, [0]);
    let timer = node.queue_pair.attributes().min_rnr_timer;
    let not_ready = Some(Syndrome::ReceiverNotReady { timer });
    assert_eq!(answers(&mut node), [(O::Acknowledge, 2, not_ready)]);
    // The peer must send all packets from the refused one on again, so none is kept.
    receive_sends(&mut node, [3, 4]);
    assert_eq!(answers(&mut node), []);
    for id in 60..64 {
        node.machine.post_receive(id, 8);
    }
    receive_sends(&mut node, [2]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 2, ACK)]);
    assert_eq!(completed(&node), [0, 1, 60]);
}
