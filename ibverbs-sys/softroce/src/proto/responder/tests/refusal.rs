//! Tests of requests that end the connection.

use super::*;

/// Returns sequences of packets that violate the protocol, with the lengths of their payloads.
fn invalid(remote: Remote) -> Vec<Vec<(Header, usize)>> {
    let write = |operation, place, length| addressed(operation, place, remote, length);
    let huge = (1 << 31) + 1;
    let mut misaligned = remote;
    misaligned.address += 4;
    vec![
        // Wrong order.
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
        // Wrong lengths.
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
        // Missing headers.
        vec![(made(O::WriteOnly, 0), 1)],
        vec![(made(O::ReadRequest, 0), 0)],
        vec![(made(O::FetchAdd, 0), 0)],
        vec![(atomic(0, misaligned, 1), 0)],
    ]
}

#[test]
fn invalid_requests_end_the_connection() {
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
        // The receive of the message fails, all other receives are flushed.
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
        // The queue pair answers no more packets.
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
    // Unknown key, out of bounds, across the end of the address space.
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
fn an_empty_access_needs_no_key() {
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
fn a_message_longer_than_its_receive_fails_both_sides() {
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
        // The completion reports the error, so no event does.
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
fn a_repeated_send_whose_key_is_no_longer_in_use_is_acknowledged() {
    let mut node = node();
    let key = node.machine.register(vec![0; 8]);
    node.machine.post_receive(1, 8);
    node.machine.has_keys_in_use = true;
    let mut send = made(O::SendOnlyInvalidate, 0);
    send.invalidate = Some(key);
    node.receive_made(send, &[]);
    assert_eq!(answers(&mut node), []);
    node.machine.has_keys_in_use = false;
    // The requester repeats the packet before the responder has requested it.
    node.receive_made(send, &[]);
    assert_eq!(answers(&mut node), [(O::Acknowledge, 0, ACK)]);
    assert_eq!(node.machine.receive_ends(), [(1, S::Success)]);
}

#[test]
fn acknowledgements_before_a_refusal_are_sent_first() {
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
