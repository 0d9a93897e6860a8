//! Compares transfers within a process with packets: the same requests between the same two queue
//! pairs must have the same results.

use proptest::prelude::*;
use proptest::sample::select;

use crate::proto::testing::{
    Direction, Node, Pair, WireEffect, arrival, path, pattern, request, send,
};
use crate::proto::{
    AccessFlags, CompletionStatus as S, Counter, Event, Payload, SendOperation, SendProgress,
    Sequence, Service, State, Time, WindowBinding,
};
use crate::transfer::{Peer, TransferHost, in_process};

const RC: Service = Service::ReliableConnection;
const UC: Service = Service::UnreliableConnection;
const UD: Service = Service::UnreliableDatagram;

impl Pair {
    /// Transfers all parts of messages that can be transferred without packets, in both directions.
    /// Returns their number.
    fn move_directly(&mut self) -> usize {
        let mut parts = 0;
        let Self { a, b, now } = self;
        loop {
            let before = parts;
            while step(a, b, *now) == SendProgress::Transferred {
                parts += 1;
            }
            while step(b, a, *now) == SendProgress::Transferred {
                parts += 1;
            }
            if parts == before {
                return parts;
            }
        }
    }

    /// Runs both nodes like [`run`](Self::run), but transfers messages without packets where
    /// possible. If `packets` is `false`, checks that no packet is sent.
    fn run_directly(&mut self, packets: bool) {
        for _ in 0..10_000 {
            self.move_directly();
            let mut any = false;
            for turn in [Direction::A, Direction::B] {
                let (source, target) = match turn {
                    Direction::A => (&mut self.a, &mut self.b),
                    Direction::B => (&mut self.b, &mut self.a),
                };
                // Packets may always be sent to a failed queue pair.
                let packets = packets || target.queue_pair.state() == State::Error;
                if let Some(bytes) = source.transmit(self.now) {
                    assert!(packets, "a packet goes");
                    target.receive(self.now, &bytes);
                    any = true;
                }
            }
            if any {
                continue;
            }
            let due = [&self.a, &self.b].map(|node| node.queue_pair.next_timeout());
            let Some(due) = due.into_iter().flatten().min() else {
                return;
            };
            self.now = self.now.max(due);
            for node in [&mut self.a, &mut self.b] {
                node.queue_pair.handle_timeout(self.now, &mut node.machine);
            }
        }
        panic!("it does not end");
    }
}

/// Transfers the next part of a message without packets from one node to the other.
fn step(from: &mut Node, to: &mut Node, now: Time) -> SendProgress {
    let (queue_pair, host) = (&mut from.queue_pair, &mut from.machine);
    host.peer = Peer::SameProcess;
    if queue_pair.next_step(|| now) != SendProgress::Transferred {
        return queue_pair.next_step(|| now);
    }
    let upcoming = match queue_pair.upcoming(|| now, host) {
        Ok(upcoming) => upcoming,
        Err(step) => return step,
    };
    let part = in_process::next_part(queue_pair, &upcoming).expect("a request");
    let transfer = host.transfer(part.request, &upcoming);
    let (peer, theirs) = (&mut to.queue_pair, &mut to.machine);
    let outcome = match part.request.operation {
        SendOperation::Datagram { .. } => peer.take_datagram(&part, &arrival().route, theirs, host),
        _ => in_process::transfer_part(&part, transfer, peer, theirs, host),
    };
    let packets = part.packets;
    queue_pair.conclude_part(&upcoming, packets, outcome, || now, host)
}

