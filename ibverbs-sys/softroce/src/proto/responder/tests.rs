use proptest::prelude::*;

use crate::proto::testing::{Fate, From, Node, Pair, attributes, pattern, request, send};
use crate::proto::{
    AccessFlags, CompletionStatus as S, Counter, Event, Remote, SendOperation, Sequence, Service,
    State, Time, Work,
};
use crate::wire::{
    Aeth, AtomicEth, Bth, Header, Nak, Opcode, Operation as O, Packet, Reth, Syndrome, Transport,
};

const RC: Service = Service::ReliableConnection;

/// The number of the first packet that node 2 expects.
const FIRST: u32 = 0xff_fff2;

/// Node 2, ready to receive.
fn node() -> Node {
    Node::ready_to_receive(2, RC)
}

/// A request's packet `place`.
fn made(operation: O, place: u32) -> Header {
    Header::new(Bth {
        opcode: Opcode::new(Transport::ReliableConnection, operation),
        solicited: false,
        migrated: true,
        pad: 0,
        partition_key: 0xffff,
        destination: 2,
        acknowledge: true,
        sequence: Sequence::new(FIRST.wrapping_add(place)).value(),
    })
}

fn addressed(operation: O, place: u32, remote: Remote, length: u32) -> Header {
    let reth = Reth {
        address: remote.address,
        key: remote.key,
        length,
    };
    Header {
        reth: Some(reth),
        ..made(operation, place)
    }
}

fn atomic(place: u32, remote: Remote, add: u64) -> Header {
    let atomic = AtomicEth {
        address: remote.address,
        key: remote.key,
        swap_or_add: add,
        compare: 0,
    };
    Header {
        atomic: Some(atomic),
        ..made(O::FetchAdd, place)
    }
}

/// An answer: its operation, place, and syndrome.
type Answer = (O, u32, Option<Syndrome>);

const ACK: Option<Syndrome> = Some(Syndrome::Ack { credits: 31 });

fn refusal(place: u32, nak: Nak) -> Answer {
    (O::Acknowledge, place, Some(Syndrome::Nak(nak)))
}

fn answer(bytes: &[u8]) -> Answer {
    let header = Packet::parse(bytes).unwrap().header;
    let place = Sequence::new(header.bth.sequence) + (0x100_0000 - FIRST);
    (
        header.bth.opcode.operation,
        place.value(),
        header.aeth.map(|aeth| aeth.syndrome),
    )
}

fn answers(node: &mut Node) -> Vec<Answer> {
    let packets = node.transmit_all(Time::default());
    packets.iter().map(|bytes| answer(bytes)).collect()
}

#[test]
fn a_gap_is_told_once_until_it_is_filled() {
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
    // Filled, and the next gap.
    node.receive_made(made(O::SendOnly, 1), &[1]);
    node.receive_made(made(O::SendOnly, 3), &[1]);
    assert_eq!(answers(&mut node), [refusal(2, Nak::SequenceError)]);
    assert_eq!(node.machine.received.len(), 2);
}

#[test]
fn a_gap_that_is_filled_before_anything_is_said_is_none() {
    let mut node = node();
    node.machine.post_receive(0, 8);
    node.receive_made(made(O::SendOnly, 1), &[1]);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
}

#[test]
fn sends_and_writes_are_acknowledged_again_and_not_done_again() {
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
        // All that was executed is acknowledged, not the duplicate alone.
        assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    }
    assert_eq!(node.machine.bytes(key), [2, 2, 2, 2, 0, 0, 0, 0]);
    assert_eq!(node.machine.receive_ends(), [(0, S::Success)]);
    assert_eq!(node.machine.counted(Counter::DuplicateRequest), 6);
}

