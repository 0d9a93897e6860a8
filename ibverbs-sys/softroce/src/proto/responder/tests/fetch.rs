//! Tests of reads and atomics, and of their repetition.

use super::*;

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
    // The whole read again; its tail; some packets of it; one packet.
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
    // Requests that differ from the original are ignored.
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
fn a_duplicate_read_restarts_its_response() {
    let mut node = node();
    let key = node.machine.register(pattern(1024));
    let remote = node.machine.remote(key, 0);
    let read = addressed(O::ReadRequest, 0, remote, 1024);
    node.receive_made(read, &[]);
    node.transmit(Time::default());
    node.transmit(Time::default());
    // Packets that are still to be sent are sent once.
    let tail = addressed(O::ReadRequest, 2, node.machine.remote(key, 512), 512);
    node.receive_made(tail, &[]);
    let third = node.transmit(Time::default()).unwrap();
    assert_eq!(answer(&third), (O::ReadResponseMiddle, 2, None));
    node.receive_made(read, &[]);
    let places: Vec<_> = answers(&mut node).iter().map(|answer| answer.1).collect();
    assert_eq!(places, [0, 1, 2, 3]);
}

#[test]
fn an_atomic_operation_is_executed_once_despite_duplicates() {
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
    // Four are kept. An older one is not executed again.
    node.receive_made(atomic(1, remote, 10), &[]);
    assert_eq!(answers(&mut node), []);
    assert_eq!(node.machine.bytes(key)[8..], 60u64.to_ne_bytes());
}

#[test]
fn a_response_that_may_be_lost_is_not_replaced_by_an_acknowledgement() {
    let mut node = node();
    let key = node.machine.register(pattern(1024));
    let at = |node: &Node, offset| node.machine.remote(key, offset);
    let write = |place, bytes: &[u8], node: &mut Node| {
        let header = addressed(O::WriteOnly, place, node.machine.remote(key, 0), 8);
        node.receive_made(header, bytes);
    };
    write(0, &[1; 8], &mut node);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
    // The read takes the sequence numbers 2 to 4.
    node.receive_made(atomic(1, at(&node, 8), 1), &[]);
    node.receive_made(addressed(O::ReadRequest, 2, at(&node, 0), 768), &[]);
    node.receive_made(atomic(5, at(&node, 8), 1), &[]);
    assert_eq!(answers(&mut node).len(), 5);
    write(0, &[1; 8], &mut node);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
    // A request that is executed after them acknowledges all.
    write(6, &[2; 8], &mut node);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 6, ACK)]);
    node.receive_made(atomic(7, at(&node, 8), 1), &[]);
    answers(&mut node);
    write(0, &[1; 8], &mut node);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 6, ACK)]);
}

#[test]
fn more_reads_than_agreed_are_refused_as_an_invalid_request() {
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

    // Answered requests do not count, even when they are repeated.
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
fn a_response_is_read_from_memory_when_sent() {
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
fn a_late_duplicate_read_of_deregistered_memory_does_not_fail_the_queue_pair() {
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
fn a_long_response_is_sent_in_bursts() {
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
fn an_atomic_write_is_done_once_and_answered_without_data() {
    let mut node = node();
    let key = node.machine.register(vec![0; 16]);
    let remote = node.machine.remote(key, 8);
    let write = addressed(O::AtomicWrite, 0, remote, 8);
    node.receive_made(write, &[7; 8]);
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 0, ACK)]);
    assert_eq!(node.machine.bytes(key)[8..], [7; 8]);
    node.receive_made(addressed(O::WriteOnly, 1, remote, 8), &[9; 8]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 1, ACK)]);
    // The response of the atomic write was lost; the later write stays.
    node.receive_made(write, &[7; 8]);
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 0, ACK)]);
    assert_eq!(node.machine.bytes(key)[8..], [9; 8]);
}

#[test]
fn an_atomic_write_of_other_than_an_aligned_word_is_invalid() {
    for (offset, length, bytes) in [(4, 8, 8), (0, 4, 4), (0, 16, 16), (0, 8, 4), (0, 4, 8)] {
        let mut node = node();
        let key = node.machine.register(vec![0; 16]);
        let remote = node.machine.remote(key, offset);
        let write = addressed(O::AtomicWrite, 0, remote, length);
        node.receive_made(write, &vec![7; bytes]);
        let invalid = [refusal(0, Nak::InvalidRequest)];
        assert_eq!(answers(&mut node), invalid, "{offset} {length} {bytes}");
        assert_eq!(node.machine.bytes(key), [0; 16]);
    }
    // A peer that may write at all may not write there.
    let mut node = node();
    let key = (node.machine).register_for(vec![0; 8], AccessFlags::REMOTE_ATOMIC);
    let write = addressed(O::AtomicWrite, 0, node.machine.remote(key, 0), 8);
    node.receive_made(write, &[7; 8]);
    assert_eq!(answers(&mut node), [refusal(0, Nak::RemoteAccessError)]);
}

#[test]
fn a_flush_is_answered_after_the_writes_before_it() {
    let mut node = node();
    let key = node.machine.register(vec![0; 1000]);
    let remote = node.machine.remote(key, 0);
    node.receive_made(addressed(O::WriteOnly, 0, remote, 8), &[1; 8]);
    let range = Feth {
        placement: 1,
        level: 0,
    };
    node.receive_made(flush(1, remote, 1000, range), &[]);
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 1, ACK)]);
    node.receive_made(flush(1, remote, 1000, range), &[]);
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 1, ACK)]);
    // Of the whole region, neither the address nor the length counts.
    let whole = Feth { level: 1, ..range };
    let nowhere = Remote { address: 0, key };
    node.receive_made(flush(2, nowhere, 0, whole), &[]);
    assert_eq!(answers(&mut node), [(O::ReadResponseOnly, 2, ACK)]);
}

#[test]
fn a_flush_needs_its_rights_at_the_queue_pair_and_the_region() {
    let global = Feth {
        placement: 1,
        level: 0,
    };
    let write = AccessFlags::REMOTE_WRITE;
    let both = AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
    let of = |placement, level| Feth { placement, level };
    for (access, length, feth, nak) in [
        (both, 65, global, Nak::RemoteAccessError),
        (write, 8, global, Nak::RemoteAccessError),
        (write, 8, of(1, 1), Nak::RemoteAccessError),
        // The queue pair does not permit it.
        (both, 8, of(2, 0), Nak::InvalidRequest),
        (both, 8, of(3, 0), Nak::InvalidRequest),
        (both, 8, of(0, 0), Nak::InvalidRequest),
        (both, 8, of(5, 0), Nak::InvalidRequest),
        (both, 8, of(1, 2), Nak::InvalidRequest),
    ] {
        let mut node = node();
        let key = node.machine.register_for(vec![0; 64], access);
        let remote = node.machine.remote(key, 0);
        node.receive_made(flush(0, remote, length, feth), &[]);
        assert_eq!(answers(&mut node), [refusal(0, nak)], "{access:?} {feth:?}");
    }
}
