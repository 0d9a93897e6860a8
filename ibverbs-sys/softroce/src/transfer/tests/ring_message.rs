use crate::proto::testing::{Machine, Node, Pair, pattern, request, send};
use crate::proto::{
    AccessFlags, CompletionOpcode, CompletionStatus as S, CopyError, Counter, Data, Memory, Remote,
    SendOperation, Service, Sink, State, Time, TransmitUrgency, UnqueuedMessage,
};
use crate::same_host::ring_message::{decode, encode};
use crate::transfer::{
    self, ChunkedRange, MAX_SLOT_BYTES, MessagePart, PayloadForm, Peer, PeerMemory, RingMessage,
    RingSendError,
};

pub(super) const RC: Service = Service::ReliableConnection;

/// Creates two connected nodes.
pub(super) fn two() -> (Node, Node) {
    two_of(RC)
}

/// Creates two connected nodes of a service.
pub(super) fn two_of(service: Service) -> (Node, Node) {
    let mut pair = Pair::new(service);
    (pair.a.machine.peer, pair.b.machine.peer) = (Peer::SameHost, Peer::SameHost);
    (pair.a, pair.b)
}

/// An encoded [`RingMessage`] that a node sent, with the bytes in its chunks.
#[derive(Debug, PartialEq)]
pub(super) struct EncodedMessage {
    words: [u64; 7],
    /// Bytes in the chunks of the ring.
    chunks: Vec<u8>,
}

impl EncodedMessage {
    pub(super) fn of(ring_message: &RingMessage<'_>, chunks: Vec<u8>) -> Self {
        let words = encode(ring_message);
        Self { words, chunks }
    }

    fn has_chunks(&self) -> bool {
        self.with(|ring_message| {
            ring_message
                .message
                .is_some_and(|message| message.form.has_chunks())
        })
    }

    /// Returns whether the ring message contains the location of the message's bytes, not the bytes
    /// themselves.
    pub(super) fn is_offer(&self) -> bool {
        self.with(|ring_message| matches!(ring_message.message, Some(message) if matches!(message.form, PayloadForm::Fetch(_))))
    }

    pub(super) fn chunks(&self) -> Chunks<'_> {
        Chunks(&self.chunks)
    }

    pub(super) fn with<T>(&self, look: impl FnOnce(&RingMessage<'_>) -> T) -> T {
        let mut room = [0; MAX_SLOT_BYTES];
        look(&decode(&self.words, &mut room).unwrap())
    }

    /// Returns a copy of the ring message, changed by `change`.
    fn but(&self, change: impl FnOnce(&mut RingMessage<'_>)) -> Self {
        self.with(|ring_message| {
            let mut changed = *ring_message;
            change(&mut changed);
            Self::of(&changed, self.chunks.clone())
        })
    }

    /// Returns the payload of the message.
    fn payload(&self) -> Option<Vec<u8>> {
        self.with(|ring_message| ring_message.message.map(|message| message.payload.to_vec()))
    }

    /// Returns the length of the message, or of its part, in bytes.
    pub(super) fn length(&self) -> u32 {
        self.with(|ring_message| ring_message.message.map_or(0, |message| message.length()))
    }

    fn acknowledges(&self) -> bool {
        self.with(|ring_message| ring_message.acknowledged.is_some())
    }
}

/// Bytes in the chunks of the ring.
pub(super) struct Chunks<'a>(&'a [u8]);

impl PeerMemory<Machine> for Chunks<'_> {
    fn take(&mut self, length: u32, to: Sink<'_>, host: &Machine) -> Result<(), CopyError> {
        let bytes = &self.0[..length as usize];
        let is_copied = match to {
            Sink::Local(list, offset) => host.scatter(list, offset, bytes).is_ok(),
            Sink::Remote(Remote { address, key }) => host.write_remote(key, address, bytes).is_ok(),
        };
        is_copied.then_some(()).ok_or(CopyError::Local)
    }
}

/// Returns the next ring message that a node sends, or `None` if it sends none now.
pub(super) fn poll(node: &mut Node, peer: &mut impl PeerMemory<Machine>) -> Option<EncodedMessage> {
    let (queue_pair, host) = (&mut node.queue_pair, &mut node.machine);
    let mut said = None;
    transfer::ring_message::poll(
        queue_pair,
        Time::default,
        host,
        peer,
        |ring_message, portion, host| {
            let mut chunks = vec![0; portion.map_or(0, |portion| portion.length as usize)];
            if let Some(ChunkedRange { data, offset, .. }) = portion {
                let read = match data {
                    Data::Gathered(list) => host.gather(list, offset, &mut chunks),
                    Data::Inline(bytes) => {
                        let bytes = &bytes[offset as usize..][..chunks.len()];
                        chunks.copy_from_slice(bytes);
                        Ok(())
                    }
                };
                read.map_err(|_| RingSendError::Unreadable)?;
            }
            said = Some(EncodedMessage::of(ring_message, chunks));
            Ok(())
        },
    );
    said
}