#[test]
fn what_does_not_ask_for_an_acknowledgement_gets_none() {
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
fn messages_are_counted_for_the_peer() {
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
    // The first and the last packet of the read's response, and the atomic's.
    assert_eq!(counts, [2, 2, 3]);
}

#[test]
fn a_read_is_answered_in_packets_and_repeated_in_part() {
    let mut node = node();
    let key = node.machine.register(pattern(1000));
    let at = |node: &Node, offset| node.machine.remote(key, offset);
    node.receive_made(addressed(O::ReadRequest, 0, at(&node, 0), 1000), &[]);
    let all = [
        (O::ReadResponseFirst, 0, ACK),
        (O::ReadResponseMiddle, 1, None),
        (O::ReadResponseMiddle, 2, None),
        (O::ReadResponseLast, 3, ACK),
    ];
    assert_eq!(answers(&mut node), all);
    assert_eq!(node.queue_pair.receive_sequence(), Sequence::new(FIRST + 4));
    // All again; the tail; some of it; one.
    node.receive_made(addressed(O::ReadRequest, 0, at(&node, 0), 1000), &[]);
    assert_eq!(answers(&mut node), all);
    node.receive_made(addressed(O::ReadRequest, 2, at(&node, 512), 488), &[]);
    assert_eq!(
        answers(&mut node),
        [
            (O::ReadResponseFirst, 2, ACK),
            (O::ReadResponseLast, 3, ACK)
        ]
    );
    node.receive_made(addressed(O::ReadRequest, 1, at(&node, 256), 512), &[]);
    assert_eq!(
        answers(&mut node),
        [
            (O::ReadResponseFirst, 1, ACK),
            (O::ReadResponseLast, 2, ACK)
        ]
    );
    node.receive_made(addressed(O::ReadRequest, 3, at(&node, 768), 232), &[]);
    let last = node.transmit(Time::default()).unwrap();
    assert_eq!(answer(&last), (O::ReadResponseOnly, 3, ACK));
    assert_eq!(Packet::parse(&last).unwrap().payload, &pattern(1000)[768..]);
    // Not what was asked before.
    let other = node.machine.register(pattern(1000));
    let other = node.machine.remote(other, 0);
    for header in [
        addressed(O::ReadRequest, 0, other, 1000),
        addressed(O::ReadRequest, 0, at(&node, 0), 1001),
        addressed(O::ReadRequest, 0, at(&node, 0), 999),
        addressed(O::ReadRequest, 0, at(&node, 256), 744),
        addressed(O::ReadRequest, 1, at(&node, 256), 1000),
        addressed(O::ReadRequest, 1, at(&node, 0), 1000),
        addressed(O::ReadRequest, 0u32.wrapping_sub(1), at(&node, 0), 1000),
        atomic(0, at(&node, 0), 1),
        Header {
            reth: None,
            ..made(O::ReadRequest, 0)
        },
    ] {
        node.receive_made(header, &[]);
        assert_eq!(answers(&mut node), [], "{header:?}");
    }
    assert_eq!(node.queue_pair.state(), State::ReadyToReceive);
}

#[test]
fn a_duplicate_under_way_begins_the_response_anew() {
    let mut node = node();
    let key = node.machine.register(pattern(1024));
    let remote = node.machine.remote(key, 0);
    let read = addressed(O::ReadRequest, 0, remote, 1024);
    node.receive_made(read, &[]);
    node.transmit(Time::default());
    node.transmit(Time::default());
    // What is still to go is to go once.
    let tail = addressed(O::ReadRequest, 2, node.machine.remote(key, 512), 512);
    node.receive_made(tail, &[]);
    let third = node.transmit(Time::default()).unwrap();
    assert_eq!(answer(&third), (O::ReadResponseMiddle, 2, None));
    node.receive_made(read, &[]);
    let places: Vec<_> = answers(&mut node).iter().map(|answer| answer.1).collect();
    assert_eq!(places, [0, 1, 2, 3]);
}

#[test]
fn an_atomic_is_done_once_however_often_it_comes() {
    let mut node = node();
    let key = node.machine.register(vec![0; 16]);
    let remote = node.machine.remote(key, 8);
    for place in 0..6u32 {
        node.receive_made(atomic(place, remote, 10), &[]);
        let bytes = node.transmit(Time::default()).unwrap();
        let original = Packet::parse(&bytes).unwrap().header.original;
        assert_eq!(original, Some(u64::from(place) * 10));
    }
    for _ in 0..3 {
        for place in 2..6u32 {
            node.receive_made(atomic(place, remote, 10), &[]);
            let bytes = node.transmit(Time::default()).unwrap();
            let original = Packet::parse(&bytes).unwrap().header.original;
            assert_eq!(original, Some(u64::from(place) * 10));
        }
    }
    // Four are remembered; what is forgotten is not done again.
    node.receive_made(atomic(1, remote, 10), &[]);
    assert_eq!(answers(&mut node), []);
    assert_eq!(node.machine.bytes(key)[8..], 60u64.to_ne_bytes());
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut node = node();
    let key = node.machine.register(vec![0; 600]);
    let remote = node.machine.remote(key, 0);
    for place in 0..5 {
        node.receive_made(addressed(O::ReadRequest, place, remote, 8), &[]);
    }
    let naks = answers(&mut node);
    assert_eq!(naks.len(), 5);
    assert_eq!(naks[3], (O::ReadResponseOnly, 3, ACK));
    assert_eq!(naks[4], refusal(4, Nak::InvalidRequest));
    assert_eq!(node.machine.events[1..], [Event::InvalidRequest]);
    assert_eq!(node.queue_pair.state(), State::Error);

    // Those that were answered count no more, also when they are asked for again.
    let mut node = self::node();
    let key = node.machine.register(vec![0; 600]);
    let remote = node.machine.remote(key, 0);
    for place in 0..20u32 {
        node.receive_made(atomic(place, remote, 8), &[]);
        if place % 4 == 3 {
            assert_eq!(answers(&mut node).len(), 4);
            node.receive_made(atomic(place - 3, remote, 8), &[]);
        }
    }
    assert_eq!(node.queue_pair.state(), State::ReadyToReceive);

    let mut node = self::node();
    node.queue_pair.attributes_mut().max_accepted = 0;
    node.receive_made(addressed(O::ReadRequest, 0, remote, 0), &[]);
    assert_eq!(answers(&mut node), [refusal(0, Nak::InvalidRequest)]);
}

#[test]
fn a_response_is_made_when_it_goes() {
    let mut node = node();
    let key = node.machine.register(pattern(1000));
    let remote = node.machine.remote(key, 0);
    node.receive_made(addressed(O::ReadRequest, 0, remote, 1000), &[]);
    node.receive_made(made(O::SendOnly, 4), &[]);
    assert_eq!(
        answer(&node.transmit(Time::default()).unwrap()),
        (O::ReadResponseFirst, 0, ACK)
    );
    node.machine.deregister(key);
    assert_eq!(answers(&mut node), [refusal(1, Nak::RemoteAccessError)]);
    assert!(node.machine.events.contains(&Event::AccessViolation));
    assert_eq!(node.queue_pair.state(), State::Error);
}

#[test]
fn a_late_duplicate_of_a_read_from_memory_that_is_gone_is_no_end() {
    let mut node = node();
    node.machine.post_receive(1, 8);
    let key = node.machine.register(pattern(1000));
    let remote = node.machine.remote(key, 0);
    let read = addressed(O::ReadRequest, 0, remote, 1000);
    node.receive_made(read, &[]);
    assert_eq!(answers(&mut node).len(), 4);
    let mut send = made(O::SendOnlyInvalidate, 4);
    send.invalidate = Some(key);
    node.receive_made(send, &[]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 4, ACK)]);
    node.receive_made(read, &[]);
    assert_eq!(answers(&mut node), [refusal(0, Nak::RemoteAccessError)]);
    assert_eq!(node.queue_pair.state(), State::ReadyToReceive);
    node.machine.post_receive(2, 8);
    node.receive_made(made(O::SendOnly, 5), &[]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 5, ACK)]);
}

