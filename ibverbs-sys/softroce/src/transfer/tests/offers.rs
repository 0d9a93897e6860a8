//! Tests of long messages whose bytes the receiver copies from the memory of the sender.

use super::ring_message::{EncodedMessage, hear, poll, ring_message, two};
use crate::proto::testing::{Machine, Node, pattern, request, send};
use crate::proto::{
    CompletionOpcode, CompletionStatus as S, CopyError, Counter, Data, Memory, Payload, Remote,
    Segment, SendOperation, SendRequest, State, Time, UnqueuedMessage,
};
use crate::transfer::choice::{MAX_MAPPED_PART as PART, MIN_OFFER, MIN_OFFER_MAPPED};
use crate::transfer::{self, MAX_SLOT_BYTES, PayloadForm, Peer, PeerMemory, Volume};

const LONG: usize = 200_000;

/// Access of a node to the memory of its peer node.
struct SharedNode<'a>(&'a Node);

impl PeerMemory<Machine> for SharedNode<'_> {
    fn write(&mut self, request: &SendRequest, host: &Machine) -> Option<()> {
        let (Payload::Gathered(list), SendOperation::Write { remote, .. }) =
            (&request.payload, &request.operation)
        else {
            return None;
        };
        let mut bytes = vec![0; request.length as usize];
        host.gather(list, 0, &mut bytes).ok()?;
        let Remote { address, key } = *remote;
        self.0.machine.write_remote(key, address, &bytes).ok()
    }

    fn fetch(
        &mut self,
        from: &[Segment],
        to: &[Segment],
        offset: u32,
        host: &Machine,
    ) -> Result<(), CopyError> {
        // A process refuses keys that it does not know, also those of empty segments.
        assert!(from.iter().all(|segment| segment.length > 0), "{from:?}");
        let length: u32 = from.iter().map(|segment| segment.length).sum();
        let mut bytes = vec![0; length as usize];
        let gathered = self.0.machine.gather(from, 0, &mut bytes);
        gathered.map_err(|_| CopyError::Peer)?;
        host.scatter(to, offset, &bytes)
            .map_err(|_| CopyError::Local)
    }
}

/// Returns the next ring message from one node to the other. Each node can access the memory of the
/// other.
fn offer(from: &mut Node, to: &Node) -> Option<EncodedMessage> {
    poll(from, &mut SharedNode(to))
}

/// Receives a ring message from a peer whose memory is accessible. Returns the amount of data that
/// was received.
fn fetch(to: &mut Node, from: &Node, said: &EncodedMessage) -> Volume {
    let Node {
        queue_pair,
        machine,
        ..
    } = to;
    said.with(|ring_message| {
        if said.is_offer() {
            let mut peer = SharedNode(from);
            transfer::ring_message::receive(
                queue_pair,
                Time::default,
                ring_message,
                machine,
                &mut peer,
            )
        } else {
            let mut chunks = said.chunks();
            transfer::ring_message::receive(
                queue_pair,
                Time::default,
                ring_message,
                machine,
                &mut chunks,
            )
        }
    })
}

/// Delivers all messages of `a` and all responses of `b`, as ring messages or packets. Returns the
/// number of offers: messages whose bytes `b` copies from the memory of `a`.
fn exchange(a: &mut Node, b: &mut Node) -> usize {
    let now = Time::default();
    let mut offers = 0;
    loop {
        let mut moved = false;
        while let Some(said) = offer(a, b) {
            fetch(b, a, &said);
            offers += usize::from(said.is_offer());
            moved = true;
        }
        while let Some(packet) = a.transmit(now) {
            b.receive(now, &packet);
            moved = true;
        }
        while let Some(said) = offer(b, a) {
            fetch(a, b, &said);
            moved = true;
        }
        while let Some(packet) = b.transmit(now) {
            a.receive(now, &packet);
            moved = true;
        }
        if !moved {
            return offers;
        }
    }
}