pub(super) fn ring_message(node: &mut Node) -> Option<EncodedMessage> {
    poll(node, &mut ())
}

pub(super) fn hear(node: &mut Node, said: &EncodedMessage) {
    said.with(|ring_message| {
        let (queue_pair, host) = (&mut node.queue_pair, &mut node.machine);
        let mut chunks = said.chunks();
        transfer::ring_message::receive(queue_pair, Time::default, ring_message, host, &mut chunks);
    });
}

/// Sends a ring message from one node to the other.
pub(super) fn say(from: &mut Node, to: &mut Node) -> EncodedMessage {
    let said = ring_message(from).unwrap();
    hear(to, &said);
    said
}

#[test]
fn an_acknowledgement_is_sent_with_the_reply_message() {
    let (mut a, mut b) = two();
    let key = b.machine.post_receive(7, 64);
    a.machine.post_receive(8, 64);
    a.post_send(1, pattern(MAX_SLOT_BYTES));
    let asked = say(&mut a, &mut b);
    assert_eq!((asked.acknowledges(), ring_message(&mut a)), (false, None));
    assert_eq!(b.machine.receive_ends(), [(7, S::Success)]);
    assert_eq!(
        b.machine.bytes(key)[..MAX_SLOT_BYTES],
        pattern(MAX_SLOT_BYTES)
    );
    assert_eq!(
        b.queue_pair.transmit_urgency(),
        TransmitUrgency::Acknowledgement
    );
    b.post_send(2, vec![5]);
    let answered = say(&mut b, &mut a);
    assert_eq!(answered.payload(), Some(vec![5]));
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Nothing);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(a.machine.receive_ends(), [(8, S::Success)]);
    // Only the acknowledgement of the second message is left to send.
    say(&mut a, &mut b);
    assert_eq!(b.machine.ends(), [(2, S::Success)]);
    assert_eq!((ring_message(&mut a), ring_message(&mut b)), (None, None));
}

#[test]
fn a_message_too_long_for_a_slot_is_sent_in_chunks_or_packets_in_order() {
    let (mut a, mut b) = two();
    for id in 0..5 {
        b.machine.post_receive(id, 64);
    }
    let key = a.machine.register(pattern(64));
    let invalidates = SendOperation::Send {
        immediate: None,
        invalidate: Some(b.machine.register(vec![0; 8])),
    };
    a.post_send(0, vec![0; 3]);
    a.post_send(1, vec![1; MAX_SLOT_BYTES + 1]);
    let list = [a.machine.segment(key, 0, 8)];
    a.post(request(2, invalidates, &list));
    let place = b.machine.register(vec![0; 8]);
    let place = b.machine.segment(place, 0, 8);
    let (address, key) = (place.address, place.key);
    let writes = SendOperation::Write {
        remote: Remote { address, key },
        immediate: Some([0; 4]),
    };
    a.post(request(3, writes, &list));
    a.post_send(4, Vec::new());
    let now = Time::default();
    let mut ways = Vec::new();
    loop {
        if let Some(ring_message) = ring_message(&mut a) {
            ways.push(if ring_message.has_chunks() {
                "chunks"
            } else {
                "slot"
            });
            hear(&mut b, &ring_message);
        } else if let Some(packet) = a.transmit(now) {
            ways.push("packet");
            b.receive(now, &packet);
        } else {
            break;
        }
    }
    assert_eq!(ways, ["slot", "chunks", "chunks", "chunks", "slot"]);
    let all = [0, 1, 2, 3, 4].map(|id| (id, S::Success));
    assert_eq!(b.machine.receive_ends(), all);
    say(&mut b, &mut a);
    assert_eq!(a.machine.ends(), all);
}

/// Posts a write of eight bytes with immediate data to a region of the peer, at this offset.
/// Returns the key of the region.
fn post_write(a: &mut Node, b: &mut Node, offset: u64) -> u32 {
    let place = b.machine.register(vec![0; 8]);
    let key = a.machine.register(pattern(8));
    let write = SendOperation::Write {
        remote: b.machine.remote(place, offset),
        immediate: Some(*b"imm!"),
    };
    let list = [a.machine.segment(key, 0, 8)];
    a.post(request(1, write, &list));
    place
}