#[test]
fn a_long_response_goes_in_bursts() {
    let mut node = node();
    node.queue_pair.attributes_mut().window = 64;
    let key = node.machine.register(pattern(256 * 1000));
    let remote = node.machine.remote(key, 0);
    node.receive_made(addressed(O::ReadRequest, 0, remote, 256 * 1000), &[]);
    let mut now = Time::default();
    let mut sent = 0;
    while sent < 1000 {
        let burst = node.transmit_all(now).len();
        assert!(burst <= 32);
        sent += burst;
        let Some(due) = node.queue_pair.next_timeout() else {
            break;
        };
        node.queue_pair.handle_timeout(due, &mut node.machine);
        now = due;
    }
    assert_eq!(sent, 1000);
    assert_eq!(node.queue_pair.next_timeout(), None);
}

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
fn immediate_data_without_a_receive_holds_up_its_packet_alone() {
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

/// What a peer sends that knows no rules: packets with their payloads' lengths.
fn invalid(remote: Remote) -> Vec<Vec<(Header, usize)>> {
    let write = |operation, place, length| addressed(operation, place, remote, length);
    let huge = (1 << 31) + 1;
    let mut misaligned = remote;
    misaligned.address += 4;
    vec![
        // Order.
        vec![(made(O::SendMiddle, 0), 256)],
        vec![(made(O::SendLast, 0), 1)],
        vec![(made(O::WriteMiddle, 0), 256)],
        vec![(made(O::WriteLast, 0), 1)],
        vec![(made(O::SendFirst, 0), 256), (made(O::SendFirst, 1), 256)],
        vec![(made(O::SendFirst, 0), 256), (made(O::SendOnly, 1), 1)],
        vec![(made(O::SendFirst, 0), 256), (made(O::WriteLast, 1), 1)],
        vec![
            (made(O::SendFirst, 0), 256),
            (write(O::ReadRequest, 1, 1), 0),
        ],
        vec![(made(O::SendFirst, 0), 256), (atomic(1, remote, 1), 0)],
        vec![
            (write(O::WriteFirst, 0, 300), 256),
            (made(O::SendLast, 1), 44),
        ],
        vec![
            (write(O::WriteFirst, 0, 300), 256),
            (write(O::WriteOnly, 1, 1), 1),
        ],
        // Lengths.
        vec![(made(O::SendFirst, 0), 255)],
        vec![(made(O::SendFirst, 0), 257)],
        vec![(made(O::SendOnly, 0), 257)],
        vec![(made(O::SendFirst, 0), 256), (made(O::SendMiddle, 1), 255)],
        vec![(made(O::SendFirst, 0), 256), (made(O::SendLast, 1), 0)],
        vec![(made(O::SendFirst, 0), 256), (made(O::SendLast, 1), 257)],
        vec![(write(O::WriteOnly, 0, 8), 7)],
        vec![(write(O::WriteOnly, 0, 8), 9)],
        vec![(write(O::WriteFirst, 0, 256), 256)],
        vec![
            (write(O::WriteFirst, 0, 300), 256),
            (made(O::WriteLast, 1), 43),
        ],
        vec![
            (write(O::WriteFirst, 0, 300), 256),
            (made(O::WriteLast, 1), 45),
        ],
        vec![
            (write(O::WriteFirst, 0, 512), 256),
            (made(O::WriteMiddle, 1), 256),
        ],
        vec![(write(O::WriteFirst, 0, huge), 256)],
        vec![(write(O::ReadRequest, 0, huge), 0)],
        vec![(write(O::ReadRequest, 0, u32::MAX), 0)],
        // Headers that are missing: only by hand.
        vec![(made(O::WriteOnly, 0), 1)],
        vec![(made(O::ReadRequest, 0), 0)],
        vec![(made(O::FetchAdd, 0), 0)],
        vec![(atomic(0, misaligned, 1), 0)],
    ]
}

#[test]
fn requests_against_the_rules_end_the_connection() {
    for mut case in invalid(Remote { address: 0, key: 0 }) {
        let mut node = node();
        node.machine.post_receive(7, 2000);
        node.machine.post_receive(8, 2000);
        let key = node.machine.register(vec![0; 2000]);
        let remote = node.machine.remote(key, 0);
        for (header, _) in &mut case {
            if let Some(reth) = &mut header.reth {
                (reth.address, reth.key) = (remote.address, remote.key);
            }
            if let Some(atomic) = &mut header.atomic {
                (atomic.address, atomic.key) = (remote.address + atomic.address, remote.key);
            }
        }
        let last = case.len() as u32 - 1;
        for (header, length) in &case {
            node.receive_made(*header, &vec![1; *length]);
        }
        let told = answers(&mut node);
        assert_eq!(told, [refusal(last, Nak::InvalidRequest)], "{case:?}");
        assert_eq!(
            node.machine.events[1..],
            [Event::InvalidRequest],
            "{case:?}"
        );
        assert_eq!(node.queue_pair.state(), State::Error);
        assert_eq!(node.machine.counted(Counter::RemoteInvalidRequests), 1);
        // The receive of the message fails, the others are flushed.
        let sends = case
            .iter()
            .any(|(header, _)| header.bth.opcode.operation == O::SendFirst);
        let begun = sends && last > 0;
        let first = if begun {
            S::RemoteInvalidRequest
        } else {
            S::Flushed
        };
        assert_eq!(node.machine.receive_ends(), [(7, first), (8, S::Flushed)]);
        // And silence.
        node.receive_made(made(O::SendOnly, last), &[]);
        assert_eq!(answers(&mut node), []);
    }
}

#[test]
fn operations_that_the_queue_pair_does_not_allow_are_invalid_requests() {
    let all = attributes(1).access;
    for missing in [
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_ATOMIC,
    ] {
        let mut node = node();
        node.queue_pair.attributes_mut().access = all - missing;
        let key = node.machine.register(vec![0; 8]);
        let remote = node.machine.remote(key, 0);
        let (header, length): (_, usize) = match missing {
            AccessFlags::REMOTE_WRITE => (addressed(O::WriteOnly, 0, remote, 8), 8),
            AccessFlags::REMOTE_READ => (addressed(O::ReadRequest, 0, remote, 8), 0),
            _ => (atomic(0, remote, 1), 0),
        };
        node.receive_made(header, &vec![1; length]);
        assert_eq!(answers(&mut node), [refusal(0, Nak::InvalidRequest)]);
        assert_eq!(node.machine.bytes(key), [0; 8]);
    }
}

#[test]
fn memory_that_the_peer_may_not_use_is_an_access_error() {
    let remote = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    let rights = |missing| AccessFlags::LOCAL_WRITE | remote.difference(missing);
    let mut cases: Vec<(Header, usize)> = Vec::new();
    let mut node = node();
    let write = node
        .machine
        .register_for(vec![0; 1000], rights(AccessFlags::REMOTE_WRITE));
    let read = node
        .machine
        .register_for(vec![0; 1000], rights(AccessFlags::REMOTE_READ));
    let add = node
        .machine
        .register_for(vec![0; 1000], rights(AccessFlags::REMOTE_ATOMIC));
    let all = node.machine.register(vec![0; 1000]);
    let remote = |key, offset| node.machine.remote(key, offset);
    cases.push((addressed(O::WriteOnly, 0, remote(write, 0), 8), 8));
    cases.push((addressed(O::ReadRequest, 0, remote(read, 0), 8), 0));
    cases.push((atomic(0, remote(add, 0), 1), 0));
    // No such key, out of bounds, around the end of all addresses.
    let none = Remote {
        key: 99,
        ..remote(all, 0)
    };
    let end = Remote {
        address: u64::MAX - 7,
        key: all,
    };
    for place in [none, end, remote(all, 1000), remote(all, 993 - 1)] {
        cases.push((addressed(O::WriteOnly, 0, place, 9), 9));
        cases.push((addressed(O::WriteFirst, 0, place, 1 << 31), 256));
        cases.push((addressed(O::ReadRequest, 0, place, 9), 0));
        cases.push((addressed(O::ReadRequest, 0, place, 1 << 30), 0));
    }
    cases.push((atomic(0, end, 1), 0));
    cases.push((atomic(0, remote(all, 1000), 1), 0));
    for (header, length) in cases {
        let mut node = self::node();
        for missing in [
            AccessFlags::REMOTE_WRITE,
            AccessFlags::REMOTE_READ,
            AccessFlags::REMOTE_ATOMIC,
            AccessFlags::empty(),
        ] {
            node.machine.register_for(vec![0; 1000], rights(missing));
        }
        node.receive_made(header, &vec![1; length]);
        let told = answers(&mut node);
        assert_eq!(told, [refusal(0, Nak::RemoteAccessError)], "{header:?}");
        assert_eq!(node.machine.events[1..], [Event::AccessViolation]);
        assert_eq!(node.machine.counted(Counter::RemoteAccessErrors), 1);
        assert!((1..5).all(|key| node.machine.bytes(key) == [0; 1000]));
        assert_eq!(node.queue_pair.state(), State::Error);
    }
}

#[test]
fn nothing_needs_no_key() {
    let mut node = node();
    let nowhere = Remote {
        address: u64::MAX,
        key: 12345,
    };
    node.receive_made(addressed(O::WriteOnly, 0, nowhere, 0), &[]);
    node.receive_made(addressed(O::ReadRequest, 1, nowhere, 0), &[]);
    // The response acknowledges the write too.
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 1, ACK)]);
}

