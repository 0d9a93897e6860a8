//! Tests of fences, of the order of requests, and of the paths of packets.

use super::*;

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let mut node = Node::ready_to_send(1, RC);
    let read = lone_read(&mut node, 0, 8);
    node.post(read);
    node.post_send(1, vec![1; 8]);
    let key = node.machine.register(vec![2; 8]);
    let mut fenced = request(2, send(), &[node.machine.segment(key, 0, 8)]);
    fenced.fence = true;
    node.post(fenced);
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    let header = response(O::ReadResponseOnly, 0, Syndrome::Ack { credits: 31 });
    node.receive_made(header, &[1; 8]);
    // A fence waits for reads and atomics, but not for the send, which is still unacknowledged.
    assert_eq!(node.transmit_all(Time::default()).len(), 1);
}

#[test]
fn windows_are_bound_and_invalidated_in_order() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(0, 8);
    let region = pair.a.machine.register(vec![0; 64]);
    let window = pair.a.machine.window();
    let binding = WindowBinding {
        window,
        key: window,
        region,
        address: pair.a.machine.segment(region, 8, 0).address,
        length: 16,
        access: AccessFlags::REMOTE_WRITE,
    };
    pair.a.post_send(1, vec![1; 8]);
    pair.a.post(request(2, SendOperation::Bind(binding), &[]));
    pair.a.transmit_all(pair.now);
    assert!(pair.a.machine.is_valid(window));
    // The completion of the local operation waits for the completion of the send.
    assert_eq!(pair.a.machine.ends(), []);
    pair.a.receive_made(ack(0), &[]);
    pair.a.post(request(
        3,
        SendOperation::LocalInvalidate { key: window },
        &[],
    ));
    pair.a.transmit_all(pair.now);
    assert!(!pair.a.machine.is_valid(window));
    let ends = pair.a.machine.ends();
    assert!(ends.into_iter().eq((1..4).map(|id| (id, S::Success))));
    assert_eq!(pair.a.machine.sends[1].opcode, CompletionOpcode::Bind);
    assert_eq!(
        pair.a.machine.sends[2].opcode,
        CompletionOpcode::LocalInvalidate
    );
}

#[test]
fn a_window_is_bound_once_although_earlier_requests_are_sent_again() {
    let mut node = lone_sends(1);
    let region = node.machine.register(vec![0; 64]);
    let window = node.machine.window();
    let address = node.machine.segment(region, 0, 0).address;
    let binding = WindowBinding {
        window,
        key: window,
        region,
        address,
        length: 16,
        access: AccessFlags::empty(),
    };
    node.post(request(1, SendOperation::Bind(binding), &[]));
    node.post_send(2, vec![1; 8]);
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    let due = node.queue_pair.next_timeout().unwrap();
    node.queue_pair.handle_timeout(due, &mut node.machine);
    assert_eq!(node.transmit_all(due).len(), 2);
    node.receive_made(ack(1), &[]);
    assert!(
        node.machine
            .ends()
            .into_iter()
            .eq((0..3).map(|id| (id, S::Success)))
    );
    // Binding a window that is bound already fails, but only after the earlier requests have
    // completed.
    node.post_send(3, vec![1; 8]);
    node.post(request(4, SendOperation::Bind(binding), &[]));
    node.post_send(5, vec![1; 8]);
    assert_eq!(node.transmit_all(due).len(), 1);
    node.receive_made(ack(2), &[]);
    assert_eq!(
        node.machine.ends()[3..],
        [(3, S::Success), (4, S::MemoryWindowBind), (5, S::Flushed)]
    );
    assert_eq!(node.queue_pair.state(), State::Error);
}

#[test]
fn draining_completes_started_requests_and_starts_none() {
    let mut node = Node::ready_to_receive(1, RC);
    node.queue_pair.attributes_mut().window = 1;
    node.enter(State::ReadyToSend);
    node.post_send(1, pattern(600));
    node.post_send(2, vec![1; 8]);
    assert_eq!(node.transmit_all(Time::default()).len(), 1);
    node.enter(State::SendQueueDrained);
    node.enter(State::SendQueueDrained);
    assert!(node.queue_pair.is_draining());
    for place in 0..3 {
        assert_eq!(node.machine.events, []);
        node.receive_made(ack(place), &[]);
        node.transmit_all(Time::default());
    }
    assert_eq!(node.machine.ends(), [(1, S::Success)]);
    assert_eq!(node.machine.events, [Event::SendQueueDrained]);
    assert!(!node.queue_pair.is_draining());
    assert!(node.transmit(Time::default()).is_none());
    node.enter(State::ReadyToSend);
    assert_eq!(node.transmit_all(Time::default()).len(), 1);
    assert_eq!(node.machine.events, [Event::SendQueueDrained]);

    // No request has been started, so the send queue is drained immediately.
    let mut node = lone_sends(1);
    node.enter(State::SendQueueDrained);
    assert_eq!(node.machine.events, [Event::SendQueueDrained]);
}

#[test]
fn packets_are_sent_to_the_address_of_the_attributes() {
    let mut node = lone_sends(1);
    let mut out = vec![1, 2, 3];
    let way = node
        .queue_pair
        .poll_transmit(Time::default(), &mut node.machine, &mut out);
    assert_eq!(way, Some(path()));
    assert_eq!(out[..3], [1, 2, 3]);
    let packet = Packet::parse(&out[3..]).unwrap();
    assert_eq!(packet.header.bth.destination, attributes(2).destination);
    assert_eq!(packet.header.bth.sequence, FIRST);
    assert!(packet.header.bth.migrated);
}
