//! Tests of messages for which no receive is posted.

use super::*;

#[test]
fn a_send_without_a_receive_changes_nothing() {
    let mut node = node();
    let not_ready = Some(Syndrome::ReceiverNotReady { timer: 1 });
    node.receive_made(made(O::SendOnly, 0), &[1]);
    node.receive_made(made(O::SendOnly, 1), &[2]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, not_ready)]);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, not_ready)]);
    assert_eq!(node.queue_pair.receive_sequence(), Sequence::new(FIRST));
    node.machine.post_receive(5, 1);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
    assert_eq!(node.machine.receive_ends(), [(5, S::Success)]);
    assert_eq!(node.machine.counted(Counter::SentRnr), 2);
}

#[test]
fn immediate_data_without_a_receive_delays_only_its_packet() {
    let mut node = node();
    let key = node.machine.register(vec![0; 300]);
    let remote = node.machine.remote(key, 0);
    node.receive_made(addressed(O::WriteFirst, 0, remote, 300), &[1; 256]);
    let mut last = made(O::WriteLastImmediate, 1);
    last.immediate = Some([9; 4]);
    node.receive_made(last, &[2; 44]);
    let not_ready = Some(Syndrome::ReceiverNotReady { timer: 1 });
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, not_ready)]);
    assert_eq!(node.machine.bytes(key)[255..258], [1, 0, 0]);
    node.machine.post_receive(5, 0);
    node.receive_made(last, &[2; 44]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    assert_eq!(node.machine.bytes(key)[255..258], [1, 2, 2]);
    let (completion, _) = &node.machine.received[0];
    assert_eq!(completion.length, 300);
    assert_eq!(completion.immediate, Some([9; 4]));
}
