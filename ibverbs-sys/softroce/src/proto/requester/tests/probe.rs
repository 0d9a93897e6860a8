//! Tests of probes, by which the requester detects losses without waiting for a timeout.

use super::*;

/// Creates a node that has sent `sends` messages and knows the round trip time, because it received
/// a response before.
fn acquainted(sends: u64) -> Node {
    let mut node = lone_sends(1);
    node.queue_pair.attributes_mut().ack_timeout = Some(Duration::from_millis(67));
    node.transmit_all(Time::default());
    node.receive_made(ack(0), &[]);
    for id in 1..=sends {
        node.post_send(id, vec![id as u8; 8]);
    }
    node.transmit_all(Time::default());
    node
}

/// Advances the time until the probe is due. Returns the sequence numbers that are sent then.
fn probe(node: &mut Node) -> Vec<u32> {
    let due = node.queue_pair.next_timeout().unwrap();
    node.queue_pair.handle_timeout(due, &mut node.machine);
    node.transmit_all(due)
        .iter()
        .map(|bytes| sequence(bytes))
        .collect()
}

fn place(place: u32) -> u32 {
    Sequence::new(FIRST + place).value()
}

#[test]
fn a_probe_detects_that_the_last_packets_were_lost() {
    let mut node = acquainted(5);
    assert_eq!(probe(&mut node), [place(1)]);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 0);
    // The peer received only the probe, so all later packets are sent again.
    node.receive_made(ack(1), &[]);
    let again = node.transmit_all(Time::default());
    assert!(
        again
            .iter()
            .map(|bytes| sequence(bytes))
            .eq((2..6).map(place))
    );
    node.receive_made(ack(5), &[]);
    assert_eq!(node.machine.ends().len(), 6);
    assert_eq!(node.queue_pair.next_timeout(), None);
}

#[test]
fn the_window_is_restored_for_a_peer_that_was_only_slow() {
    let mut node = acquainted(16);
    assert_eq!(probe(&mut node), [place(1)]);
    // The peer acknowledges the first packet, but has received the others too.
    node.receive_made(ack(1), &[]);
    let again = node.transmit_all(Time::default());
    assert!(again.len() < 10, "{}", again.len());
    node.receive_made(ack(16), &[]);
    assert_eq!(node.machine.ends().len(), 17);
    for id in 0..40 {
        node.post_send(id, vec![0; 8]);
    }
    assert!(node.transmit_all(Time::default()).len() >= 16);
}

#[test]
fn a_probe_detects_that_only_the_acknowledgement_was_lost() {
    let mut node = acquainted(5);
    assert_eq!(probe(&mut node), [place(1)]);
    node.receive_made(ack(5), &[]);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.machine.counted(Counter::Retransmitted), 1);
}

#[test]
fn a_probe_recovers_from_the_loss_of_a_retransmission() {
    let mut node = acquainted(5);
    node.receive_made(nak(2, Nak::SequenceError), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 4);
    // The peer sends no second NAK for the gap, so a probe finds the loss.
    assert_eq!(probe(&mut node), [place(2)]);
    node.receive_made(ack(2), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 3);
}

#[test]
fn a_probe_requests_the_rest_of_a_read() {
    let mut node = acquainted(0);
    let request = lone_read(&mut node, 1, 256 * 100);
    node.post(request);
    node.transmit_all(Time::default());
    let data = Syndrome::Ack { credits: 31 };
    for part in 1..4 {
        let operation = if part == 1 {
            O::ReadResponseFirst
        } else {
            O::ReadResponseMiddle
        };
        node.receive_made(response(operation, part, data), &[1; 256]);
    }
    let due = node.queue_pair.next_timeout().unwrap();
    node.queue_pair.handle_timeout(due, &mut node.machine);
    let packets = node.transmit_all(due);
    let reth = Packet::parse(&packets[0]).unwrap().header.reth.unwrap();
    // The read request repeats the rest of the run (response packets of one read request).
    assert_eq!(sequence(&packets[0]), place(4));
    assert_eq!(reth.length, 256 * 29);
}

#[test]
fn the_number_of_probes_is_limited_and_probes_are_not_retries() {
    let mut node = acquainted(1);
    let mut sent = Vec::new();
    while node.queue_pair.state() == State::ReadyToSend {
        let due = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(due, &mut node.machine);
        sent.push(node.transmit_all(due).len());
    }
    // Three probes are sent, then one packet for each retry. The request fails after the last
    // retry.
    assert_eq!(sent.iter().sum::<usize>(), 3 + 7);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 8);
    assert_eq!(node.machine.ends()[1..], [(1, S::RetryExceeded)]);
}
