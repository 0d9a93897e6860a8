//! Messages of unreliable connections through the shared ring.

use super::ring_message::{hear, poll, ring_message, say, two_of};
use crate::proto::testing::{Machine, Node, pattern, request};
use crate::proto::{
    CompletionStatus as S, Counter, Remote, SendOperation, SendRequest, Service, State, Time,
    TransmitUrgency,
};
use crate::transfer::{MAX_CHUNKS_PART, MAX_SLOT_BYTES, PeerMemory};

const UC: Service = Service::UnreliableConnection;

/// Number of parts of the long messages of these tests.
const PARTS: usize = 3;

fn long() -> Vec<u8> {
    pattern(PARTS * MAX_CHUNKS_PART as usize)
}

/// Sends the next `count` parts of messages, and drops those for which `is_lost` returns `true`.
fn say_parts(a: &mut Node, b: &mut Node, count: usize, is_lost: impl Fn(usize) -> bool) {
    for part in 0..count {
        let said = ring_message(a).unwrap();
        if !is_lost(part) {
            hear(b, &said);
        }
    }
    assert_eq!(ring_message(a), None);
}

#[test]
fn messages_complete_once_sent_and_are_not_acknowledged() {
    let (mut a, mut b) = two_of(UC);
    b.machine.post_receive(5, 64);
    let key = b.machine.post_receive(6, 1 << 20);
    a.post_send(1, pattern(MAX_SLOT_BYTES));
    let short = ring_message(&mut a).unwrap();
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    hear(&mut b, &short);
    a.post_send(2, long());
    say_parts(&mut a, &mut b, PARTS, |_| false);
    assert_eq!(a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success), (6, S::Success)]);
    assert_eq!(b.machine.bytes(key)[..long().len()], long());
    assert!(b.queue_pair.is_silent());
    assert_eq!(a.queue_pair.next_timeout(), None);
}

#[test]
fn a_message_without_a_receive_is_dropped_and_the_next_one_arrives() {
    let (mut a, mut b) = two_of(UC);
    a.post_send(1, long());
    say_parts(&mut a, &mut b, PARTS, |_| false);
    assert_eq!(b.machine.counted(Counter::ReceiveDropped), 1);
    let key = b.machine.post_receive(5, 64);
    a.post_send(2, pattern(20));
    say(&mut a, &mut b);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
    assert_eq!(b.machine.bytes(key)[..20], pattern(20));
    assert_eq!(b.queue_pair.state(), State::ReadyToSend);
}

#[test]
fn a_message_with_a_missing_part_is_dropped_and_its_receive_is_used_for_the_next_message() {
    for lost in 0..PARTS {
        let (mut a, mut b) = two_of(UC);
        let key = b.machine.post_receive(5, 1 << 20);
        a.post_send(1, long());
        a.post_send(2, pattern(600));
        say_parts(&mut a, &mut b, PARTS + 1, |part| part == lost);
        assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
        assert_eq!(b.machine.received[0].0.length, 600);
        assert_eq!(b.machine.bytes(key)[..600], pattern(600));
        assert_eq!(b.machine.counted(Counter::OutOfSequenceRequest), 1);
    }
}

#[test]
fn a_receive_that_is_too_small_fails_only_the_receiver() {
    let (mut a, mut b) = two_of(UC);
    b.machine.post_receive(5, 100);
    a.post_send(1, pattern(101));
    say(&mut a, &mut b);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(b.machine.receive_ends(), [(5, S::LocalLength)]);
    assert_eq!(b.queue_pair.state(), State::Error);
    assert_eq!(a.queue_pair.state(), State::ReadyToSend);
}

#[test]
fn parts_and_packets_of_a_message_can_follow_each_other() {
    let (mut a, mut b) = two_of(UC);
    let key = b.machine.post_receive(5, 1 << 20);
    a.post_send(1, long());
    say(&mut a, &mut b);
    // The peer leaves shared memory, and the rest goes as packets.
    a.machine.peer = crate::transfer::Peer::Elsewhere;
    while let Some(packet) = a.transmit(Time::default()) {
        b.receive(Time::default(), &packet);
        while let Some(receipt) = b.transmit(Time::default()) {
            a.receive(Time::default(), &receipt);
        }
    }
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
    assert_eq!(b.machine.bytes(key)[..long().len()], long());
}

/// Memory of the peer into which every write succeeds.
struct Written;

impl PeerMemory<Machine> for Written {
    fn write(&mut self, _: &SendRequest, _: &Machine) -> Option<()> {
        Some(())
    }
}

#[test]
fn a_long_write_with_immediate_data_needs_the_right_to_write() {
    let write = SendOperation::Write {
        remote: Remote { address: 1, key: 1 },
        immediate: Some([1, 2, 3, 4]),
    };
    for (is_allowed, ends) in [(true, vec![(5, S::Success)]), (false, Vec::new())] {
        let (mut a, mut b) = two_of(UC);
        if !is_allowed {
            b.queue_pair.attributes_mut().access = crate::proto::AccessFlags::empty();
        }
        b.machine.post_receive(5, 0);
        let key = a.machine.register(long());
        let list = [a.machine.segment(key, 0, long().len() as u32)];
        a.post(request(1, write.clone(), &list));
        let said = poll(&mut a, &mut Written).unwrap();
        hear(&mut b, &said);
        assert_eq!(a.machine.ends(), [(1, S::Success)]);
        assert_eq!(b.machine.receive_ends(), ends);
        assert_eq!(
            b.machine.counted(Counter::ReceiveDropped),
            u64::from(!is_allowed)
        );
    }
}

#[test]
fn announced_gaps_do_not_count_as_lost_messages() {
    let (mut a, mut b) = two_of(UC);
    b.machine.post_receive(5, 8);
    // Two messages were executed in the memory of the peer.
    a.queue_pair.skip(2);
    a.post_send(1, vec![1; 8]);
    assert_eq!(ring_message(&mut a), None);
    let packet = a.transmit(Time::default()).unwrap();
    b.receive(Time::default(), &packet);
    say(&mut a, &mut b);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
    assert_eq!(b.machine.counted(Counter::OutOfSequenceRequest), 0);
}

#[test]
fn a_receipt_is_sent_although_the_receiver_has_nothing_else_to_send() {
    let (mut a, mut b) = two_of(UC);
    let now = Time::default();
    b.machine.post_receive(5, 8);
    b.machine.post_receive(6, 8);
    a.post_send(1, vec![1; 8]);
    say(&mut a, &mut b);
    // One-sided work would overtake the message, so it is sent as packets, with a request for a
    // receipt.
    assert!(a.queue_pair.awaits_receipt());
    a.machine.peer = crate::transfer::Peer::Elsewhere;
    a.post_send(2, vec![2; 8]);
    for packet in a.transmit_all(now) {
        b.receive(now, &packet);
    }
    assert_eq!(b.machine.receive_ends(), [(5, S::Success), (6, S::Success)]);
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Urgent);
    for receipt in b.transmit_all(now) {
        a.receive(now, &receipt);
    }
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Nothing);
    assert!(!a.queue_pair.awaits_receipt());
}
