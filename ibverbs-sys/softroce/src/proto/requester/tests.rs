use std::time::Duration;

use crate::proto::testing::{Fate, From, Node, Pair, attributes, path, pattern, request, send};
use crate::proto::{
    AccessFlags, CompletionStatus as S, Counter, Event, Inline, Payload, SendOperation,
    SendRequest, Sequence, Service, State, Time, WindowBinding, Work,
};
use crate::wire::{Aeth, Bth, Header, Nak, Opcode, Operation as O, Packet, Syndrome, Transport};

const RC: Service = Service::ReliableConnection;

/// The number of the first packet that node 1 sends.
const FIRST: u32 = 0xff_fff2;

fn operation(bytes: &[u8]) -> O {
    Packet::parse(bytes).unwrap().header.bth.opcode.operation
}

fn sequence(bytes: &[u8]) -> u32 {
    Packet::parse(bytes).unwrap().header.bth.sequence
}

/// A response to node 1's packet `place`.
fn response(operation: O, place: u32, syndrome: Syndrome) -> Header {
    let mut header = Header::new(Bth {
        opcode: Opcode::new(Transport::ReliableConnection, operation),
        solicited: false,
        migrated: true,
        pad: 0,
        partition_key: 0xffff,
        destination: 1,
        acknowledge: false,
        sequence: Sequence::new(FIRST.wrapping_add(place)).value(),
    });
    header.aeth = header.bth.opcode.has_aeth().then_some(Aeth {
        syndrome,
        message_sequence: 0,
    });
    header
}

fn ack(place: u32) -> Header {
    response(O::Acknowledge, place, Syndrome::Ack { credits: 31 })
}

fn nak(place: u32, nak: Nak) -> Header {
    response(O::Acknowledge, place, Syndrome::Nak(nak))
}

fn not_ready(place: u32, timer: u8) -> Header {
    response(O::Acknowledge, place, Syndrome::ReceiverNotReady { timer })
}

/// A read of `length` bytes into a new region.
fn read(pair: &mut Pair, id: u64, length: u32) -> (SendRequest, u32) {
    let there = pair.b.machine.register(pattern(length as usize));
    let here = pair.a.machine.register(vec![0; length as usize]);
    let list = [pair.a.machine.segment(here, 0, length)];
    let remote = pair.b.machine.remote(there, 0);
    (request(id, SendOperation::Read { remote }, &list), here)
}

/// A read that no peer is asked for.
fn lone_read(node: &mut Node, id: u64, length: u32) -> SendRequest {
    let here = node.machine.register(vec![0; length as usize]);
    let list = [node.machine.segment(here, 0, length)];
    let remote = node.machine.remote(here, 0);
    request(id, SendOperation::Read { remote }, &list)
}

fn lone_sends(count: u64) -> Node {
    let mut node = Node::ready_to_send(1, RC);
    for id in 0..count {
        node.post_send(id, vec![id as u8; 8]);
    }
    node
}

#[test]
fn messages_arrive_whole_and_in_order() {
    let mut pair = Pair::new(RC);
    let lengths = [0, 1, 255, 256, 257, 100_000];
    let mut keys = Vec::new();
    for (id, length) in lengths.into_iter().enumerate() {
        keys.push(pair.b.machine.post_receive(id as u64 + 10, 100_000));
        pair.a.post_send(id as u64, pattern(length));
    }
    pair.run();
    let ids = 0..lengths.len() as u64;
    let sent = pair.a.machine.ends();
    assert!(sent.into_iter().eq(ids.clone().map(|id| (id, S::Success))));
    let received = pair.b.machine.receive_ends();
    assert!(received.into_iter().eq(ids.map(|id| (id + 10, S::Success))));
    for (key, length) in keys.into_iter().zip(lengths) {
        assert_eq!(pair.b.machine.bytes(key)[..length], pattern(length));
    }
    let lengths_told = pair
        .b
        .machine
        .received
        .iter()
        .map(|(c, _)| c.length as usize);
    assert!(lengths_told.eq(lengths));
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 0);
    assert_eq!(pair.a.queue_pair.outstanding(), 0);
}