/// A request with its parameters and possible faults.
#[derive(Clone, Debug)]
enum TestRequest {
    Send { immediate: bool, invalidate: bool },
    Write { immediate: bool },
    Read,
    CompareSwap,
    FetchAdd,
    Bind,
    Invalidate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestFault {
    None,
    LocalKey,
    RemoteKey,
    RemoteEnd,
    Alignment,
}

#[derive(Clone, Debug)]
enum Act {
    Post {
        from_a: bool,
        order: TestRequest,
        length: u32,
        inline: bool,
        flaw: RequestFault,
        fence: bool,
        signaled: bool,
    },
    Receive {
        at_a: bool,
        length: u32,
    },
    /// Transfers all messages that can be transferred now.
    Settle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let length = prop_oneof![
        0..10_u32,
        250..260_u32,
        500..530_u32,
        Just(70_000_u32),
        65_530..65_540_u32
    ];
    let order = prop_oneof![
        (any::<bool>(), any::<bool>()).prop_map(|(immediate, invalidate)| TestRequest::Send {
            immediate,
            invalidate: invalidate && !immediate
        }),
        any::<bool>().prop_map(|immediate| TestRequest::Write { immediate }),
        Just(TestRequest::Read),
        Just(TestRequest::CompareSwap),
        Just(TestRequest::FetchAdd),
        Just(TestRequest::Bind),
        Just(TestRequest::Invalidate),
    ];
    let flaw = prop_oneof![
        20 => Just(RequestFault::None),
        1 => select(vec![RequestFault::LocalKey, RequestFault::RemoteKey, RequestFault::RemoteEnd, RequestFault::Alignment]),
    ];
    let post = (
        any::<bool>(),
        order,
        length.clone(),
        any::<bool>(),
        flaw,
        any::<bool>(),
        any::<bool>(),
    );
    let act = prop_oneof![
        5 => post.prop_map(|(from_a, order, length, inline, flaw, fence, signaled)| Act::Post {
            from_a, order, length, inline: inline && length < 64, flaw, fence, signaled
        }),
        4 => (any::<bool>(), length).prop_map(|(at_a, room)| Act::Receive { at_a, length: room }),
        2 => Just(Act::Settle),
    ];
    prop::collection::vec(act, 1..40)
}

/// Performs all actions on two nodes, and calls `settle` to transfer the messages.
fn play(service: Service, acts: &[Act], mut settle: impl FnMut(&mut Pair)) -> Pair {
    let mut pair = Pair::new(service);
    let mut sender = None;
    for node in [&mut pair.a, &mut pair.b] {
        // The connection ends if the receiver is not ready for long.
        node.queue_pair.attributes_mut().rnr_retry = 2;
    }
    for (id, act) in acts.iter().enumerate() {
        let id = id as u64;
        if let Act::Post { from_a, .. } = act {
            // Only one side posts at a time: if a failure ends the connection, it is undefined
            // which requests of the other side have been executed.
            if sender.is_some_and(|sender| sender != *from_a) {
                settle(&mut pair);
            }
            sender = Some(*from_a);
        }
        match act {
            &Act::Receive { at_a, length } => {
                let node = if at_a { &mut pair.a } else { &mut pair.b };
                if node.queue_pair.state() != State::Error {
                    node.machine.post_receive(id, length);
                }
            }
            Act::Settle => settle(&mut pair),
            Act::Post {
                from_a,
                order,
                length,
                inline,
                flaw,
                fence,
                signaled,
            } => {
                let (own, peer) = if *from_a {
                    (&mut pair.a, &mut pair.b)
                } else {
                    (&mut pair.b, &mut pair.a)
                };
                let fetches = matches!(
                    order,
                    TestRequest::Read | TestRequest::CompareSwap | TestRequest::FetchAdd
                );
                let length = match order {
                    TestRequest::CompareSwap | TestRequest::FetchAdd => 8,
                    _ => *length,
                };
                let here = own.machine.register(pattern(length as usize));
                // The target has other bytes than the source, so that missing copies are detected.
                let other = pattern(length as usize + 8);
                let other = other.into_iter().map(|byte| !byte).collect();
                let there = peer.machine.register(other);
                let mut list = vec![
                    own.machine.segment(here, 0, length / 3),
                    own.machine
                        .segment(here, u64::from(length / 3), length - length / 3),
                ];
                if *flaw == RequestFault::LocalKey {
                    // Both segments get a wrong key: otherwise packets with the valid bytes would
                    // be sent before the failure.
                    (list[0].key, list[1].key) = (0x7777, 0x7777);
                }
                let mut remote = peer.machine.remote(there, 0);
                match flaw {
                    RequestFault::RemoteKey => remote.key = 0x7777,
                    RequestFault::RemoteEnd => remote.address += 9,
                    RequestFault::Alignment => remote.address += 4,
                    _ => {}
                }
                let window = |node: &mut Node| node.machine.window();
                let operation = match order {
                    TestRequest::Send {
                        immediate,
                        invalidate,
                    } => SendOperation::Send {
                        immediate: immediate.then_some([1, 2, 3, id as u8]),
                        invalidate: (*invalidate && service == RC).then_some(there),
                    },
                    TestRequest::Write { immediate } => SendOperation::Write {
                        remote,
                        immediate: immediate.then_some([4, 5, 6, id as u8]),
                    },
                    TestRequest::Read => SendOperation::Read { remote },
                    TestRequest::CompareSwap => SendOperation::CompareSwap {
                        remote,
                        compare: 1,
                        swap: 2,
                    },
                    TestRequest::FetchAdd => SendOperation::FetchAdd { remote, add: 3 },
                    TestRequest::Bind => SendOperation::Bind(WindowBinding {
                        window: window(own),
                        key: 1,
                        region: here,
                        address: remote.address,
                        length: 8,
                        access: AccessFlags::empty(),
                    }),
                    TestRequest::Invalidate => SendOperation::LocalInvalidate {
                        key: own.machine.register(vec![0; 8]),
                    },
                };
                let mut request = request(id, operation, &list);
                if *inline && !fetches {
                    request.payload = Payload::Inline(pattern(length as usize).into());
                }
                request.fence = *fence;
                request.signaled = *signaled;
                request.solicited = *fence;
                own.post(request);
                if *flaw != RequestFault::None {
                    // Packets of later requests may be sent before the response that ends the
                    // connection.
                    settle(&mut pair);
                }
            }
        }
    }
    settle(&mut pair);
    pair
}

/// Returns all that a program at the node can observe: completions, events and memory.
fn seen(node: &Node) -> impl PartialEq + std::fmt::Debug + use<> {
    let machine = &node.machine;
    let mut counts = Vec::new();
    for counter in [
        Counter::RnrRetryExceeded,
        Counter::RemoteAccessErrors,
        Counter::RemoteInvalidRequests,
        Counter::ReceiveDropped,
    ] {
        counts.push((counter, machine.counted(counter)));
    }
    let end = |c: &crate::proto::Completion| match c.status {
        S::Success => *c,
        // Only the id and the status are valid.
        status => crate::proto::Completion {
            status,
            opcode: crate::proto::CompletionOpcode::Send,
            length: 0,
            immediate: None,
            invalidated: None,
            ..*c
        },
    };
    (
        machine.sends.iter().map(end).collect::<Vec<_>>(),
        machine
            .received
            .iter()
            .map(|(c, _)| end(c))
            .collect::<Vec<_>>(),
        machine.events.clone(),
        counts,
        node.queue_pair.state(),
    )
}

fn compare(service: Service, acts: &[Act], mixed: bool) {
    let by_packets = play(service, acts, |pair| pair.run());
    // A request with an error is sent as packets, whose responses report the error. Without an
    // error no packet is sent.
    let nodes = [&by_packets.a, &by_packets.b];
    let fails = nodes
        .iter()
        .any(|node| node.queue_pair.state() == State::Error);
    let packets = mixed || fails || service != RC;
    let mut turn = 0;
    let directly = play(service, acts, |pair| {
        turn += 1;
        if mixed && turn % 2 == 0 {
            pair.run();
        } else {
            pair.run_directly(packets);
        }
    });
    for (one, other) in [(&by_packets.a, &directly.a), (&by_packets.b, &directly.b)] {
        assert_eq!(
            format!("{:?}", seen(one)),
            format!("{:?}", seen(other)),
            "{service:?} {acts:?}"
        );
        if one.queue_pair.state() == State::ReadyToSend
            && by_packets.a.queue_pair.state() == by_packets.b.queue_pair.state()
        {
            assert_eq!(one.machine.content(), other.machine.content());
            assert_eq!(
                one.queue_pair.send_sequence(),
                other.queue_pair.send_sequence()
            );
            assert_eq!(
                one.queue_pair.receive_sequence(),
                other.queue_pair.receive_sequence()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_connection_has_the_same_effects_as_with_packets(acts in acts()) {
        compare(RC, &acts, false);
    }

    #[test]
    fn direct_messages_and_packets_alternate(acts in acts()) {
        compare(RC, &acts, true);
    }

    #[test]
    fn an_unreliable_connection_has_the_same_effects_as_with_packets(acts in acts()) {
        let posts = |act: &Act| matches!(
            act,
            Act::Post { order: TestRequest::Send { .. } | TestRequest::Write { .. }, .. }
                | Act::Receive { .. }
                | Act::Settle
        );
        let acts: Vec<Act> = acts.into_iter().filter(posts).collect();
        compare(UC, &acts, false);
        compare(UC, &acts, true);
    }
}

#[test]
fn a_message_begun_as_packets_is_completed_by_direct_copy() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(1, 2000);
    pair.a.post_send(1, pattern(2000));
    let packets: Vec<_> = (0..3).filter_map(|_| pair.a.transmit(pair.now)).collect();
    // Unacknowledged packets must be answered first.
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::PacketsOnly
    );
    for bytes in &packets {
        pair.b.receive(pair.now, bytes);
    }
    // The last packet requested no acknowledgement, so another packet is sent.
    pair.run();
    assert_eq!(pair.b.machine.bytes(key), pattern(2000));
    pair.b.machine.post_receive(2, 8);
    pair.a.post_send(2, pattern(8));
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::Transferred
    );
    assert_eq!(pair.a.machine.ends(), [(1, S::Success), (2, S::Success)]);
}

#[test]
fn a_message_to_a_peer_that_is_not_ready_is_sent_as_packets() {
    for state in [State::Reset, State::Init, State::Error] {
        let mut pair = Pair::new(RC);
        pair.b.enter(state);
        pair.a.post_send(1, pattern(8));
        assert_eq!(
            step(&mut pair.a, &mut pair.b, pair.now),
            SendProgress::PacketsOnly
        );
        pair.run_directly(true);
        assert_eq!(pair.a.machine.ends(), [(1, S::RetryExceeded)]);
    }
    // Sequence numbers that do not match.
    let mut pair = Pair::new(RC);
    pair.b.queue_pair.attributes_mut().receive_sequence = Sequence::new(77);
    pair.b.enter(State::ReadyToReceive);
    pair.a.post_send(1, pattern(8));
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::PacketsOnly
    );
}

