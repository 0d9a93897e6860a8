//! Tests of gaps, duplicates and acknowledgements.

use super::*;

#[test]
fn a_gap_is_reported_once_until_filled() {
    let mut node = node();
    for id in 0..8 {
        node.machine.post_receive(id, 8);
    }
    for place in [0, 2, 3] {
        node.receive_made(made(O::SendOnly, place), &[1]);
    }
    assert_eq!(answers(&mut node), [refusal(1, Nak::SequenceError)]);
    for place in [4, 2, 100, 3] {
        node.receive_made(made(O::SendOnly, place), &[1]);
    }
    assert_eq!(answers(&mut node), []);
    assert_eq!(node.machine.received.len(), 1);
    // The gap is filled, and another gap follows.
    node.receive_made(made(O::SendOnly, 1), &[1]);
    node.receive_made(made(O::SendOnly, 3), &[1]);
    assert_eq!(answers(&mut node), [refusal(2, Nak::SequenceError)]);
    assert_eq!(node.machine.received.len(), 2);
}

#[test]
fn a_gap_that_is_filled_before_the_report_is_not_reported() {
    let mut node = node();
    node.machine.post_receive(0, 8);
    node.receive_made(made(O::SendOnly, 1), &[1]);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
}

#[test]
fn duplicate_sends_and_writes_are_acknowledged_but_not_executed() {
    let mut node = node();
    node.machine.post_receive(0, 8);
    node.machine.post_receive(1, 8);
    let key = node.machine.register(vec![0; 8]);
    let remote = node.machine.remote(key, 0);
    let write = addressed(O::WriteOnly, 1, remote, 4);
    node.receive_made(made(O::SendOnly, 0), &[1; 4]);
    node.receive_made(write, &[2; 4]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    for _ in 0..3 {
        node.receive_made(made(O::SendOnly, 0), &[3; 4]);
        node.receive_made(write, &[3; 4]);
        // Everything that was executed is acknowledged, not only the duplicate.
        assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    }
    assert_eq!(node.machine.bytes(key), [2, 2, 2, 2, 0, 0, 0, 0]);
    assert_eq!(node.machine.receive_ends(), [(0, S::Success)]);
    assert_eq!(node.machine.counted(Counter::DuplicateRequest), 6);
}

#[test]
fn a_packet_without_an_acknowledgement_request_gets_none() {
    let mut node = node();
    node.machine.post_receive(0, 1000);
    let mut first = made(O::SendFirst, 0);
    first.bth.acknowledge = false;
    node.receive_made(first, &[1; 256]);
    assert_eq!(answers(&mut node), []);
    node.receive_made(made(O::SendLast, 1), &[1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
}

#[test]
fn acknowledgements_contain_the_message_sequence_number() {
    let mut node = node();
    node.machine.post_receive(0, 1000);
    let key = node.machine.register(vec![0; 600]);
    let remote = node.machine.remote(key, 0);
    node.receive_made(made(O::SendFirst, 0), &[1; 256]);
    node.receive_made(made(O::SendLast, 1), &[1]);
    node.receive_made(addressed(O::ReadRequest, 2, remote, 600), &[]);
    node.receive_made(atomic(5, remote, 1), &[]);
    let counts: Vec<_> = node
        .transmit_all(Time::default())
        .iter()
        .filter_map(|bytes| Packet::parse(bytes).unwrap().header.aeth)
        .map(|aeth| aeth.message_sequence)
        .collect();
    // The first and last packets of the read's response, and the atomic's response.
    assert_eq!(counts, [2, 2, 3]);
}