#[test]
fn immediate_data_invalidation_and_solicitation_come_with_the_last_packet() {
    let mut pair = Pair::new(RC);
    let window = pair.b.machine.register(vec![0; 8]);
    for (id, length) in [(0, 10), (1, 1000)] {
        pair.b.machine.post_receive(id, 1000);
        let key = pair.a.machine.register(pattern(length));
        let list = [pair.a.machine.segment(key, 0, length as u32)];
        let immediate = Some(*b"imm!");
        let operation = SendOperation::Send {
            immediate,
            invalidate: None,
        };
        let mut request = request(id, operation, &list);
        request.solicited = true;
        pair.a.post(request);
    }
    pair.b.machine.post_receive(2, 1000);
    let operation = SendOperation::Send {
        immediate: None,
        invalidate: Some(window),
    };
    let key = pair.a.machine.register(pattern(300));
    let list = [pair.a.machine.segment(key, 0, 300)];
    pair.a.post(request(2, operation, &list));
    pair.run();
    assert!(!pair.b.machine.is_valid(window));
    let told: Vec<_> = pair.b.machine.received.iter().map(|(c, _)| c).collect();
    for completion in &told[..2] {
        assert_eq!(completion.work, Work::Receive);
        assert_eq!(completion.immediate, Some(*b"imm!"));
        assert!(completion.solicited);
    }
    assert_eq!(told[2].invalidated, Some(window));
    assert!(!told[2].solicited);
}

#[test]
fn writes_go_where_they_shall_and_immediate_data_spends_a_receive() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(vec![0; 5000]);
    pair.b.machine.post_receive(9, 0);
    let here = pair.a.machine.register(pattern(3000));
    // Two segments, in the other order.
    let list = [
        pair.a.machine.segment(here, 1000, 2000),
        pair.a.machine.segment(here, 0, 1000),
    ];
    let remote = pair.b.machine.remote(there, 100);
    let immediate = Some([1, 2, 3, 4]);
    pair.a.post(request(
        1,
        SendOperation::Write {
            remote,
            immediate: None,
        },
        &list,
    ));
    pair.a.post(request(
        2,
        SendOperation::Write { remote, immediate },
        &list[..1],
    ));
    pair.run();
    let mut expected = pattern(3000)[1000..].to_vec();
    expected.extend_from_slice(&pattern(1000));
    assert_eq!(pair.b.machine.bytes(there)[100..3100], expected);
    assert!(
        pair.b.machine.bytes(there)[3100..]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    let (completion, _) = &pair.b.machine.received[0];
    assert_eq!(completion.work, Work::ReceiveWithImmediate);
    assert_eq!((completion.length, completion.immediate), (2000, immediate));
}

#[test]
fn inline_bytes_are_those_of_the_post() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(0, 600);
    let mut request = request(0, send(), &[]);
    request.payload = Payload::Inline(Inline::from_slice(&pattern(600)));
    request.length = 600;
    pair.a.post(request);
    pair.run();
    assert_eq!(pair.b.machine.bytes(key), pattern(600));
}

#[test]
fn reads_fetch_and_take_as_many_numbers_as_their_responses_have() {
    let mut pair = Pair::new(RC);
    let lengths = [0, 1, 256, 257, 70_000];
    let mut keys = Vec::new();
    for (id, length) in lengths.into_iter().enumerate() {
        let (request, key) = read(&mut pair, id as u64, length);
        pair.a.post(request);
        keys.push(key);
    }
    pair.run();
    for (key, length) in keys.into_iter().zip(lengths) {
        assert_eq!(pair.a.machine.bytes(key), pattern(length as usize));
    }
    assert_eq!(pair.a.machine.sends.len(), 5);
    assert_eq!(pair.a.machine.sends[4].length, 70_000);
    let packets = 1 + 1 + 1 + 2 + 274;
    let after = Sequence::new(FIRST + packets);
    assert_eq!(pair.a.queue_pair.send_sequence(), after);
    assert_eq!(pair.b.queue_pair.receive_sequence(), after);
}