#[test]
fn the_first_message_establishes_the_connection() {
    let mut pair = Pair::of(Node::ready_to_send(1, RC), Node::ready_to_receive(2, RC));
    pair.b.machine.post_receive(1, 8);
    pair.a.post_send(1, pattern(8));
    pair.a.post_send(2, pattern(8));
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::Transferred
    );
    assert_eq!(pair.b.machine.events, [Event::CommunicationEstablished]);
    // The second message waits for a receive, and then for the RNR timer.
    assert_eq!(step(&mut pair.a, &mut pair.b, pair.now), SendProgress::Idle);
    pair.b.machine.post_receive(2, 8);
    assert_eq!(step(&mut pair.a, &mut pair.b, pair.now), SendProgress::Idle);
    pair.now = pair.a.queue_pair.next_timeout().unwrap();
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::Transferred
    );
    assert_eq!(pair.a.machine.counted(Counter::ReceivedRnr), 1);
    assert_eq!(pair.b.machine.counted(Counter::SentRnr), 1);
    assert_eq!(
        pair.b.machine.receive_ends(),
        [(1, S::Success), (2, S::Success)]
    );
}

#[test]
fn a_long_message_is_copied_in_parts() {
    let length = 1 << 20;
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.post_receive(1, length);
    pair.a.post_send(1, pattern(length as usize));
    assert_eq!(pair.move_directly(), 16);
    assert_eq!(pair.b.machine.bytes(key), pattern(length as usize));
    assert_eq!(pair.a.machine.ends(), [(1, S::Success)]);
}