/// Checks that the bytes of a short write with immediate data are written once a receive is posted,
/// and not before.
#[test]
fn a_short_write_with_immediate_data_waits_for_a_receive() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().rnr_retry = 7;
    let place = post_write(&mut a, &mut b, 0);
    let said = say(&mut a, &mut b);
    assert!(said.with(|ring_message| ring_message.message.unwrap().form == PayloadForm::Write));
    assert_eq!(b.machine.bytes(place), [0; 8]);
    let now = Time::default();
    a.receive(now, &b.transmit(now).unwrap());
    assert_eq!(a.machine.counted(Counter::ReceivedRnr), 1);
    b.machine.post_receive(5, 0);
    let again = a.queue_pair.next_timeout().unwrap();
    a.queue_pair.handle_timeout(again, &mut a.machine);
    assert_eq!(a.transmit(again), None, "packets do not take it");
    say(&mut a, &mut b);
    say(&mut b, &mut a);
    assert_eq!(b.machine.bytes(place), pattern(8));
    let received = b.machine.received[0].0;
    assert_eq!(
        (received.opcode, received.length, received.immediate),
        (CompletionOpcode::ReceiveWithImmediate, 8, Some(*b"imm!"))
    );
    assert_eq!((a.sent, a.machine.ends()), (0, vec![(1, S::Success)]));
}

/// Checks that a short write with immediate data that is not allowed writes nothing and takes no
/// receive.
#[test]
fn a_short_write_with_immediate_data_needs_the_right_to_write() {
    for (is_allowed, offset, status) in [
        (false, 0, S::RemoteInvalidRequest),
        (true, 1, S::RemoteAccess),
    ] {
        let (mut a, mut b) = two();
        if !is_allowed {
            b.queue_pair.attributes_mut().access = AccessFlags::empty();
        }
        b.machine.post_receive(5, 0);
        let place = post_write(&mut a, &mut b, offset);
        say(&mut a, &mut b);
        a.receive(Time::default(), &b.transmit(Time::default()).unwrap());
        assert_eq!(a.machine.ends(), [(1, status)]);
        assert_eq!(b.machine.receive_ends(), [(5, S::Flushed)]);
        assert_eq!(b.machine.bytes(place), [0; 8]);
    }
}

/// Checks that a description of a write that names no memory is dropped. Only a peer that violates
/// the protocol sends one.
#[test]
fn a_write_that_names_no_memory_is_dropped() {
    let (mut a, mut b) = two();
    b.machine.post_receive(5, 0);
    let place = post_write(&mut a, &mut b, 0);
    let said = ring_message(&mut a).unwrap();
    for length in [0, 3, 4, 15] {
        let payload = said.payload().unwrap();
        hear(
            &mut b,
            &said.but(|ring_message| {
                let message = ring_message.message.unwrap();
                // The length of the bytes is lost with the first four bytes of the payload.
                let payload = &message.payload[..length];
                ring_message.message = Some(MessagePart { payload, ..message });
            }),
        );
        assert_eq!(payload.len(), 16);
    }
    assert_eq!(b.machine.received.len(), 0);
    assert_eq!(b.machine.bytes(place), [0; 8]);
    hear(&mut b, &said);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
}

#[test]
fn a_message_without_a_receive_is_sent_again() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().rnr_retry = 7;
    a.post_send(1, vec![9; 8]);
    say(&mut a, &mut b);
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Urgent);
    assert_eq!(ring_message(&mut b), None);
    let now = Time::default();
    let refusal = b.transmit(now).unwrap();
    a.receive(now, &refusal);
    assert_eq!(a.machine.counted(Counter::ReceivedRnr), 1);
    assert_eq!(ring_message(&mut a), None);
    b.machine.post_receive(5, 8);
    let again = a.queue_pair.next_timeout().unwrap();
    a.queue_pair.handle_timeout(again, &mut a.machine);
    // A retransmission must wait for an exact time, so it is sent as a packet.
    let packet = a.transmit(again).unwrap();
    b.receive(again, &packet);
    say(&mut b, &mut a);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
}

#[test]
fn a_message_lost_while_posted_is_sent_again_after_at_most_two_timeouts() {
    let (mut a, mut b) = two();
    b.machine.post_receive(5, 8);
    let message = UnqueuedMessage {
        id: 1,
        immediate: None,
        remote: None,
        signaled: true,
        solicited: false,
    };
    let (bytes, mut room) = ([9; 8], [0; MAX_SLOT_BYTES]);
    let (data, content) = (
        Data::Inline(&bytes),
        transfer::ring_message::SlotContent::Bytes(&bytes),
    );
    let queue_pair = &mut a.queue_pair;
    transfer::ring_message::posted(queue_pair, &message, data, content, &mut room);
    transfer::ring_message::sent(queue_pair, &message, data, content);
    assert!(queue_pair.is_unarmed());
    assert_eq!(queue_pair.next_timeout(), None);
    let timeout = queue_pair.attributes().ack_timeout.unwrap();
    // The timer of an earlier message expires.
    let first = Time::default() + timeout;
    queue_pair.handle_timeout(first, &mut a.machine);
    assert_eq!(a.transmit(first), None);
    let second = a.queue_pair.next_timeout().unwrap();
    assert_eq!(second, first + timeout);
    a.queue_pair.handle_timeout(second, &mut a.machine);
    let packet = a.transmit(second).unwrap();
    b.receive(second, &packet);
    say(&mut b, &mut a);
    assert_eq!(a.machine.ends(), [(1, S::Success)]);
    assert_eq!(b.machine.receive_ends(), [(5, S::Success)]);
}

