//! Tests of states, senders, and traffic in both directions.

use super::*;

#[test]
fn the_first_packet_establishes_the_communication() {
    let mut node = node();
    node.machine.post_receive(1, 8);
    let mut other = made(O::SendOnly, 0);
    other.bth.partition_key = 0x8001;
    node.receive_made(other, &[1]);
    assert_eq!(node.machine.events, []);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    node.receive_made(made(O::SendOnly, 1), &[1]);
    assert_eq!(node.machine.events, [Event::CommunicationEstablished]);
    let mut ready = Node::ready_to_send(2, RC);
    ready.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(ready.machine.events, []);
}

#[test]
fn packets_for_other_queue_pairs_are_dropped() {
    let changes: [fn(&mut Header); 6] = [
        |header| header.bth.destination = 3,
        |header| header.bth.destination = 0xff_ffff,
        |header| header.bth.partition_key = 0x8001,
        |header| header.bth.opcode.transport = Transport::UnreliableConnection,
        |header| header.bth.opcode.transport = Transport::UnreliableDatagram,
        |header| header.bth.opcode.transport = Transport::ExtendedReliableConnection,
    ];
    for change in changes {
        let mut node = node();
        node.machine.post_receive(1, 8);
        let mut header = made(O::SendOnly, 0);
        change(&mut header);
        node.receive_made(header, &[1]);
        assert_eq!(answers(&mut node), []);
        assert_eq!(node.machine.received.len(), 0);
    }
    for state in [State::Reset, State::Init, State::Error] {
        let mut node = Node::new(2, RC);
        *node.queue_pair.attributes_mut() = attributes(1);
        node.enter(State::Init);
        if state != State::Init {
            node.enter(state);
        }
        node.receive_made(made(O::SendOnly, 0), &[1]);
        assert_eq!(answers(&mut node), []);
    }
}

#[test]
fn unused_receives_stay_in_a_shared_queue() {
    let mut node = node();
    node.queue_pair.attributes_mut().shared_receive = true;
    node.machine.post_receive(1, 1000);
    node.machine.post_receive(2, 1000);
    node.receive_made(made(O::SendFirst, 0), &[1; 256]);
    node.enter(State::Error);
    node.enter(State::Error);
    // The receive that was taken is flushed.
    assert_eq!(node.machine.receive_ends(), [(1, S::Flushed)]);
    assert_eq!(node.machine.receives.len(), 1);
    assert_eq!(node.machine.events[1..], [Event::LastRequestReached]);
}

#[test]
fn reset_discards_all_state_without_completions() {
    let mut node = Node::ready_to_send(2, RC);
    node.machine.post_receive(1, 1000);
    node.post_send(1, vec![1; 8]);
    node.receive_made(made(O::SendFirst, 0), &[1; 256]);
    node.enter(State::Reset);
    assert_eq!(node.machine.ends(), []);
    assert_eq!(node.machine.receive_ends(), []);
    assert_eq!(node.queue_pair.outstanding(), 0);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.queue_pair.attributes().destination, 0);
}

#[test]
fn both_sides_send_concurrently() {
    let mut pair = Pair::new(RC);
    let mut keys = Vec::new();
    for id in 0..20 {
        let at_a = pair.a.machine.post_receive(id, 3000);
        let at_b = pair.b.machine.post_receive(id, 3000);
        pair.a.post_send(id, pattern(3000));
        pair.b.post_send(id, pattern(2999));
        keys.push((at_a, at_b));
    }
    let mut count = 0u32;
    pair.run_with(|_, _| {
        count += 1;
        match count % 17 {
            3 => WireEffect::Drop,
            8 => WireEffect::Duplicate,
            _ => WireEffect::Deliver,
        }
    });
    for (at_a, at_b) in keys {
        assert_eq!(pair.a.machine.bytes(at_a)[..2999], pattern(2999));
        assert_eq!(pair.b.machine.bytes(at_b), pattern(3000));
    }
    for node in [&pair.a, &pair.b] {
        assert!(
            node.machine
                .ends()
                .into_iter()
                .eq((0..20).map(|id| (id, S::Success)))
        );
    }
}

#[test]
fn responses_are_sent_before_requests_and_do_not_block_requests() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(pattern(100_000));
    let here = pair.a.machine.register(vec![0; 100_000]);
    let list = [pair.a.machine.segment(here, 0, 100_000)];
    let remote = pair.b.machine.remote(there, 0);
    pair.a
        .post(request(1, SendOperation::Read { remote }, &list));
    pair.a.machine.post_receive(1, 8);
    pair.b.post_send(1, vec![1; 8]);
    let mut answered_first = false;
    pair.run_with(|from, packet| {
        let opcode = packet.header.bth.opcode;
        answered_first |= from == Direction::B && opcode.is_response();
        assert!(from == Direction::A || answered_first || opcode.is_send());
        WireEffect::Deliver
    });
    assert_eq!(pair.a.machine.bytes(here), pattern(100_000));
    assert_eq!(pair.b.machine.ends(), [(1, S::Success)]);
}