#[test]
fn draining_completes_only_messages_that_have_begun() {
    let mut pair = Pair::new(RC);
    pair.b.machine.post_receive(1, 1 << 20);
    pair.a.post_send(1, pattern(1 << 20));
    pair.a.post_send(2, pattern(8));
    assert_eq!(
        step(&mut pair.a, &mut pair.b, pair.now),
        SendProgress::Transferred
    );
    pair.a.enter(State::SendQueueDrained);
    pair.run_directly(false);
    assert_eq!(pair.a.machine.ends(), [(1, S::Success)]);
    assert_eq!(pair.a.machine.events, [Event::SendQueueDrained]);
}

#[test]
fn datagrams_are_received_after_their_global_routing_header() {
    let datagram = |queue_key| SendOperation::Datagram {
        immediate: Some([1, 2, 3, 4]),
        path: path(),
        destination: 2,
        queue_key,
    };
    let mut pair = Pair::new(UD);
    let key = pair.b.machine.post_receive(1, 296);
    let region = pair.a.machine.register(pattern(256));
    let list = [pair.a.machine.segment(region, 0, 256)];
    pair.a.post(request(1, datagram(0x1234), &list));
    pair.a.post(request(2, datagram(0x1234), &list));
    pair.a.post(request(3, datagram(0x1235), &list));
    assert_eq!(pair.move_directly(), 3);
    let bytes = pair.b.machine.bytes(key);
    assert_eq!(bytes[..40], arrival().route);
    assert_eq!(bytes[40..], pattern(256));
    let (completion, _) = &pair.b.machine.received[0];
    assert_eq!((completion.length, completion.source), (296, 1));
    assert_eq!(completion.immediate, Some([1, 2, 3, 4]));
    assert!(completion.network.is_some());
    // One datagram without a receive, and one with a wrong queue key.
    assert_eq!(pair.b.machine.counted(Counter::ReceiveDropped), 2);
    let ends = [(1, S::Success), (2, S::Success), (3, S::Success)];
    assert_eq!(pair.a.machine.ends(), ends);
    // From here on packets are used: no earlier datagram counts as in flight.
    pair.b.machine.post_receive(2, 296);
    pair.a.post(request(4, datagram(0x1234), &list));
    pair.run_with(|_, _| WireEffect::Deliver);
    assert_eq!(pair.b.machine.receive_ends().len(), 2);
}

