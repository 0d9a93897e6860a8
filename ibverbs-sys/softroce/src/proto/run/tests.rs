use proptest::prelude::*;

use crate::proto::testing::{Node, Pair, arrival, pattern, request, send};
use crate::proto::{Counter, SendOperation, Service, State, Time};
use crate::wire::{Packet, Run};

const MTU: usize = 256;

/// A message that the test sends, with its length and a possible error.
#[derive(Clone, Copy, Debug)]
struct Message {
    length: usize,
    write: bool,
    wrong: Option<InjectedError>,
}

#[derive(Clone, Copy, Debug)]
enum InjectedError {
    /// The receive, or the remote memory, is shorter than the message.
    Short,
    /// The memory that contains the message is deregistered at the sender.
    Gone,
}

/// Way in which packets are written and received: one by one, or in runs of at most the given
/// number.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Packets,
    Runs(usize),
}

/// Sends all packets that may be sent now, and returns their bytes.
fn transmit(node: &mut Node, now: Time, by: Mode) -> Vec<Vec<u8>> {
    let Mode::Runs(most) = by else {
        return node.transmit_all(now);
    };
    let mut packets = Vec::new();
    loop {
        while let Some(run) = node.queue_pair.next_run(&node.machine) {
            // The buffer may have room for one packet only.
            let count = run.count.min(most);
            let mut out = vec![0xaa; count * (run.length + 4)];
            let Node {
                queue_pair,
                machine,
                ..
            } = node;
            if !queue_pair.write_run(count, now, machine, &mut out) {
                break;
            }
            for packet in out.chunks(run.length + 4) {
                assert_eq!(packet[run.length..], [0xaa; 4], "the place of the ICRC");
                packets.push(packet[..run.length].to_vec());
            }
        }
        match node.transmit(now) {
            Some(packet) => packets.push(packet),
            None => return packets,
        }
    }
}

/// Receives packets of equal size as one burst, each with room for an ICRC after it.
fn receive(node: &mut Node, now: Time, packets: &[Vec<u8>], by: Mode) {
    if matches!(by, Mode::Packets) {
        packets.iter().for_each(|packet| node.receive(now, packet));
        return;
    }
    for burst in packets.chunk_by(|a, b| a.len() == b.len()) {
        let stride = burst[0].len() + 4;
        let bytes = burst
            .iter()
            .flat_map(|packet| [&packet[..], &[0; 4]].concat());
        let (bytes, mut begin) = (bytes.collect::<Vec<_>>(), 0);
        while begin < bytes.len() {
            let rest = &bytes[begin..];
            let first = Packet::parse(&rest[..stride - 4]).unwrap();
            let run = Run::gather(first, rest, stride, |_| true);
            begin += run.count() * stride;
            let Node {
                queue_pair,
                machine,
                ..
            } = node;
            queue_pair.receive_run(now, &arrival(), &run, machine);
        }
    }
}

