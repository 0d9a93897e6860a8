//! Tests of extended reliable connections.

use super::*;

#[test]
fn a_target_consumes_receives_of_the_queue_in_the_packet() {
    let mut pair = Pair::of(
        Node::ready_to_send(1, Service::XrcInitiator),
        Node::ready_to_receive(2, Service::XrcTarget),
    );
    let mut keys = Vec::new();
    for queue in [5, 6] {
        let (key, request) = pair.b.machine.receive_request(queue, 700);
        pair.b
            .machine
            .xrc_receives
            .insert(queue as u32, [request].into());
        keys.push(key);
    }
    for (id, queue) in [(0, 6), (1, 5)] {
        let here = pair.a.machine.register(pattern(600 + id as usize));
        let list = [pair.a.machine.segment(here, 0, 600 + id as u32)];
        let mut request = request(id, send(), &list);
        request.xrc_srq = Some(queue);
        pair.a.post(request);
    }
    let there = pair.b.machine.register(pattern(2000));
    let here = pair.a.machine.register(vec![0; 2000]);
    let list = [pair.a.machine.segment(here, 0, 2000)];
    let remote = pair.b.machine.remote(there, 0);
    let mut read = request(2, SendOperation::Read { remote }, &list);
    read.xrc_srq = Some(5);
    pair.a.post(read);
    pair.run();
    assert!(
        pair.a
            .machine
            .ends()
            .into_iter()
            .eq((0..3).map(|id| (id, S::Success)))
    );
    let queues: Vec<_> = pair
        .b
        .machine
        .received
        .iter()
        .map(|(_, queue)| *queue)
        .collect();
    assert_eq!(queues, [Some(6), Some(5)]);
    assert_eq!(pair.b.machine.bytes(keys[1])[..600], pattern(600));
    assert_eq!(pair.b.machine.bytes(keys[0])[..601], pattern(601));
    assert_eq!(pair.a.machine.bytes(here), pattern(2000));

    // The shared receive queue does not exist.
    let mut wrong = request(3, send(), &[]);
    wrong.xrc_srq = Some(7);
    pair.a.post(wrong);
    pair.run();
    assert_eq!(
        pair.a.machine.ends().last(),
        Some(&(3, S::RemoteInvalidRequest))
    );
    assert!(pair.b.machine.events.contains(&Event::InvalidRequest));
    assert!(pair.b.machine.events.contains(&Event::LastRequestReached));
}

#[test]
fn an_xrc_request_that_consumes_no_receive_also_contains_a_queue() {
    let mut pair = Pair::of(
        Node::ready_to_send(1, Service::XrcInitiator),
        Node::ready_to_receive(2, Service::XrcTarget),
    );
    let there = pair.b.machine.register(pattern(8));
    let here = pair.a.machine.register(vec![0; 8]);
    let list = [pair.a.machine.segment(here, 0, 8)];
    let remote = pair.b.machine.remote(there, 0);
    let mut wrong = request(1, SendOperation::Read { remote }, &list);
    wrong.xrc_srq = Some(7);
    pair.a.post(wrong);
    pair.run();
    assert_eq!(pair.a.machine.ends(), [(1, S::RemoteInvalidRequest)]);
    assert_eq!(pair.a.machine.bytes(here), [0; 8]);
}

#[test]
fn each_xrc_side_accepts_only_packets_of_its_direction() {
    let mut initiator = Node::ready_to_send(2, Service::XrcInitiator);
    initiator.machine.post_receive(1, 8);
    let mut header = made(O::SendOnly, 0);
    header.bth.opcode.transport = Transport::ExtendedReliableConnection;
    header.xrc_srq = Some(1);
    initiator.receive_made(header, &[1]);
    assert_eq!(answers(&mut initiator), []);
    assert_eq!(initiator.machine.receives.len(), 1);
    initiator.enter(State::Error);
    assert_eq!(initiator.machine.receives.len(), 1);
    let mut target = Node::ready_to_send(1, Service::XrcTarget);
    target.post_send(1, vec![1]);
    assert!(target.transmit(Time::default()).is_none());
    assert_eq!(target.machine.ends(), [(1, S::LocalQueuePairOperation)]);
    assert_eq!(target.machine.sends[0].opcode, CompletionOpcode::Send);
}