#[test]
fn a_message_longer_than_its_receive_is_told_on_both_sides() {
    for length in [101, 600] {
        let mut pair = Pair::new(RC);
        pair.b.machine.post_receive(7, 100);
        pair.b.machine.post_receive(8, 100);
        pair.a.post_send(1, pattern(length));
        pair.a.post_send(2, pattern(1));
        pair.run();
        assert_eq!(
            pair.a.machine.ends(),
            [(1, S::RemoteInvalidRequest), (2, S::Flushed)]
        );
        assert_eq!(
            pair.b.machine.receive_ends(),
            [(7, S::LocalLength), (8, S::Flushed)]
        );
        // The completion tells it.
        assert_eq!(pair.b.machine.events, []);
        assert_eq!(pair.b.queue_pair.state(), State::Error);
    }
}

#[test]
fn a_receive_that_cannot_be_used_is_an_operational_error() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(7, 100);
    pair.b.machine.deregister(key);
    pair.a.post_send(1, pattern(10));
    pair.run();
    assert_eq!(pair.a.machine.ends(), [(1, S::RemoteOperation)]);
    assert_eq!(pair.b.machine.receive_ends(), [(7, S::LocalProtection)]);
}

#[test]
fn a_key_that_cannot_be_invalidated_is_an_access_error() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(7, 100);
    let operation = SendOperation::Send {
        immediate: None,
        invalidate: Some(1234),
    };
    pair.a.post(request(1, operation, &[]));
    pair.run();
    assert_eq!(pair.a.machine.ends(), [(1, S::RemoteAccess)]);
    assert_eq!(pair.b.machine.receive_ends(), [(7, S::RemoteAccess)]);
    assert_eq!(pair.b.machine.events, [Event::AccessViolation]);
}

