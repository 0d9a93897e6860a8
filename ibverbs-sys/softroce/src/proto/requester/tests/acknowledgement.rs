//! Tests that the requester requests acknowledgements for the right packets, and handles received
//! ones.

use super::*;

#[test]
fn packets_that_arrive_together_get_one_acknowledgement() {
    let mut pair = Pair::new(RC);
    for id in 0..10 {
        pair.b.machine.post_receive(id, 8);
        pair.a.post_send(id, vec![1; 8]);
    }
    let mut acknowledgements = 0;
    pair.run_with(|from, _| {
        acknowledgements += usize::from(from == Direction::B);
        WireEffect::Deliver
    });
    assert_eq!(acknowledgements, 1);
    assert!(
        pair.a
            .machine
            .ends()
            .into_iter()
            .eq((0..10).map(|id| (id, S::Success)))
    );
}

#[test]
fn an_acknowledgement_is_requested_at_the_end_of_and_within_a_message() {
    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().window = 64;
    node.post_send(1, pattern(256 * 40));
    let asked = |node: &mut Node| -> Vec<usize> {
        let packets = node.transmit_all(Time::default());
        let asked = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().header.bth.acknowledge;
        let places = 0..packets.len();
        places.filter(|place| asked(&packets[*place])).collect()
    };
    // An acknowledgement is requested after each quarter of the window.
    assert_eq!(asked(&mut node), [3, 7, 11, 15]);
    node.receive_made(ack(15), &[]);
    assert_eq!(asked(&mut node), [7, 15, 23]);
}

#[test]
fn an_acknowledgement_does_not_complete_a_read() {
    let mut node = lone_sends(1);
    let request = lone_read(&mut node, 1, 8);
    node.post(request);
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    node.receive_made(ack(1), &[]);
    assert_eq!(node.machine.ends(), [(0, S::Success)]);
    let again = node.transmit_all(Time::default());
    assert_eq!(again.len(), 1);
    assert_eq!(operation(&again[0]), O::ReadRequest);
}

#[test]
fn a_read_response_acknowledges_earlier_requests() {
    let mut node = lone_sends(2);
    let request = lone_read(&mut node, 2, 8);
    node.post(request);
    node.transmit_all(Time::default());
    let header = response(O::ReadResponseOnly, 2, Syndrome::Ack { credits: 31 });
    node.receive_made(header, &[7; 8]);
    assert!(
        node.machine
            .ends()
            .into_iter()
            .eq((0..3).map(|id| (id, S::Success)))
    );
    assert_eq!(node.machine.bytes(3), [7; 8]);
}

#[test]
fn stale_and_impossible_acknowledgements_are_ignored() {
    let mut node = lone_sends(3);
    node.transmit(Time::default());
    node.transmit(Time::default());
    // Acknowledges packets that were never sent, and packets that were answered long ago.
    for place in [
        2,
        3,
        100,
        0x7f_ffff,
        0u32.wrapping_sub(1),
        0u32.wrapping_sub(50),
    ] {
        node.receive_made(ack(place), &[]);
        node.receive_made(nak(place, Nak::RemoteAccessError), &[]);
        node.receive_made(not_ready(place, 1), &[]);
        let header = response(O::ReadResponseOnly, place, Syndrome::Ack { credits: 31 });
        node.receive_made(header, &[7; 8]);
    }
    assert_eq!(node.machine.ends(), []);
    node.receive_made(ack(1), &[]);
    node.receive_made(ack(0), &[]);
    node.receive_made(nak(0, Nak::SequenceError), &[]);
    assert_eq!(node.machine.ends(), [(0, S::Success), (1, S::Success)]);
    assert_eq!(node.queue_pair.state(), State::ReadyToSend);
}