#[test]
fn a_long_message_is_fetched_in_parts_with_two_parts_in_flight() {
    let (mut a, mut b) = two();
    a.machine.is_mappable = true;
    let key = b.machine.post_receive(7, LONG as u32);
    a.post_send(1, pattern(LONG));
    let parts = LONG.div_ceil(PART as usize);
    let mut fetched = 0;
    let mut waiting: Vec<EncodedMessage> = Vec::new();
    while fetched < parts {
        while let Some(said) = offer(&mut a, &b) {
            waiting.push(said);
        }
        let left = parts - fetched;
        assert_eq!(waiting.len(), left.min(2));
        assert_eq!(a.transmit(Time::default()), None, "packets do not take it");
        fetch(&mut b, &a, &waiting.remove(0));
        fetched += 1;
        let answer = ring_message(&mut b).unwrap();
        hear(&mut a, &answer);
    }
    assert_eq!(b.machine.receive_ends(), [(7, S::Success)]);
    assert_eq!(b.machine.received[0].0.length, LONG as u32);
    assert_eq!(b.machine.bytes(key), pattern(LONG));
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(a.sent, 0);
}

/// Checks that a message with a short last part does not use up the room of the next message.
#[test]
fn a_short_last_part_leaves_room_for_the_next_message() {
    const LENGTH: usize = PART as usize + 8;
    let (mut a, mut b) = two();
    a.machine.is_mappable = true;
    let keys = [7, 8].map(|id| b.machine.post_receive(id, LENGTH as u32));
    a.post_send(1, pattern(LENGTH));
    a.post_send(2, pattern(LENGTH));
    let mut lengths = Vec::new();
    while let Some(said) = offer(&mut a, &b) {
        lengths.push(said.length());
        fetch(&mut b, &a, &said);
    }
    assert_eq!(lengths, [PART, 8, PART], "without an acknowledgement");
    exchange(&mut a, &mut b);
    assert_eq!(a.machine.ends(), [(1, S::Success), (2, S::Success)]);
    for key in keys {
        assert_eq!(b.machine.bytes(key), pattern(LENGTH));
    }
}

#[test]
fn each_received_part_is_counted_once_with_one_copy() {
    let (mut a, mut b) = two();
    a.machine.is_mappable = true;
    b.machine.post_receive(7, LONG as u32);
    a.post_send(1, pattern(LONG));
    let (mut all, mut parts) = (Volume::default(), 0);
    while let Some(said) = offer(&mut a, &b) {
        let taken = fetch(&mut b, &a, &said);
        all.messages += taken.messages;
        all.bytes += taken.bytes;
        all.copies += taken.copies;
        parts += 1;
        assert_eq!(taken.messages == 1, all.bytes == LONG as u64);
        assert_eq!(fetch(&mut b, &a, &said), Volume::default(), "a duplicate");
        let answer = ring_message(&mut b).unwrap();
        hear(&mut a, &answer);
    }
    assert_eq!(parts, LONG.div_ceil(PART as usize) as u64);
    let expected = Volume {
        messages: 1,
        bytes: LONG as u64,
        copies: parts,
    };
    assert_eq!(all, expected);
}

#[test]
fn a_message_without_a_receive_is_not_counted() {
    let (mut a, mut b) = two();
    a.post_send(1, pattern(LONG));
    let said = offer(&mut a, &b).unwrap();
    assert_eq!(fetch(&mut b, &a, &said), Volume::default());
}

/// Checks from which length on the receiver copies the bytes of a message from the sender's memory,
/// if it can map that memory and if only the kernel can copy.
#[test]
fn shorter_messages_are_fetched_from_memory_that_can_be_mapped() {
    for (length, is_mappable, is_fetched) in [
        (MIN_OFFER_MAPPED as usize - 1, true, false),
        (MIN_OFFER_MAPPED as usize, true, true),
        (MIN_OFFER_MAPPED as usize, false, false),
        (MIN_OFFER as usize - 1, false, false),
        (MIN_OFFER as usize, false, true),
    ] {
        let (mut a, mut b) = two();
        a.machine.is_mappable = is_mappable;
        let key = b.machine.post_receive(7, length as u32);
        a.post_send(1, pattern(length));
        assert_eq!(
            exchange(&mut a, &mut b) > 0,
            is_fetched,
            "{length} {is_mappable}"
        );
        assert_eq!(b.machine.bytes(key), pattern(length));
        assert_eq!(a.machine.ends(), [(1, S::Success)]);
    }
}