#[test]
fn atomics_are_done_and_tell_what_was_there() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(40u64.to_ne_bytes().to_vec());
    let here = pair.a.machine.register(vec![0; 24]);
    let remote = pair.b.machine.remote(there, 0);
    let operations = [
        SendOperation::FetchAdd { remote, add: 2 },
        SendOperation::CompareSwap {
            remote,
            compare: 42,
            swap: 7,
        },
        SendOperation::CompareSwap {
            remote,
            compare: 42,
            swap: 8,
        },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        let list = [pair.a.machine.segment(here, 8 * id as u64, 8)];
        pair.a.post(request(id as u64, operation, &list));
    }
    pair.run();
    let found: Vec<u64> = pair
        .a
        .machine
        .bytes(here)
        .chunks(8)
        .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(found, [40, 42, 7]);
    assert_eq!(pair.b.machine.bytes(there), 7u64.to_ne_bytes());
}

#[test]
fn one_acknowledgement_serves_all_packets_that_came_together() {
    let mut pair = Pair::new(RC);
    for id in 0..10 {
        pair.b.machine.post_receive(id, 8);
        pair.a.post_send(id, vec![1; 8]);
    }
    let mut acknowledgements = 0;
    pair.run_with(|from, _| {
        acknowledgements += usize::from(from == From::B);
        Fate::Deliver
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
fn an_acknowledgement_is_asked_for_at_the_end_of_a_message_and_on_the_way() {
    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().window = 64;
    node.post_send(1, pattern(256 * 40));
    let asked = |node: &mut Node| -> Vec<usize> {
        let packets = node.transmit_all(Time::default());
        let asked = |bytes: &Vec<u8>| Packet::parse(bytes).unwrap().header.bth.acknowledge;
        let places = 0..packets.len();
        places.filter(|place| asked(&packets[*place])).collect()
    };
    // A quarter of the window, which grows.
    assert_eq!(asked(&mut node), [3, 7, 11, 15]);
    node.receive_made(ack(15), &[]);
    assert_eq!(asked(&mut node), [7, 15, 23]);
}

/// A node that has had an answer, and so knows the round trip.
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

/// Waits until the probe is due; what goes then.
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
fn a_probe_finds_out_that_the_end_was_lost() {
    let mut node = acquainted(5);
    assert_eq!(probe(&mut node), [place(1)]);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 0);
    // The peer had nothing but the probe: all behind it goes again.
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
fn a_probe_finds_out_that_only_the_acknowledgement_was_lost() {
    let mut node = acquainted(5);
    assert_eq!(probe(&mut node), [place(1)]);
    node.receive_made(ack(5), &[]);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.machine.counted(Counter::Retransmitted), 1);
}

#[test]
fn a_probe_helps_when_what_was_sent_again_is_lost_again() {
    let mut node = acquainted(5);
    node.receive_made(nak(2, Nak::SequenceError), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 4);
    // The peer tells of a gap but once.
    assert_eq!(probe(&mut node), [place(2)]);
    node.receive_made(ack(2), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 3);
}

#[test]
fn a_probe_asks_for_the_rest_of_a_read() {
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
    // To the end of the run.
    assert_eq!(sequence(&packets[0]), place(4));
    assert_eq!(reth.length, 256 * 29);
}

#[test]
fn probes_are_few_and_no_retries() {
    let mut node = acquainted(1);
    let mut sent = Vec::new();
    while node.queue_pair.state() == State::ReadyToSend {
        let due = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(due, &mut node.machine);
        sent.push(node.transmit_all(due).len());
    }
    // Three, then the retries, and after the last one the end.
    assert_eq!(sent.iter().sum::<usize>(), 3 + 7);
    assert_eq!(node.machine.counted(Counter::AcknowledgementTimeout), 8);
    assert_eq!(node.machine.ends()[1..], [(1, S::RetryExceeded)]);
}

#[test]
fn the_window_bounds_what_is_on_the_way() {
    let mut node = Node::ready_to_receive(1, RC);
    node.queue_pair.attributes_mut().window = 8;
    node.enter(State::ReadyToSend);
    node.post_send(1, pattern(256 * 20));
    let packets = node.transmit_all(Time::default());
    assert_eq!(packets.len(), 8);
    // The last that may go asks for an acknowledgement, or nothing would open the window.
    assert!(Packet::parse(&packets[7]).unwrap().header.bth.acknowledge);
    node.receive_made(ack(2), &[]);
    assert_eq!(node.transmit_all(Time::default()).len(), 3);
}

#[test]
fn reads_keep_to_the_window_with_their_responses() {
    let mut pair = Pair::new(RC);
    let mut a = Node::ready_to_receive(1, RC);
    a.queue_pair.attributes_mut().window = 16;
    a.enter(State::ReadyToSend);
    pair.a = a;
    let (request, key) = read(&mut pair, 1, 256 * 100);
    pair.a.post(request);
    let mut most = 0;
    let mut on_the_way = 0i32;
    pair.run_with(|from, packet| {
        on_the_way += match from {
            From::A => packet.header.reth.unwrap().length.div_ceil(256) as i32,
            From::B => -1,
        };
        most = most.max(on_the_way);
        Fate::Deliver
    });
    assert_eq!(most, 16);
    assert_eq!(pair.a.machine.bytes(key), pattern(25_600));
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 0);
}

#[test]
fn no_more_reads_and_atomics_go_than_were_agreed() {
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
fn a_queue_pair_without_reads_refuses_them_itself() {
    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().max_initiated = 0;
    let request = lone_read(&mut node, 5, 8);
    node.post(request);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.machine.ends(), [(5, S::LocalQueuePairOperation)]);
    assert_eq!(node.queue_pair.state(), State::Error);
}

#[test]
fn what_is_lost_is_sent_again_from_there_on() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(0, 256 * 20);
    pair.a.post_send(0, pattern(256 * 20));
    let mut lost = false;
    let mut first = 0;
    pair.run_with(|from, packet| {
        let sequence = Sequence::new(packet.header.bth.sequence);
        let fifth = from == From::A && sequence == Sequence::new(FIRST + 5);
        first += usize::from(from == From::A && sequence.distance(Sequence::new(FIRST + 5)) < 0);
        if fifth && !lost {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    assert_eq!(pair.b.machine.bytes(key), pattern(256 * 20));
    assert_eq!(first, 5);
    assert_eq!(pair.b.machine.counted(Counter::OutOfSequenceRequest), 10);
    // One NAK for the gap, and no waiting for a timer.
    assert_eq!(pair.a.machine.counted(Counter::ReceivedSequenceNak), 1);
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 0);
    assert_eq!(pair.a.machine.counted(Counter::Retransmitted), 11);
}

#[test]
fn a_duplicated_nak_is_no_second_one() {
    let mut node = lone_sends(4);
    assert_eq!(node.transmit_all(Time::default()).len(), 4);
    for _ in 0..20 {
        node.receive_made(nak(1, Nak::SequenceError), &[]);
    }
    let again = node.transmit_all(Time::default());
    assert_eq!(again.len(), 3);
    assert_eq!(sequence(&again[0]), Sequence::new(FIRST + 1).value());
    for _ in 0..20 {
        node.receive_made(nak(1, Nak::SequenceError), &[]);
    }
    assert!(node.transmit_all(Time::default()).is_empty());
    assert_eq!(node.queue_pair.state(), State::ReadyToSend);
    assert_eq!(node.machine.ends(), [(0, S::Success)]);
}

#[test]
fn a_lost_acknowledgement_costs_a_timeout_and_nothing_twice() {
    let mut pair = Pair::new(RC);
    for id in 0..2 {
        pair.b.machine.post_receive(id, 8);
    }
    pair.a.post_send(0, vec![1; 8]);
    let mut lost = false;
    pair.run_with(|from, _| {
        if from == From::B && !lost {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 1);
    assert_eq!(pair.b.machine.counted(Counter::DuplicateRequest), 1);
    assert_eq!(pair.b.machine.receive_ends(), [(0, S::Success)]);
    assert_eq!(pair.a.machine.ends(), [(0, S::Success)]);
}

#[test]
fn an_answer_beyond_a_read_without_its_data_asks_for_it_again() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(0, 8);
    let (read, key) = read(&mut pair, 1, 256 * 5);
    pair.a.post(read);
    pair.a.post_send(2, vec![1; 8]);
    let mut lost = false;
    let mut asked = Vec::new();
    pair.run_with(|from, packet| {
        if let (From::A, Some(reth)) = (from, packet.header.reth) {
            asked.push(reth.length);
        }
        // The third packet of the response.
        let third = packet.header.bth.sequence == Sequence::new(FIRST + 2).value();
        if from == From::B && third && !lost {
            lost = true;
            return Fate::Drop;
        }
        Fate::Deliver
    });
    // The tail alone.
    assert_eq!(asked, [256 * 5, 256 * 3]);
    assert_eq!(pair.a.machine.bytes(key), pattern(256 * 5));
    assert!(pair.a.machine.counted(Counter::ImpliedNak) > 0);
    assert_eq!(pair.a.machine.counted(Counter::AcknowledgementTimeout), 0);
    assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    assert_eq!(pair.b.machine.received.len(), 1);
}

#[test]
fn an_acknowledgement_of_a_read_is_not_its_data() {
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
fn data_acknowledges_what_is_before_it() {
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
fn ghosts_and_old_acknowledgements_are_nothing() {
    let mut node = lone_sends(3);
    node.transmit(Time::default());
    node.transmit(Time::default());
    // Of what was never sent, and of what is long past.
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

#[test]
fn a_peer_that_is_silent_is_given_up_after_the_retries() {
    for retries in [0, 1, 7] {
        let mut pair = Pair::new(RC);
        pair.a.queue_pair.attributes_mut().retry_count = retries;
        pair.a.machine.post_receive(77, 8);
        for id in 0..3 {
            pair.a.post_send(id, vec![1; 8]);
        }
        let mut sent = 0;
        pair.run_with(|_, _| {
            sent += 1;
            Fate::Drop
        });
        assert_eq!(sent, 3 * (u32::from(retries) + 1));
        assert_eq!(
            pair.a.machine.ends(),
            [(0, S::RetryExceeded), (1, S::Flushed), (2, S::Flushed)]
        );
        assert_eq!(pair.a.machine.receive_ends(), [(77, S::Flushed)]);
        assert_eq!(pair.a.queue_pair.state(), State::Error);
        let waited = Duration::from_millis(u64::from(retries) + 1);
        assert_eq!(pair.now - Time::default(), waited);
    }
}

#[test]
fn the_retries_are_counted_anew_when_something_got_through() {
    let mut node = lone_sends(3);
    node.queue_pair.attributes_mut().retry_count = 1;
    let mut now = Time::default();
    for place in 0..3 {
        node.transmit_all(now);
        now = node.queue_pair.next_timeout().unwrap();
        node.queue_pair.handle_timeout(now, &mut node.machine);
        node.transmit_all(now);
        node.receive_made(ack(place), &[]);
    }
    assert!(
        node.machine
            .ends()
            .into_iter()
            .eq((0..3).map(|id| (id, S::Success)))
    );
    assert_eq!(node.queue_pair.next_timeout(), None);
}

#[test]
fn without_a_timeout_nothing_is_sent_again() {
    let mut node = lone_sends(1);
    node.queue_pair.attributes_mut().ack_timeout = None;
    node.transmit_all(Time::default());
    assert_eq!(node.queue_pair.next_timeout(), None);
    let late = Time::from_nanos(u64::MAX / 2);
    node.queue_pair.handle_timeout(late, &mut node.machine);
    assert!(node.transmit(late).is_none());
    assert_eq!(node.queue_pair.outstanding(), 1);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(RC);
    pair.a.queue_pair.attributes_mut().rnr_retry = 2;
    pair.b.queue_pair.attributes_mut().min_rnr_timer = 14;
    pair.a.machine.post_receive(7, 8);
    pair.a.post_send(0, vec![1; 8]);
    pair.a.post_send(1, vec![1; 8]);
    let mut sent = 0;
    pair.run_with(|from, packet| {
        let first = packet.header.bth.sequence == Sequence::new(FIRST).value();
        sent += usize::from(from == From::A && first);
        Fate::Deliver
    });
    assert_eq!(sent, 3);
    assert_eq!(pair.now - Time::default(), 2 * Duration::from_micros(1280));
    assert_eq!(
        pair.a.machine.ends(),
        [(0, S::RnrRetryExceeded), (1, S::Flushed)]
    );
    assert_eq!(pair.a.machine.counted(Counter::ReceivedRnr), 3);
    assert_eq!(pair.b.machine.counted(Counter::SentRnr), 3);
    // What came behind the refused packet is dropped without another word.
    assert_eq!(pair.a.machine.counted(Counter::ReceivedSequenceNak), 0);
    assert_eq!(pair.b.queue_pair.state(), State::ReadyToSend);
}

#[test]
fn seven_waits_for_a_receiver_without_end() {
    let mut pair = Pair::new(RC);
    pair.a.post_send(0, pattern(300));
    let mut refusals = 0;
    for _ in 0..100 {
        let bytes = pair.a.transmit_all(pair.now);
        for packet in &bytes {
            pair.b.receive(pair.now, packet);
        }
        for packet in pair.b.transmit_all(pair.now) {
            refusals += 1;
            pair.a.receive(pair.now, &packet);
        }
        // The peer's word, and not the timeout, decides.
        let due = pair.a.queue_pair.next_timeout().unwrap();
        assert_eq!(due - pair.now, Duration::from_micros(10));
        assert!(pair.a.transmit(pair.now).is_none());
        pair.now = due;
        pair.a.queue_pair.handle_timeout(due, &mut pair.a.machine);
    }
    assert_eq!(refusals, 100);
    let key = pair.b.machine.post_receive(1, 300);
    pair.run();
    assert_eq!(pair.b.machine.bytes(key), pattern(300));
    assert_eq!(pair.a.machine.ends(), [(0, S::Success)]);
}

#[test]
fn a_nak_fails_the_request_that_it_names() {
    let cases = [
        (Nak::InvalidRequest, S::RemoteInvalidRequest),
        (Nak::RemoteAccessError, S::RemoteAccess),
        (Nak::RemoteOperationalError, S::RemoteOperation),
    ];
    for (reason, status) in cases {
        let mut node = lone_sends(4);
        node.transmit_all(Time::default());
        node.receive_made(nak(2, reason), &[]);
        assert_eq!(
            node.machine.ends(),
            [
                (0, S::Success),
                (1, S::Success),
                (2, status),
                (3, S::Flushed)
            ]
        );
        assert_eq!(node.queue_pair.state(), State::Error);
        assert_eq!(node.queue_pair.next_timeout(), None);
        node.post_send(9, vec![1]);
        assert_eq!(node.machine.ends().last(), Some(&(9, S::Flushed)));
        assert!(node.transmit(Time::default()).is_none());
    }
}

#[test]
fn a_response_that_is_none_fails_its_request() {
    let data = Syndrome::Ack { credits: 31 };
    let wrong: [(Header, &[u8]); 6] = [
        (response(O::ReadResponseOnly, 0, data), &[1; 7]),
        (response(O::ReadResponseOnly, 0, data), &[1; 9]),
        (response(O::ReadResponseFirst, 0, data), &[1; 8]),
        (response(O::ReadResponseMiddle, 0, data), &[1; 8]),
        (response(O::ReadResponseLast, 0, data), &[]),
        (response(O::AtomicAcknowledge, 0, data), &[]),
    ];
    for (header, payload) in wrong {
        let mut node = Node::ready_to_send(1, RC);
        let request = lone_read(&mut node, 1, 8);
        node.post(request);
        node.transmit_all(Time::default());
        node.receive_made(header, payload);
        assert_eq!(node.machine.ends(), [(1, S::BadResponse)], "{header:?}");
    }
    let mut node = lone_sends(1);
    node.transmit_all(Time::default());
    node.receive_made(response(O::ReadResponseOnly, 0, data), &[1; 8]);
    assert_eq!(node.machine.ends(), [(0, S::BadResponse)]);
}

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
    // Not for the send, which is not acknowledged.
    assert_eq!(node.transmit_all(Time::default()).len(), 1);
}

#[test]
fn windows_are_bound_and_invalidated_in_their_turn() {
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
    // Its completion waits for that of the send.
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
    assert_eq!(pair.a.machine.sends[1].work, Work::Bind);
    assert_eq!(pair.a.machine.sends[2].work, Work::LocalInvalidate);
}

#[test]
fn a_window_is_bound_once_though_what_is_before_it_is_sent_again() {
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
    // Binding what is bound fails in its turn.
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
fn bytes_that_cannot_be_gathered_fail_their_request_in_its_turn() {
    let mut node = lone_sends(1);
    let key = node.machine.register(vec![1; 300]);
    let list = [
        node.machine.segment(key, 0, 300),
        node.machine.segment(99, 0, 300),
    ];
    node.post(request(1, send(), &list));
    node.post_send(2, vec![1; 8]);
    // The first packet could be gathered.
    assert_eq!(node.transmit_all(Time::default()).len(), 2);
    assert_eq!(node.machine.ends(), []);
    node.receive_made(ack(0), &[]);
    assert_eq!(
        node.machine.ends(),
        [(0, S::Success), (1, S::LocalProtection), (2, S::Flushed)]
    );
}

#[test]
fn data_that_cannot_be_scattered_fails_its_read() {
    let mut pair = Pair::new(RC);
    let (request, key) = read(&mut pair, 1, 1000);
    pair.a.post(request);
    pair.a.machine.deregister(key);
    pair.run();
    assert_eq!(pair.a.machine.ends(), [(1, S::LocalProtection)]);
    assert_eq!(pair.a.queue_pair.state(), State::Error);
}

#[test]
fn a_message_that_is_too_long_is_a_local_error() {
    let mut node = Node::ready_to_send(1, RC);
    let mut request = request(1, send(), &[]);
    request.length = (1 << 30) + 1;
    node.post(request);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.machine.ends(), [(1, S::LocalLength)]);
}

#[test]
fn a_request_that_is_not_signaled_is_told_of_if_it_fails() {
    let mut node = Node::ready_to_send(1, RC);
    for id in 0..3 {
        let mut request = request(id, send(), &[]);
        request.signaled = id == 1;
        node.post(request);
    }
    node.transmit_all(Time::default());
    node.receive_made(ack(1), &[]);
    assert_eq!(node.machine.ends(), [(1, S::Success)]);
    assert_eq!(node.queue_pair.outstanding(), 1);
    node.receive_made(nak(2, Nak::InvalidRequest), &[]);
    assert_eq!(node.machine.ends()[1..], [(2, S::RemoteInvalidRequest)]);

    let mut node = Node::ready_to_send(1, RC);
    node.queue_pair.attributes_mut().signal_all = true;
    let mut request = request(4, send(), &[]);
    request.signaled = false;
    node.post(request);
    node.transmit_all(Time::default());
    node.receive_made(ack(0), &[]);
    assert_eq!(node.machine.ends(), [(4, S::Success)]);
}

#[test]
fn draining_ends_what_is_begun_and_begins_nothing() {
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

    // Nothing is begun: drained at once.
    let mut node = lone_sends(1);
    node.enter(State::SendQueueDrained);
    assert_eq!(node.machine.events, [Event::SendQueueDrained]);
}

#[test]
fn every_packet_is_lost_once_and_all_arrives() {
    let mut pair = Pair::new(RC);
    let mut keys = Vec::new();
    for id in 0..6 {
        let receive = pair.b.machine.post_receive(id, 2000);
        pair.a.post_send(id, pattern(1000 + id as usize));
        let (read, target) = read(&mut pair, 100 + id, 3000);
        pair.a.post(read);
        keys.push((receive, target));
    }
    let mut seen = std::collections::BTreeSet::new();
    pair.run_with(|from, packet| {
        let header = &packet.header;
        let key = (
            from == From::A,
            header.bth.sequence,
            header.bth.opcode.to_byte(),
        );
        if seen.insert(key) {
            Fate::Drop
        } else {
            Fate::Duplicate
        }
    });
    assert_eq!(pair.a.machine.sends.len(), 12);
    assert!(pair.a.machine.sends.iter().all(|c| c.status == S::Success));
    assert_eq!(pair.b.machine.received.len(), 6);
    for (id, (receive, target)) in keys.into_iter().enumerate() {
        assert_eq!(
            pair.b.machine.bytes(receive)[..1000 + id],
            pattern(1000 + id)
        );
        assert_eq!(pair.a.machine.bytes(target), pattern(3000));
    }
}

#[test]
fn the_way_is_that_of_the_attributes() {
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
