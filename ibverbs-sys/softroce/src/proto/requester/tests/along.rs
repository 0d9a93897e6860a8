//! Acknowledgements within messages.

use std::net::Ipv4Addr;

use super::*;

/// Two on a host, of which one has got a message that it has not acknowledged yet.
fn kin() -> Pair {
    let mut pair = Pair::new(RC);
    for node in [&mut pair.a, &mut pair.b] {
        let path = node.queue_pair.attributes_mut().path.as_mut().unwrap();
        path.destination = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    }
    pair.b.machine.post_receive(1, 64);
    pair.a.machine.post_receive(4, 64);
    pair.a.post_send(2, vec![1; 8]);
    pair.deliver(From::A);
    pair
}

#[test]
fn an_acknowledgement_goes_within_a_message_where_that_is_understood() {
    let mut pair = kin();
    pair.b.post_send(3, vec![2; 8]);
    pair.b.post_send(3, vec![3; 8]);
    let packets = pair.b.transmit_all(pair.now);
    let parsed = |packet| Packet::parse(packet).unwrap().header;
    let headers: Vec<Header> = packets.iter().map(|packet| parsed(packet)).collect();
    assert_eq!(headers[0].bth.opcode.transport, Transport::Acknowledging);
    assert_eq!(headers[0].acknowledged, Some(FIRST));
    assert_eq!((headers.len(), headers[1].acknowledged), (2, None));
    assert!(!pair.b.queue_pair.owes());
    pair.a.receive(pair.now, &packets[0]);
    assert_eq!(pair.a.machine.ends(), [(2, S::Success)]);
    assert_eq!(pair.a.machine.receive_ends(), [(4, S::Success)]);
    // Once more, and as something that is already known.
    pair.a.receive(pair.now, &packets[0]);
    assert_eq!(pair.a.machine.counted(Counter::DuplicateRequest), 1);
    assert_eq!(pair.a.machine.ends().len(), 1);
}

#[test]
fn an_acknowledgement_that_was_lost_with_its_message_is_not_waited_for() {
    let mut pair = kin();
    pair.b.post_send(3, vec![2; 8]);
    assert_eq!(pair.b.transmit_all(pair.now).len(), 1);
    // Both begin again.
    pair.run();
    assert_eq!(pair.a.machine.ends(), [(2, S::Success)]);
    assert_eq!(pair.b.machine.ends(), [(3, S::Success)]);
    assert_eq!(pair.b.machine.receive_ends(), [(1, S::Success)]);
}

#[test]
fn what_cannot_take_an_acknowledgement_along_goes_before_it() {
    let mut pair = kin();
    let request = lone_read(&mut pair.b, 3, 8);
    pair.b.post(request);
    let packets = pair.b.transmit_all(pair.now);
    let operations: Vec<O> = packets.iter().map(|packet| operation(packet)).collect();
    assert_eq!(operations, [O::ReadRequest, O::Acknowledge]);
}

#[test]
fn who_fails_by_what_comes_along_takes_no_message() {
    let mut pair = kin();
    pair.a.queue_pair.attributes_mut().retry_count = 0;
    let request = lone_read(&mut pair.a, 5, 8);
    pair.a.post(request);
    pair.b.machine.post_receive(6, 64);
    pair.a.post_send(7, vec![0; 8]);
    let packets = pair.a.transmit_all(pair.now);
    // What is read does not come, and a message behind it is acknowledged.
    let mut header = Packet::parse(&packets[1]).unwrap().header;
    header.bth.opcode.transport = Transport::Acknowledging;
    header.bth.destination = 1;
    header.acknowledged = Some(header.bth.sequence);
    header.bth.sequence = pair.a.queue_pair.receive_sequence().value();
    pair.a.receive_made(header, &[0; 8]);
    assert_eq!(pair.a.queue_pair.state(), State::Error);
    assert_eq!(pair.a.machine.receive_ends(), [(4, S::Flushed)]);
}
