//! Tests of the window: how many packets the requester has in flight, and which messages wait.

use super::*;

#[test]
fn the_window_limits_packets_in_flight() {
    let mut node = Node::ready_to_receive(1, RC);
    node.queue_pair.attributes_mut().window = 8;
    node.enter(State::ReadyToSend);
    node.post_send(1, pattern(256 * 20));
    let packets = node.transmit_all(Time::default());
    assert_eq!(packets.len(), 8);
    // The last packet of the window must request an acknowledgement, or the window would never
    // open.
    assert!(Packet::parse(&packets[7]).unwrap().header.bth.acknowledge);
    node.receive_made(ack(2), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 3);
}

#[test]
fn read_responses_are_limited_by_the_window() {
    let mut pair = Pair::new(RC);
    let mut a = Node::ready_to_receive(1, RC);
    a.queue_pair.attributes_mut().window = 16;
    a.enter(State::ReadyToSend);
    pair.a = a;
    let (request, key) = read(&mut pair, 1, 256 * 100);
    pair.a.post(request);
    let mut most = 0;
    let mut unacknowledged = 0i32;
    pair.run_with(|from, packet| {
        unacknowledged += match from {
            Direction::A => packet.header.reth.unwrap().length.div_ceil(256) as i32,
            Direction::B => -1,
        };
        most = most.max(unacknowledged);
        WireEffect::Deliver
    });
    assert_eq!(most, 16);
    assert_eq!(pair.a.machine.bytes(key), pattern(25_600));
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 0);
}

#[test]
fn reads_and_atomics_in_flight_are_limited_as_agreed() {
    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().max_initiated = 2;
    for id in 0..4 {
        let request = lone_read(&mut node, id, 8);
        node.post(request);
    }
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    node.receive_made(
        response(O::ReadResponseOnly, 0, Syndrome::Ack { credits: 31 }),
        &[1; 8],
    );
    assert_eq!(node.transmit_all(Time::default()).len(), 1);
}

#[test]
fn a_queue_pair_without_read_resources_fails_reads_locally() {
    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().max_initiated = 0;
    let request = lone_read(&mut node, 5, 8);
    node.post(request);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.machine.ends(), [(5, S::LocalQueuePairOperation)]);
    assert_eq!(node.queue_pair.state(), State::Error);
}

#[test]
fn a_small_message_waits_only_for_a_requested_acknowledgement() {
    let mut node = Node::ready_to_receive(1, RC);
    node.queue_pair.attributes_mut().window = 64;
    node.enter(State::ReadyToSend);
    for id in 0..16 {
        node.post_send(id, vec![1; 8]);
        assert!(!node.queue_pair.may_wait());
        node.transmit_all(Time::default());
    }
    node.post_send(16, vec![1; 8]);
    assert!(node.queue_pair.may_wait());
    // A message of more than one packet does not wait, and the small message before it is sent with
    // it.
    node.post_send(17, pattern(257));
    assert!(!node.queue_pair.may_wait());
    // The delayed messages are sent when the acknowledgement arrives.
    node.receive_made(ack(9), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 3);
    node.post_send(18, vec![1; 8]);
    assert!(!node.queue_pair.may_wait(), "nine packets are on the way");
}

#[test]
fn a_full_burst_does_not_wait() {
    for (length, most) in [(8, 64), (256, 64), (0, 64)] {
        let mut node = lone_sends(16);
        node.transmit_all(Time::default());
        let mut waiting = 0;
        loop {
            node.post_send(100, vec![1; length]);
            waiting += 1;
            if !node.queue_pair.may_wait() {
                break;
            }
        }
        assert_eq!(waiting, most);
    }
}

#[test]
fn requests_without_packets_or_acknowledgements_do_not_wait() {
    let mut node = lone_sends(20);
    node.transmit_all(Time::default());
    let local = SendOperation::LocalInvalidate { key: 1 };
    node.post(request(20, local, &[]));
    assert!(!node.queue_pair.may_wait());
    let mut node = Node::ready_to_send(1, Service::UnreliableConnection);
    for id in 0..40 {
        node.post_send(id, vec![1; 8]);
        assert!(!node.queue_pair.may_wait());
        node.transmit_all(Time::default());
    }
}

#[test]
fn a_delayed_acknowledgement_follows_the_next_message_of_the_program() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(1, 64);
    pair.a.post_send(2, vec![1; 8]);
    pair.deliver(Direction::A);
    assert!(pair.b.queue_pair.may_delay_transmission() && pair.b.queue_pair.must_acknowledge());
    pair.b.post_send(3, vec![2; 8]);
    assert!(!pair.b.queue_pair.may_delay_transmission());
    let packets = pair.b.transmit_all(pair.now);
    assert!(packets.len() == 2 && packets[0].len() > packets[1].len());
    assert!(!pair.b.queue_pair.must_acknowledge());
    pair.a.machine.post_receive(4, 64);
    for packet in packets {
        pair.a.receive(pair.now, &packet);
    }
    assert_eq!(pair.a.machine.ends(), [(2, S::Success)]);
}

#[test]
fn messages_without_a_completion_are_acknowledged_immediately() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.register(vec![0; 8]);
    let remote = pair.b.machine.remote(key, 0);
    let source = pair.a.machine.register(vec![1; 8]);
    let list = [pair.a.machine.segment(source, 0, 8)];
    let write = SendOperation::Write {
        remote,
        immediate: None,
    };
    pair.a.post(request(1, write, &list));
    pair.deliver(Direction::A);
    assert!(pair.b.queue_pair.must_acknowledge() && !pair.b.queue_pair.may_delay_transmission());
}

#[test]
fn a_failing_queue_pair_has_acknowledged_earlier_messages() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(1, 64);
    pair.a.post_send(2, vec![1; 8]);
    pair.deliver(Direction::A);
    let key = pair.b.machine.register(vec![0; 8]);
    let list = [pair.b.machine.segment(key, 0, 8)];
    pair.b.machine.deregister(key);
    pair.b.post(request(3, send(), &list));
    pair.deliver(Direction::B);
    assert_eq!(pair.b.machine.ends(), [(3, S::LocalProtection)]);
    assert_eq!(pair.a.machine.ends(), [(2, S::Success)]);
}