/// Checks that a message is offered (sent as the location of its bytes) at the time of posting, as
/// long as few enough messages are unacknowledged. The key of an empty segment need not be valid.
#[test]
fn a_posted_message_is_offered_immediately() {
    const LENGTH: usize = 2000;
    let (mut a, mut b) = two();
    let keys: Vec<u32> = (0..8)
        .map(|id| b.machine.post_receive(id, LENGTH as u32))
        .collect();
    let key = a.machine.register(pattern(LENGTH));
    let segment = a.machine.segment(key, 0, LENGTH as u32);
    let mut said = Vec::new();
    for id in 0..8 {
        let packets = a.queue_pair.packets(LENGTH as u32);
        if !a.queue_pair.may_post_sent(packets) {
            break;
        }
        let message = UnqueuedMessage {
            id,
            immediate: Some([id as u8; 4]),
            remote: None,
            signaled: true,
            solicited: false,
        };
        let empty = Segment {
            address: 0,
            length: 0,
            key: 0,
        };
        let (list, queue_pair) = ([segment, empty], &mut a.queue_pair);
        let data = Data::Gathered(&list);
        let content = transfer::ring_message::SlotContent::Segments { is_mappable: true };
        let mut room = [0; MAX_SLOT_BYTES];
        let ring_message =
            transfer::ring_message::posted(queue_pair, &message, data, content, &mut room);
        said.push(EncodedMessage::of(&ring_message, Vec::new()));
        transfer::ring_message::sent(queue_pair, &message, data, content);
        queue_pair.arm(Time::default());
    }
    assert!((2..8).contains(&said.len()), "{}", said.len());
    assert_eq!(
        a.transmit(Time::default()),
        None,
        "packets do not take them"
    );
    for said in &said {
        fetch(&mut b, &a, said);
    }
    let answer = ring_message(&mut b).unwrap();
    hear(&mut a, &answer);
    let ends: Vec<_> = (0..said.len() as u64).map(|id| (id, S::Success)).collect();
    assert_eq!(
        (a.machine.ends(), b.machine.receive_ends()),
        (ends.clone(), ends)
    );
    for &key in &keys[..said.len()] {
        assert_eq!(b.machine.bytes(key), pattern(LENGTH));
    }
}

#[test]
fn messages_of_all_kinds_keep_their_order() {
    let (mut a, mut b) = two();
    let keys: Vec<u32> = (0..6)
        .map(|id| b.machine.post_receive(id, LONG as u32))
        .collect();
    let target = b.machine.register(vec![0; LONG]);
    let invalidated = b.machine.register(vec![0; 8]);
    let source = a.machine.register(pattern(LONG));
    let piece = |a: &Node, from: u64, length: u32| a.machine.segment(source, from, length);
    let invalidate = SendOperation::Send {
        immediate: None,
        invalidate: Some(invalidated),
    };
    let immediate = SendOperation::Send {
        immediate: Some(*b"imm!"),
        invalidate: None,
    };
    let write = SendOperation::Write {
        remote: b.machine.remote(target, 0),
        immediate: Some(*b"imm?"),
    };
    let all = piece(&a, 0, LONG as u32);
    a.post_send(0, vec![1; 8]);
    a.post(request(1, invalidate, &[all]));
    a.post(request(
        2,
        immediate,
        &[piece(&a, 5, 70_000), piece(&a, 0, 0), piece(&a, 3, 9)],
    ));
    a.post(request(3, write, &[all]));
    // The message has more segments than fit into a ring message.
    let many = [0, 1, 2].map(|from| piece(&a, from, 30_000));
    a.post(request(4, send(), &many));
    a.post_send(5, vec![2; MAX_SLOT_BYTES]);
    exchange(&mut a, &mut b);
    let ends: Vec<_> = (0..6).map(|id| (id, S::Success)).collect();
    assert_eq!(a.machine.ends(), ends);
    assert_eq!(b.machine.receive_ends(), ends);
    let received = |id: usize| b.machine.received[id].0;
    assert_eq!(received(1).invalidated, Some(invalidated));
    assert!(!b.machine.is_valid(invalidated));
    assert_eq!(received(2).immediate, Some(*b"imm!"));
    assert_eq!(received(2).length, 70_009);
    let written = received(3);
    assert_eq!(
        (written.opcode, written.length),
        (CompletionOpcode::ReceiveWithImmediate, LONG as u32)
    );
    assert_eq!(written.immediate, Some(*b"imm?"));
    assert_eq!(b.machine.bytes(target), pattern(LONG));
    assert_eq!(received(4).length, 90_000);
    let all = pattern(LONG);
    let gathered: Vec<u8> = (0..3)
        .flat_map(|from| &all[from..from + 30_000])
        .copied()
        .collect();
    assert_eq!(b.machine.bytes(keys[4])[..90_000], gathered);
}

