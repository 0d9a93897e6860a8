//! Tests of failing requests and their completions.

use super::*;

#[test]
fn a_nak_fails_the_request_of_its_sequence_number() {
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
fn an_invalid_response_fails_its_request() {
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
fn unreadable_bytes_fail_their_request_in_order() {
    let mut node = lone_sends(1);
    let key = node.machine.register(vec![1; 300]);
    let list = [
        node.machine.segment(key, 0, 300),
        node.machine.segment(99, 0, 300),
    ];
    node.post(request(1, send(), &list));
    node.post_send(2, vec![1; 8]);
    // Only the second segment has an invalid key, so the first packet could be built.
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
fn an_unsignaled_request_completes_if_it_fails() {
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