#[test]
fn the_answers_before_a_refusal_go_first() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(pattern(1000));
    let here = pair.a.machine.register(vec![0; 1000]);
    let list = [pair.a.machine.segment(here, 0, 1000)];
    let remote = pair.b.machine.remote(there, 0);
    pair.a
        .post(request(1, SendOperation::Read { remote }, &list));
    let nowhere = Remote { key: 77, ..remote };
    let write = SendOperation::Write {
        remote: nowhere,
        immediate: None,
    };
    pair.a.post(request(2, write, &list));
    pair.run();
    assert_eq!(
        pair.a.machine.ends(),
        [(1, S::Success), (2, S::RemoteAccess)]
    );
    assert_eq!(pair.a.machine.bytes(here), pattern(1000));
    assert_eq!(pair.b.queue_pair.state(), State::Error);
}

#[test]
fn the_first_packet_establishes_the_communication() {
    let mut node = node();
    node.machine.post_receive(1, 8);
    let mut other = made(O::SendOnly, 0);
    other.bth.partition_key = 0x8001;
    node.receive_made(other, &[1]);
    assert_eq!(node.machine.events, []);
    node.receive_made(made(O::SendOnly, 0), &[1]);
    node.receive_made(made(O::SendOnly, 1), &[1]);
    assert_eq!(node.machine.events, [Event::CommunicationEstablished]);
    let mut ready = Node::ready_to_send(2, RC);
    ready.receive_made(made(O::SendOnly, 0), &[1]);
    assert_eq!(ready.machine.events, []);
}