#[test]
fn a_message_without_a_receive_is_offered_again() {
    let (mut a, mut b) = two();
    let now = Time::default();
    a.post_send(1, pattern(LONG));
    let said = offer(&mut a, &b).unwrap();
    fetch(&mut b, &a, &said);
    a.receive(now, &b.transmit(now).unwrap());
    assert_eq!(a.machine.counted(Counter::ReceivedRnr), 1);
    assert_eq!(offer(&mut a, &b), None);
    let key = b.machine.post_receive(5, LONG as u32);
    let again = a.queue_pair.next_timeout().unwrap();
    a.queue_pair.handle_timeout(again, &mut a.machine);
    assert_eq!(a.transmit(again), None);
    assert!(exchange(&mut a, &mut b) > 0);
    assert_eq!(b.machine.bytes(key), pattern(LONG));
    assert_eq!((a.sent, a.machine.ends()), (0, vec![(1, S::Success)]));
}

#[test]
fn a_message_longer_than_its_receive_fails_both_queue_pairs() {
    let (mut a, mut b) = two();
    b.machine.post_receive(5, LONG as u32 - 1);
    a.post_send(1, pattern(LONG));
    exchange(&mut a, &mut b);
    assert_eq!(b.machine.receive_ends(), [(5, S::LocalLength)]);
    assert_eq!(a.machine.ends(), [(1, S::RemoteInvalidRequest)]);
    assert_eq!(
        (a.queue_pair.state(), b.queue_pair.state()),
        (State::Error, State::Error)
    );
}

#[test]
fn an_offer_of_foreign_memory_fails_only_the_sender() {
    let (mut a, mut b) = two();
    b.machine.post_receive(5, LONG as u32);
    let key = a.machine.register(pattern(LONG));
    let list = [a.machine.segment(key, 1, LONG as u32)];
    a.post(request(1, send(), &list));
    assert_eq!(exchange(&mut a, &mut b), 0);
    assert_eq!(a.machine.ends(), [(1, S::LocalProtection)]);
    assert_eq!(b.machine.received.len(), 0);
}

/// Checks that a message whose first packet has more segments than a slot is sent through the ring
/// immediately: nothing would send it later.
#[test]
fn a_message_of_too_many_segments_is_sent_in_chunks() {
    let (mut a, mut b) = two();
    a.machine.is_mappable = true;
    let key = b.machine.post_receive(7, 3030);
    let source = a.machine.register(pattern(3030));
    let list = [(0, 10), (10, 20), (30, 3000)]
        .map(|(from, length)| a.machine.segment(source, from, length));
    a.post(request(1, send(), &list));
    let said = offer(&mut a, &b).expect("a ring message");
    assert!(!said.is_offer());
    fetch(&mut b, &a, &said);
    exchange(&mut a, &mut b);
    assert_eq!(b.machine.bytes(key), pattern(3030));
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
}