#[test]
fn a_send_has_its_length_invalidation_and_solicitation() {
    let mut pair = Pair::new(RC);
    let key = pair.b.machine.register(vec![0; 8]);
    pair.b.machine.post_receive(1, 100);
    let here = pair.a.machine.register(pattern(100));
    let list = [pair.a.machine.segment(here, 0, 100)];
    let mut operation = send();
    if let SendOperation::Send { invalidate, .. } = &mut operation {
        *invalidate = Some(key);
    }
    let mut request = request(1, operation, &list);
    request.solicited = true;
    pair.a.post(request);
    assert_eq!(pair.move_directly(), 1);
    let (completion, _) = &pair.b.machine.received[0];
    assert_eq!(completion.length, 100);
    assert_eq!(completion.invalidated, Some(key));
    assert!(completion.solicited && !pair.b.machine.is_valid(key));
}

/// Posts a write of `length` bytes with a wrong key or an end out of bounds.
fn post_refused_write(pair: &mut Pair, length: u32, immediate: bool, is_key_wrong: bool) -> u32 {
    let there = pair.b.machine.register(vec![0xee; length as usize]);
    let here = pair.a.machine.register(pattern(length as usize));
    let mut remote = pair.b.machine.remote(there, u64::from(!is_key_wrong));
    remote.key ^= u32::from(is_key_wrong) << 16;
    let operation = SendOperation::Write {
        remote,
        immediate: immediate.then_some([1, 2, 3, 4]),
    };
    let list = [pair.a.machine.segment(here, 0, length)];
    pair.a.post(request(1, operation, &list));
    there
}

#[test]
fn a_write_that_ends_outside_of_its_region_writes_nothing() {
    for service in [RC, UC] {
        let mut pair = Pair::new(service);
        let there = post_refused_write(&mut pair, 70_000, false, false);
        pair.run_directly(true);
        assert!(pair.b.machine.bytes(there).iter().all(|&byte| byte == 0xee));
        assert_eq!(pair.b.queue_pair.state() == State::Error, service == RC);
    }
}

#[test]
fn a_refused_write_consumes_no_receive() {
    // A write of one packet, and a write of several.
    for length in [200, 70_000] {
        let mut pair = Pair::new(RC);
        pair.b.machine.post_receive(7, 8);
        post_refused_write(&mut pair, length, true, true);
        pair.run_directly(true);
        assert_eq!(pair.a.machine.ends(), [(1, S::RemoteAccess)]);
        assert_eq!(pair.b.machine.receive_ends(), [(7, S::Flushed)]);
    }
}