#[test]
fn packets_for_others_are_not_taken() {
    let changes: [fn(&mut Header); 6] = [
        |header| header.bth.destination = 3,
        |header| header.bth.destination = 0xff_ffff,
        |header| header.bth.partition_key = 0x8001,
        |header| header.bth.opcode.transport = Transport::UnreliableConnection,
        |header| header.bth.opcode.transport = Transport::UnreliableDatagram,
        |header| header.bth.opcode.transport = Transport::ExtendedReliableConnection,
    ];
    for change in changes {
        let mut node = node();
        node.machine.post_receive(1, 8);
        let mut header = made(O::SendOnly, 0);
        change(&mut header);
        node.receive_made(header, &[1]);
        assert_eq!(answers(&mut node), []);
        assert_eq!(node.machine.received.len(), 0);
    }
    for state in [State::Reset, State::Init, State::Error] {
        let mut node = Node::new(2, RC);
        *node.queue_pair.attributes_mut() = attributes(1);
        node.enter(State::Init);
        if state != State::Init {
            node.enter(state);
        }
        node.receive_made(made(O::SendOnly, 0), &[1]);
        assert_eq!(answers(&mut node), []);
    }
}

#[test]
fn receives_of_a_shared_queue_stay_in_it() {
    let mut node = node();
    node.queue_pair.attributes_mut().shared_receive = true;
    node.machine.post_receive(1, 1000);
    node.machine.post_receive(2, 1000);
    node.receive_made(made(O::SendFirst, 0), &[1; 256]);
    node.enter(State::Error);
    node.enter(State::Error);
    // The one that was taken comes back.
    assert_eq!(node.machine.receive_ends(), [(1, S::Flushed)]);
    assert_eq!(node.machine.receives.len(), 1);
    assert_eq!(node.machine.events[1..], [Event::LastRequestReached]);
}