/// Checks that a peer which cannot copy the bytes of messages causes no retry, and after a while
/// gets the bytes instead.
#[test]
fn bytes_that_cannot_be_fetched_are_sent_in_chunks() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().retry_count = 0;
    let now = Time::default();
    let mut offers = Vec::new();
    for id in 0..5 {
        let key = b.machine.post_receive(id, LONG as u32);
        a.post_send(id, pattern(LONG));
        let mut offered = 0;
        while a.machine.sends.len() <= id as usize {
            while let Some(said) = offer(&mut a, &b) {
                // The peer shares no memory with the sender.
                hear(&mut b, &said);
                offered += usize::from(said.is_offer());
            }
            while let Some(packet) = a.transmit(now) {
                b.receive(now, &packet);
            }
            while let Some(packet) = b.transmit(now) {
                a.receive(now, &packet);
            }
        }
        assert_eq!(b.machine.bytes(key), pattern(LONG));
        offers.push(offered > 0);
    }
    assert_eq!(offers, [true, true, true, false, false]);
    assert!(
        a.machine
            .ends()
            .iter()
            .all(|(_, status)| *status == S::Success)
    );
}

/// Checks that a peer which the kernel does not let copy still copies from memory that it can map.
#[test]
fn a_peer_without_permission_to_copy_is_offered_mappable_memory() {
    let (mut a, mut b) = two();
    for id in 0..8 {
        let key = b.machine.post_receive(id, LONG as u32);
        a.machine.is_mappable = id % 2 > 0;
        a.post_send(id, pattern(LONG));
        let now = Time::default();
        let mut offered = 0;
        while a.machine.sends.len() <= id as usize {
            while let Some(said) = offer(&mut a, &b) {
                offered += usize::from(said.is_offer());
                if a.machine.is_mappable {
                    fetch(&mut b, &a, &said);
                } else {
                    hear(&mut b, &said);
                }
            }
            for packet in b.transmit_all(now) {
                a.receive(now, &packet);
            }
        }
        assert_eq!(b.machine.bytes(key), pattern(LONG));
        // Three messages from other memory are enough to know.
        assert_eq!(offered > 0, id % 2 > 0 || id < 6, "message {id}");
    }
}

#[test]
fn an_offered_message_is_sent_as_packets_after_the_shared_memory_has_ended() {
    let (mut a, mut b) = two();
    let key = b.machine.post_receive(7, LONG as u32);
    a.post_send(1, pattern(LONG));
    let said = offer(&mut a, &b).unwrap();
    fetch(&mut b, &a, &said);
    assert_eq!(a.transmit(Time::default()), None);
    a.machine.peer = Peer::Elsewhere;
    let now = Time::default();
    while a.machine.sends.is_empty() {
        let packets = a.transmit_all(now);
        let answers = b.transmit_all(now);
        assert!(!packets.is_empty() || !answers.is_empty());
        packets.iter().for_each(|packet| b.receive(now, packet));
        answers.iter().for_each(|packet| a.receive(now, packet));
    }
    assert_eq!(b.machine.bytes(key), pattern(LONG));
    assert_eq!(b.machine.receive_ends(), [(7, S::Success)]);
}

#[test]
fn a_written_message_without_write_permission_fails_the_sender() {
    let (mut a, mut b) = two();
    b.queue_pair.attributes_mut().access = Default::default();
    b.machine.post_receive(7, 8);
    let target = b.machine.register(vec![0; LONG]);
    let key = a.machine.register(pattern(LONG));
    let write = SendOperation::Write {
        remote: b.machine.remote(target, 0),
        immediate: Some([0; 4]),
    };
    let list = [a.machine.segment(key, 0, LONG as u32)];
    a.post(request(1, write, &list));
    let said = offer(&mut a, &b).unwrap();
    assert!(said.with(|ring_message| ring_message.message.unwrap().form == PayloadForm::Written));
    fetch(&mut b, &a, &said);
    a.receive(Time::default(), &b.transmit(Time::default()).unwrap());
    assert_eq!(a.machine.ends(), [(1, S::RemoteInvalidRequest)]);
}