#[test]
fn a_gap_is_reported_and_earlier_messages_are_not_received_twice() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    b.machine.post_receive(1, 8);
    a.post_send(0, vec![0; 8]);
    a.post_send(1, vec![1; 8]);
    let (first, second) = (ring_message(&mut a).unwrap(), ring_message(&mut a).unwrap());
    hear(&mut b, &second);
    assert_eq!(b.machine.counted(Counter::OutOfSequenceRequest), 1);
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Urgent);
    hear(&mut b, &first);
    hear(&mut b, &first);
    assert_eq!(b.machine.counted(Counter::DuplicateRequest), 1);
    assert_eq!(b.machine.receive_ends(), [(0, S::Success)]);
}

#[test]
fn a_message_for_another_queue_pair_is_not_received() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    a.post_send(0, vec![0; 8]);
    let right = ring_message(&mut a).unwrap();
    let wrong = [
        right.but(|ring_message| ring_message.destination += 1),
        right.but(|ring_message| ring_message.partition_key = 0x8001),
    ];
    wrong.iter().for_each(|wrong| hear(&mut b, wrong));
    for service in [Service::UnreliableDatagram, Service::XrcTarget] {
        let mut other = Node::ready_to_send(2, service);
        other.machine.post_receive(0, 8);
        hear(&mut other, &right);
        assert_eq!(other.machine.counted(Counter::Unaddressed), 1);
        assert_eq!(other.machine.receive_ends(), []);
    }
    assert_eq!(b.machine.counted(Counter::Unaddressed), 1);
    assert_eq!(b.machine.counted(Counter::ReceiveDropped), 1);
    assert_eq!(b.queue_pair.transmit_urgency(), TransmitUrgency::Nothing);
    b.enter(State::Error);
    hear(&mut b, &right);
    assert_eq!(b.machine.counted(Counter::Unaddressed), 2);
    assert_eq!(b.machine.receive_ends(), [(0, S::Flushed)]);
}

#[test]
fn a_failing_queue_pair_has_acknowledged_earlier_messages() {
    let (mut a, mut b) = two();
    b.machine.post_receive(0, 8);
    a.post_send(0, vec![0; 8]);
    say(&mut a, &mut b);
    let key = b.machine.register(vec![0; 8]);
    let list = [b.machine.segment(key, 0, 8)];
    b.machine.deregister(key);
    b.post(request(1, send(), &list));
    let last = say(&mut b, &mut a);
    assert_eq!(last.payload(), None);
    assert_eq!(b.machine.ends(), [(1, S::LocalProtection)]);
    assert_eq!(a.machine.ends(), [(0, S::Success)]);
}

#[test]
fn a_queue_pair_that_fails_on_an_acknowledgement_receives_no_message() {
    let (mut a, mut b) = two();
    a.queue_pair.attributes_mut().retry_count = 0;
    a.queue_pair.attributes_mut().shared_receive = true;
    a.machine.post_receive(0, 8);
    b.machine.post_receive(1, 8);
    let there = b.machine.register(vec![0; 8]);
    let here = a.machine.register(vec![0; 8]);
    let remote = b.machine.remote(there, 0);
    let list = [a.machine.segment(here, 0, 8)];
    a.post(request(2, SendOperation::Read { remote }, &list));
    a.post_send(3, vec![0; 8]);
    let now = Time::default();
    b.receive(now, &a.transmit(now).unwrap());
    say(&mut a, &mut b);
    // The response to the read is lost.
    b.transmit(now).unwrap();
    b.post_send(4, vec![0; 8]);
    let answer = say(&mut b, &mut a);
    assert!(answer.acknowledges() && answer.payload().is_some());
    assert_eq!(a.machine.ends(), [(2, S::RetryExceeded), (3, S::Flushed)]);
    assert_eq!(a.machine.receive_ends(), []);
}

#[test]
fn no_more_messages_than_the_window_are_in_flight() {
    let (mut a, _) = two();
    for id in 0..100 {
        a.post(request(id, send(), &[]));
    }
    let count = std::iter::from_fn(|| ring_message(&mut a)).count();
    assert!((1..100).contains(&count), "{count}");
    assert_eq!(a.transmit(Time::default()), None);
}