#[test]
fn reset_forgets_without_a_word() {
    let mut node = Node::ready_to_send(2, RC);
    node.machine.post_receive(1, 1000);
    node.post_send(1, vec![1; 8]);
    node.receive_made(made(O::SendFirst, 0), &[1; 256]);
    node.enter(State::Reset);
    assert_eq!(node.machine.ends(), []);
    assert_eq!(node.machine.receive_ends(), []);
    assert_eq!(node.queue_pair.outstanding(), 0);
    assert!(node.transmit(Time::default()).is_none());
    assert_eq!(node.queue_pair.attributes().destination, 0);
}

#[test]
fn both_sides_send_at_once() {
    let mut pair = Pair::new(RC);
    let mut keys = Vec::new();
    for id in 0..20 {
        let at_a = pair.a.machine.post_receive(id, 3000);
        let at_b = pair.b.machine.post_receive(id, 3000);
        pair.a.post_send(id, pattern(3000));
        pair.b.post_send(id, pattern(2999));
        keys.push((at_a, at_b));
    }
    let mut count = 0u32;
    pair.run_with(|_, _| {
        count += 1;
        match count % 17 {
            3 => Fate::Drop,
            8 => Fate::Duplicate,
            _ => Fate::Deliver,
        }
    });
    for (at_a, at_b) in keys {
        assert_eq!(pair.a.machine.bytes(at_a)[..2999], pattern(2999));
        assert_eq!(pair.b.machine.bytes(at_b), pattern(3000));
    }
    for node in [&pair.a, &pair.b] {
        assert!(
            node.machine
                .ends()
                .into_iter()
                .eq((0..20).map(|id| (id, S::Success)))
        );
    }
}