/// Sends `messages` from one node to the other. Returns a log of the packets, and of the
/// completions and the memory of both nodes. The wire drops the packets that `deliveries` selects.
fn transfer_log(messages: &[Message], window: u32, deliveries: &[bool], by: Mode) -> Vec<String> {
    let mut a = Node::ready_to_receive(1, Service::ReliableConnection);
    a.queue_pair.attributes_mut().window = window;
    a.enter(State::ReadyToSend);
    let b = Node::ready_to_send(2, Service::ReliableConnection);
    let Pair {
        mut a,
        mut b,
        mut now,
    } = Pair::of(a, b);
    for (id, message) in (0..).zip(messages) {
        let room = match message.wrong {
            Some(InjectedError::Short) => message.length / 2,
            _ => message.length,
        };
        let operation = if message.write {
            let key = b.machine.register(vec![0; room]);
            let remote = b.machine.remote(key, 0);
            SendOperation::Write {
                remote,
                immediate: None,
            }
        } else {
            b.machine.post_receive(id, room as u32);
            send()
        };
        let key = a.machine.register(pattern(message.length));
        // The message has two segments; the first ends within a packet.
        let cut = (message.length / 3) as u32;
        let list = [
            a.machine.segment(key, 0, cut),
            a.machine
                .segment(key, cut.into(), message.length as u32 - cut),
        ];
        if matches!(message.wrong, Some(InjectedError::Gone)) {
            a.machine.deregister(key);
        }
        a.post(request(id, operation, &list));
    }
    let mut said = Vec::new();
    let mut deliveries = deliveries.iter().copied().chain(std::iter::repeat(true));
    for _ in 0..10_000 {
        let mut moved = false;
        for turn in 0..2 {
            let (from, to) = match turn {
                0 => (&mut a, &mut b),
                _ => (&mut b, &mut a),
            };
            let mut packets = transmit(from, now, by);
            moved |= !packets.is_empty();
            said.extend(packets.iter().map(|packet| format!("{packet:02x?}")));
            packets.retain(|_| deliveries.next() == Some(true));
            receive(to, now, &packets, by);
        }
        said.push(format!(
            "{:?}",
            [&a, &b].map(|node| node.queue_pair.next_timeout())
        ));
        if moved {
            continue;
        }
        let due = [&a, &b].map(|node| node.queue_pair.next_timeout());
        let Some(due) = due.into_iter().flatten().min() else {
            break;
        };
        now = now.max(due);
        for node in [&mut a, &mut b] {
            node.queue_pair.handle_timeout(now, &mut node.machine);
        }
    }
    for node in [&a, &b] {
        let counted = [
            Counter::Retransmitted,
            Counter::DuplicateRequest,
            Counter::OutOfSequenceRequest,
            Counter::RemoteAccessErrors,
            Counter::RemoteInvalidRequests,
        ];
        let counted = counted.map(|counter| node.machine.counted(counter));
        let (ends, receives) = (node.machine.ends(), node.machine.receive_ends());
        said.push(format!("{ends:?} {receives:?} {counted:?}"));
        said.push(format!("{:?}", node.machine.content()));
    }
    said
}

fn message() -> impl Strategy<Value = Message> {
    let length = prop_oneof![
        0..MTU * 3,
        MTU..MTU * 40,
        (1_usize..30).prop_map(|n| n * MTU)
    ];
    let wrong = prop_oneof![
        20 => Just(None),
        1 => Just(Some(InjectedError::Short)),
        1 => Just(Some(InjectedError::Gone)),
    ];
    (length, any::<bool>(), wrong).prop_map(|(length, write, wrong)| Message {
        length,
        write,
        wrong,
    })
}

proptest! {
    #[test]
    fn a_run_has_the_same_effects_as_its_packets(
        messages in proptest::collection::vec(message(), 1..5),
        window in 1_u32..100,
        deliveries in proptest::collection::vec(proptest::bool::weighted(0.95), 0..200),
        most in 1_usize..80,
    ) {
        let apart = transfer_log(&messages, window, &deliveries, Mode::Packets);
        let together = transfer_log(&messages, window, &deliveries, Mode::Runs(most));
        for (one, other) in apart.iter().zip(&together) {
            prop_assert_eq!(one, other);
        }
        prop_assert_eq!(apart.len(), together.len());
    }
}

#[test]
fn the_middle_packets_of_a_message_form_a_run() {
    let mut node = Node::ready_to_receive(1, Service::ReliableConnection);
    node.queue_pair.attributes_mut().window = 16;
    node.enter(State::ReadyToSend);
    let now = Time::default();
    node.post_send(1, pattern(MTU * 10));
    assert_eq!(
        node.queue_pair.next_run(&node.machine),
        None,
        "the first one goes alone"
    );
    node.transmit(now).unwrap();
    let run = node.queue_pair.next_run(&node.machine).unwrap();
    assert_eq!((run.count, run.length), (8, 12 + MTU));
    node.transmit(now).unwrap();
    assert_eq!(node.queue_pair.next_run(&node.machine).unwrap().count, 7);
    for _ in 0..6 {
        node.transmit(now).unwrap();
    }
    assert_eq!(
        node.queue_pair.next_run(&node.machine),
        None,
        "there are no two left"
    );
    node.transmit_all(now);
    // The next run is limited by the window: 16 packets may be unacknowledged, and 11 are.
    node.post_send(2, pattern(MTU * 10));
    node.transmit(now).unwrap();
    assert_eq!(node.queue_pair.next_run(&node.machine).unwrap().count, 5);
    // Other services have no runs.
    let mut other = Node::ready_to_send(1, Service::UnreliableConnection);
    other.post_send(1, pattern(MTU * 10));
    other.transmit(now).unwrap();
    assert_eq!(other.queue_pair.next_run(&other.machine), None);
}