#[test]
fn responses_go_before_the_own_requests_and_hold_nothing_up() {
    let mut pair = Pair::new(RC);
    let there = pair.b.machine.register(pattern(100_000));
    let here = pair.a.machine.register(vec![0; 100_000]);
    let list = [pair.a.machine.segment(here, 0, 100_000)];
    let remote = pair.b.machine.remote(there, 0);
    pair.a
        .post(request(1, SendOperation::Read { remote }, &list));
    pair.a.machine.post_receive(1, 8);
    pair.b.post_send(1, vec![1; 8]);
    let mut answered_first = false;
    pair.run_with(|from, packet| {
        let opcode = packet.header.bth.opcode;
        answered_first |= from == From::B && opcode.is_response();
        assert!(from == From::A || answered_first || opcode.is_send());
        Fate::Deliver
    });
    assert_eq!(pair.a.machine.bytes(here), pattern(100_000));
    assert_eq!(pair.b.machine.ends(), [(1, S::Success)]);
}

#[test]
fn a_target_takes_receives_of_the_queue_that_the_packet_names() {
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

    // A queue that does not exist.
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
fn an_xrc_request_without_a_receive_names_a_queue_too() {
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
fn each_half_of_xrc_takes_its_direction_alone() {
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
    assert_eq!(target.machine.sends[0].work, Work::Send);
}

/// Packets near the rules and far from them.
fn hostile() -> impl Strategy<Value = (Header, usize)> {
    let opcode = proptest::sample::select(O::ALL.to_vec());
    let place = prop_oneof![0..8u32, any::<u32>()];
    let length = prop_oneof![
        Just(0),
        Just(8),
        Just(256),
        Just(300),
        Just(2000),
        any::<u32>()
    ];
    let address = prop_oneof![
        (0..2000u64).prop_map(|offset| (1 << 40) + offset),
        any::<u64>()
    ];
    let key = prop_oneof![Just(1), 0..4u32, any::<u32>()];
    let payload = prop_oneof![Just(0), Just(8), Just(256), 0..300usize];
    let syndrome = prop_oneof![
        Just(Syndrome::Ack { credits: 31 }),
        Just(Syndrome::ReceiverNotReady { timer: 1 }),
        Just(Syndrome::Nak(Nak::SequenceError)),
    ];
    (
        opcode,
        place,
        length,
        address,
        key,
        payload,
        syndrome,
        any::<[u64; 2]>(),
    )
        .prop_map(
            |(operation, place, length, address, key, payload, syndrome, operands)| {
                let mut header = addressed(operation, place, Remote { address, key }, length);
                header.atomic = atomic(place, Remote { address, key }, operands[0]).atomic;
                header.original = Some(operands[1]);
                header.invalidate = header.bth.opcode.has_invalidate().then_some(key);
                header.immediate = header.bth.opcode.has_immediate().then_some([1; 4]);
                header.aeth = header.bth.opcode.has_aeth().then_some(Aeth {
                    syndrome,
                    message_sequence: 0,
                });
                (header, payload)
            },
        )
}

proptest! {
    #[test]
    fn no_packets_break_it(packets in proptest::collection::vec(hostile(), 1..60), follow in any::<bool>()) {
        let mut node = Node::ready_to_send(2, RC);
        node.machine.register(vec![0; 2000]);
        for id in 0..10 {
            node.machine.post_receive(id, 500);
            node.post_send(id, pattern(700));
        }
        let mut now = Time::default();
        for (mut header, length) in packets {
            if follow {
                let at = if header.bth.opcode.is_response() {
                    0xff_fff1 + header.bth.sequence % 8
                } else {
                    node.queue_pair.receive_sequence().value()
                };
                header.bth.sequence = Sequence::new(at).value();
            }
            node.receive_made(header, &vec![1; length]);
            // However much is asked for, it goes bit by bit.
            prop_assert!(node.transmit_all(now).len() <= 1000);
            prop_assert!(node.queue_pair.outstanding() <= 10);
            if let Some(due) = node.queue_pair.next_timeout() {
                now = now.max(due);
                node.queue_pair.handle_timeout(now, &mut node.machine);
            }
        }
        node.enter(State::Error);
        prop_assert_eq!(node.machine.sends.len(), 10);
        prop_assert_eq!(node.machine.received.len(), 10);
        prop_assert!(node.queue_pair.next_timeout().is_none());
    }
}
