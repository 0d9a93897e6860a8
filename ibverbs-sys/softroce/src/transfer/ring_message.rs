//! Ring messages: short messages and acknowledgements without packet headers, sent through the
//! shared-memory ring to a peer process on the same host.
//!
//! A ring message contains a short message, or describes a range of a longer message. The bytes of
//! the longer message are in chunks (data blocks) of the ring or in memory of one of the processes.
//! A ring message uses the sequence numbers that packets would have, so ring messages and packets
//! can follow each other in any order.

use super::TransferHost;
use super::choice::{
    MAX_CHUNKS_PART, MAX_COPIED_PART, MAX_MAPPED_PART, MAX_SLOT_BYTES, MIN_OFFER, Transfer,
    may_offer,
};
use super::two_sided::{AlreadyWritten, Bytes, Chunks, SegmentBytes};
use super::volume::Volume;
use crate::proto::{
    CompletionStatus, CopyError, Counter, Data, Host, Incoming, Kind, PartOutcome, Payload,
    QueuePair, Remote, Segment, SendOperation, SendRequest, Sequence, Service, Sink, State, Time,
    TransmitUrgency, UnqueuedMessage, Upcoming,
};

/// A short message without packet headers that fits into a slot (one cache line of the shared
/// ring). Queue pairs of reliable and unreliable connections send ring messages to peers in other
/// processes of the host. A ring message contains an acknowledgement, a message, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingMessage<'a> {
    /// Number of the destination queue pair.
    pub(crate) destination: u32,
    /// Partition key. The receiver drops a ring message of another partition.
    pub(crate) partition_key: u16,
    /// Acknowledgement: all packets up to this sequence number have been executed.
    pub(crate) acknowledged: Option<Sequence>,
    /// The message, or `None` if the ring message is only an acknowledgement.
    pub(crate) message: Option<MessagePart<'a>>,
}

/// A message or part of a message in a [`RingMessage`]: the bytes, or the location from which the
/// receiving process copies them. The message consumes a receive request of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessagePart<'a> {
    /// Sequence number of the first packet that the message or part replaces.
    pub(crate) sequence: Sequence,
    /// Meaning of [`payload`](Self::payload): the bytes of the message, or the place where they
    /// are.
    pub(crate) form: PayloadForm,
    /// Immediate data, or the key that the message invalidates.
    pub(crate) immediate: Option<[u8; 4]>,
    /// Set if the completion at the peer raises a solicited event.
    pub(crate) solicited: bool,
    /// Payload of at most [`MAX_SLOT_BYTES`] bytes. [`form`](Self::form) determines whether the
    /// payload contains the bytes of the message or describes them.
    pub(crate) payload: &'a [u8],
}

/// Meaning of the payload of a [`MessagePart`]: the bytes of the message themselves, or the
/// location of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadForm {
    /// The payload contains all bytes of the send.
    Whole,
    /// The payload is the length of a part of a send in bytes. The bytes themselves are in chunks
    /// (data blocks) of the shared ring.
    Chunks(PartFlags),
    /// The payload is a length in bytes, and a key and an address of the receiver's memory. That
    /// many bytes of a write with immediate data are in chunks (data blocks) of the shared ring.
    /// The receiving process checks that they may be written there, and copies them.
    Write,
    /// The payload is a list of segments (address, length, key) of the sender's memory, which
    /// contain a part of a send. The receiving process copies the bytes from there.
    Fetch(PartFlags),
    /// The payload is the length of a write with immediate data. The sending process has already
    /// written the bytes to the peer's memory.
    Written,
}

/// Flags of a part of a message: whether the part is the first, the last, or both, and whether
/// [`MessagePart::immediate`] is immediate data or a memory key that the message invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartFlags {
    /// Set if the part is the first of the message.
    pub(crate) starts: bool,
    /// Set if the part is the last of the message.
    pub(crate) ends: bool,
    /// Set if the field for immediate data contains a key that the message invalidates.
    pub(crate) invalidates: bool,
}

impl PayloadForm {
    /// Returns whether the bytes of the message, or of the part of a message, are in chunks (data
    /// blocks) of the shared ring.
    pub(crate) fn has_chunks(self) -> bool {
        matches!(self, Self::Chunks(_) | Self::Write)
    }
}

impl PartFlags {
    /// Flags of a part that is a whole message, and so both the first and the last part. The
    /// message does not invalidate a memory key.
    const WHOLE: Self = Self {
        starts: true,
        ends: true,
        invalidates: false,
    };
}

/// Range of a message whose bytes the sender copies to chunks (data blocks) of the shared ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkedRange<'a> {
    /// All bytes of the message.
    pub(crate) data: Data<'a>,
    /// Offset of the range within the message, in bytes.
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Reason for which a message could not be put into the shared ring of the peer process. The reason
/// determines whether the sender waits or reports an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingSendError {
    /// The shared ring of the peer process is full.
    Full,
    /// The bytes of the message cannot be read from the sender's memory.
    Unreadable,
}

/// Result of [`poll`], which sends the next message or acknowledgement of a queue pair through the
/// shared ring. The result determines whether the caller polls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// A message or an acknowledgement was put into the shared ring. The caller may poll again.
    Sent,
    /// The shared ring of the peer process is full.
    Full,
    /// The next message, or its next part, waits for an acknowledgement of the peer, and must not
    /// be sent as packets.
    Waiting,
    /// The queue pair has no message or acknowledgement to send through the shared ring now.
    Nothing,
}

/// Maximum number of memory segments that the payload of a slot (one cache line of the shared ring)
/// can describe.
pub(crate) const SEGMENTS: usize = MAX_SLOT_BYTES / SEGMENT;

/// Length in bytes of an encoded memory segment (address, length, key) in a slot (cache line) of
/// the shared ring.
const SEGMENT: usize = 16;

/// Access to the memory of a peer in another process, and to chunks (data blocks) of the shared
/// ring. `H` is the [`Host`] of the local queue pair. By default, the methods fail, as for a peer
/// whose memory is not accessible.
pub(crate) trait PeerMemory<H> {
    /// Writes the bytes of a write request from memory of this process directly to memory of the
    /// peer. `_host` is the [`Host`] of this process. Returns `None` if the peer's memory cannot be
    /// written. The caller must then send the request as packets. The default implementation always
    /// returns `None`.
    fn write(&mut self, _request: &SendRequest, _host: &H) -> Option<()> {
        None
    }

    /// Copies the bytes of a message from the segments `_from` of the peer's memory to the receive
    /// memory `_to` of this process. `_offset` is the offset of the bytes within the message, and
    /// `_host` is the [`Host`] of this process. The default implementation always fails.
    ///
    /// # Errors
    /// * [`CopyError::Local`] if `_to` cannot be written.
    /// * [`CopyError::Peer`] if the peer's memory cannot be read. The peer must then send the
    ///   bytes.
    fn fetch(
        &mut self,
        _from: &[Segment],
        _to: &[Segment],
        _offset: u32,
        _host: &H,
    ) -> Result<(), CopyError> {
        Err(CopyError::Peer)
    }

    /// Copies `_length` bytes of the message that is being received, from its chunks (data blocks)
    /// of the shared ring to the memory `_to` of this process. The default implementation always
    /// fails.
    ///
    /// # Errors
    /// * [`CopyError::Local`] if `_to` cannot be written.
    /// * [`CopyError::Peer`] if the chunks cannot be read.
    fn take(&mut self, _length: u32, _to: Sink<'_>, _host: &H) -> Result<(), CopyError> {
        Err(CopyError::Peer)
    }
}

/// Implementation for a peer whose memory is not accessible: all methods fail.
impl<H> PeerMemory<H> for () {}

impl RingMessage<'_> {
    /// Returns the length in bytes of the packet that this ring message replaces, for the traffic
    /// counters. The packet would contain a base transport header (12 bytes). After the header, the
    /// packet would contain an acknowledgement, or the message with its immediate data, padded to a
    /// multiple of four bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        12 + self.message.as_ref().map_or(4, |message| {
            let bytes = match message.form {
                PayloadForm::Chunks(_) => message.length() as usize,
                PayloadForm::Write => message.payload.len() + message.length() as usize,
                PayloadForm::Whole | PayloadForm::Fetch(_) | PayloadForm::Written => {
                    message.payload.len()
                }
            };
            4 * usize::from(message.immediate.is_some()) + bytes.next_multiple_of(4)
        })
    }
}

impl MessagePart<'_> {
    /// Returns whether the receiver must acknowledge this message without a delay, because the
    /// sender possibly waits for the acknowledgement. The sender waits in two cases:
    /// * The receiver copies the bytes of a long message from the sender's memory. The sender waits
    ///   before it describes further parts.
    /// * The sender has written the bytes to the receiver's memory. The sender waits before it
    ///   writes there again.
    #[inline]
    pub(crate) fn holds_up_sender(&self) -> bool {
        match self.form {
            PayloadForm::Whole | PayloadForm::Chunks(_) | PayloadForm::Write => false,
            PayloadForm::Written => true,
            PayloadForm::Fetch(part) => !(part.starts && part.ends) || self.length() >= MIN_OFFER,
        }
    }

    /// Returns the length in bytes of the message or part. The payload may be shorter, because a
    /// payload may contain only the length or the address of the bytes.
    pub(crate) fn length(&self) -> u32 {
        match self.form {
            PayloadForm::Whole => self.payload.len() as u32,
            PayloadForm::Fetch(_) => {
                // The sum may exceed 32 bits in a malformed ring message. No valid message is that
                // long.
                let lengths = segments(self.payload).map(|segment| u64::from(segment.length));
                u32::try_from(lengths.sum::<u64>()).unwrap_or(u32::MAX)
            }
            PayloadForm::Chunks(_) | PayloadForm::Write | PayloadForm::Written => {
                let length = self.payload.first_chunk();
                length.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            }
        }
    }

    /// Returns the address and the key of the receiver's memory to which the bytes must be copied.
    /// The payload must have the form [`PayloadForm::Write`]. Returns `None` if the payload is too
    /// short.
    fn remote(&self) -> Option<Remote> {
        let (key, address) = self.payload.get(4..)?.split_first_chunk()?;
        Some(Remote {
            address: u64::from_ne_bytes(*address.first_chunk()?),
            key: u32::from_ne_bytes(*key),
        })
    }
}

/// Sends the next message, or part of a message, of the queue pair through the ring that is shared
/// with the peer process. Also sends the pending acknowledgement, even if no message can be sent.
/// The result states whether something was sent, and if not, the reason.
///
/// Calls `send` to put the [`RingMessage`], which fits into one cache line, into the ring. `send`
/// must copy the bytes of the [`ChunkedRange`], if any, to data blocks of the ring. `now` returns
/// the present time, or a time that is at most some milliseconds later.
pub(crate) fn poll<H: TransferHost>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
    mut send: impl FnMut(&RingMessage<'_>, Option<ChunkedRange<'_>>, &H) -> Result<(), RingSendError>,
) -> Polled {
    let is_open = matches!(
        queue_pair.state(),
        State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
    );
    if !is_open || !is_connection(queue_pair) || !queue_pair.has_no_response_packet() {
        return Polled::Nothing;
    }
    match poll_message(queue_pair, now, host, peer, &mut send) {
        polled @ (Polled::Nothing | Polled::Waiting) => {
            match acknowledge(queue_pair, host, &mut send) {
                Polled::Nothing => polled,
                acknowledged => acknowledged,
            }
        }
        polled => polled,
    }
}

/// Returns a ring message that contains only the pending acknowledgement of the queue pair. Returns
/// `None` if no acknowledgement is pending, or if the queue pair has something else to send. After
/// putting the ring message into the shared ring, the caller must call
/// [`QueuePair::acknowledgement_sent`].
#[inline]
pub(crate) fn lone_acknowledgement(queue_pair: &QueuePair) -> Option<RingMessage<'static>> {
    let is_only = queue_pair.transmit_urgency() == TransmitUrgency::Acknowledgement;
    (is_only && queue_pair.acknowledgement().is_some()).then(|| to_peer(queue_pair, None))
}

/// Sends the pending acknowledgement of the queue pair, if it has one: calls `send`, which puts the
/// acknowledgement into the shared ring.
fn acknowledge<H>(
    queue_pair: &mut QueuePair,
    host: &H,
    send: &mut impl FnMut(&RingMessage<'_>, Option<ChunkedRange<'_>>, &H) -> Result<(), RingSendError>,
) -> Polled {
    if queue_pair.acknowledgement().is_none() {
        return Polled::Nothing;
    }
    let ring_message = to_peer(queue_pair, None);
    if send(&ring_message, None, host).is_err() {
        return Polled::Full;
    }
    queue_pair.acknowledgement_sent();
    Polled::Sent
}

/// Content of the slot (one cache line of the shared ring) for a message that the posting thread
/// sends immediately, without first adding the message to the send queue. The content is the bytes
/// of the message, the addresses of the bytes, or their length.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlotContent<'a> {
    /// All bytes of a send, at most [`MAX_SLOT_BYTES`].
    Bytes(&'a [u8]),
    /// The length of a send or of a write with immediate data, and the memory that the write names.
    /// The bytes are in chunks (data blocks) of the ring.
    Chunks,
    /// The memory segments of a send. The peer process copies the bytes from there.
    Segments {
        /// Set if the peer process can map the memory.
        is_mappable: bool,
    },
    /// The length of a write with immediate data whose bytes are already in the peer's memory.
    Written,
}

/// Creates the [`RingMessage`] for a message that the posting thread sends immediately, without
/// waiting in the send queue. `data` is the whole message. `content` is the part of the message
/// that the ring message contains: the bytes, their length or their addresses. `room` is a buffer
/// for the payload.
///
/// The caller must then put the ring message into the ring and call [`sent`]. Requires that
/// [`may_post_sent`](QueuePair::may_post_sent) has returned `true`, and that `data` has at most
/// [`SEGMENTS`] segments for [`SlotContent::Segments`].
#[inline(always)]
pub(crate) fn posted<'a>(
    queue_pair: &QueuePair,
    message: &UnqueuedMessage,
    data: Data<'_>,
    content: SlotContent<'a>,
    room: &'a mut [u8; MAX_SLOT_BYTES],
) -> RingMessage<'a> {
    let (form, payload) = match content {
        SlotContent::Bytes(bytes) => (PayloadForm::Whole, bytes),
        SlotContent::Chunks | SlotContent::Written => {
            let length = data.length().unwrap_or(u32::MAX);
            let (form, remote) = match (content, message.remote) {
                (SlotContent::Chunks, Some(remote)) => (PayloadForm::Write, Some(remote)),
                (SlotContent::Chunks, None) => (PayloadForm::Chunks(PartFlags::WHOLE), None),
                _ => (PayloadForm::Written, None),
            };
            let taken = put_length(length, remote, room);
            (form, &room[..taken])
        }
        SlotContent::Segments { .. } => {
            let list = match data {
                Data::Gathered(list) => list,
                Data::Inline(_) => &[],
            };
            // The key of an empty segment need not be valid.
            let with_bytes = list.iter().copied().filter(|segment| segment.length > 0);
            let taken = put_segments(with_bytes, room);
            (PayloadForm::Fetch(PartFlags::WHOLE), &room[..taken])
        }
    };
    let message = MessagePart {
        sequence: queue_pair.send_sequence(),
        form,
        immediate: message.immediate,
        solicited: message.solicited,
        payload,
    };
    to_peer(queue_pair, Some(message))
}

/// Creates a [`RingMessage`] from the queue pair to its connected peer. The ring message contains
/// `message`, if it is `Some`, and acknowledges the received messages that the queue pair has not
/// yet acknowledged.
#[inline(always)]
fn to_peer<'a>(queue_pair: &QueuePair, message: Option<MessagePart<'a>>) -> RingMessage<'a> {
    let attributes = queue_pair.attributes();
    RingMessage {
        destination: attributes.destination,
        partition_key: attributes.partition_key,
        acknowledged: queue_pair.acknowledgement(),
        message,
    }
}

/// Adds a message to the send queue after the caller has put the message into the shared ring. The
/// message then waits for its acknowledgement. `message`, `data` and `content` must be the same as
/// in the call of [`posted`] that created the ring message. Afterwards the caller must
/// [set](QueuePair::arm) the timeout of the acknowledgement.
#[inline(always)]
pub(crate) fn sent(
    queue_pair: &mut QueuePair,
    message: &UnqueuedMessage,
    data: Data<'_>,
    content: SlotContent<'_>,
) {
    let length = data.length().unwrap_or(u32::MAX);
    let offered = match content {
        SlotContent::Segments { is_mappable } => Some(is_mappable),
        SlotContent::Bytes(_) | SlotContent::Chunks | SlotContent::Written => None,
    };
    queue_pair.acknowledgement_sent();
    queue_pair.post_sent(message, data, length, offered);
}

/// Receives a message or an acknowledgement from the shared ring. The caller must ensure that the
/// ring message came from the peer's address. Returns the amount of received data, which is zero if
/// the message is not the next expected message. `now` returns the present time, or a time that is
/// at most some milliseconds later. Only the timeout of the next response depends on this time.
#[inline]
pub(crate) fn receive<H: Host>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    ring_message: &RingMessage<'_>,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
) -> Volume {
    let mut taken = Volume::default();
    if !is_connection(queue_pair) {
        host.count(Counter::Unaddressed, 1);
        return taken;
    }
    if !queue_pair.accepts(ring_message.destination, ring_message.partition_key, host) {
        return taken;
    }
    if let Some(sequence) = ring_message.acknowledged {
        queue_pair.receive_acknowledgement(sequence, now, host);
    }
    let Some(message) = &ring_message.message else {
        return taken;
    };
    let mut part = Incoming {
        sequence: message.sequence,
        kind: Kind::Send,
        length: message.length(),
        starts: true,
        ends: true,
        immediate: message.immediate,
        invalidated: None,
        solicited: message.solicited,
    };
    let mut copies = 0;
    let is_taken = match message.form {
        PayloadForm::Whole => queue_pair.receive_part(&part, &mut Bytes(message.payload), host),
        PayloadForm::Chunks(of) => {
            part.set_place(of);
            let mut source = Chunks {
                length: part.length,
                remote: None,
                peer,
            };
            queue_pair.receive_part(&part, &mut source, host)
        }
        PayloadForm::Write => {
            let Some(remote) = message.remote() else {
                host.count(Counter::ReceiveDropped, 1);
                return taken;
            };
            part.kind = Kind::Write(remote);
            let mut source = Chunks {
                length: part.length,
                remote: Some(remote),
                peer,
            };
            queue_pair.receive_part(&part, &mut source, host)
        }
        PayloadForm::Fetch(of) => {
            part.set_place(of);
            let mut list = [Segment::EMPTY; SEGMENTS];
            let mut count = 0;
            for (place, segment) in list.iter_mut().zip(segments(message.payload)) {
                *place = segment;
                count += 1;
            }
            let mut source = SegmentBytes {
                segments: &list[..count],
                peer,
                copies: 0,
            };
            let is_taken = queue_pair.receive_part(&part, &mut source, host);
            copies = source.copies;
            is_taken
        }
        PayloadForm::Written => {
            part.kind = Kind::Written;
            queue_pair.receive_part(&part, &mut AlreadyWritten, host)
        }
    };
    if is_taken {
        taken.add_part(part.length, part.ends, copies);
    }
    taken
}

/// Returns whether the queue pair has a service whose messages can be sent through the shared ring:
/// a reliable or unreliable connection.
#[inline]
fn is_connection(queue_pair: &QueuePair) -> bool {
    matches!(
        queue_pair.service(),
        Service::ReliableConnection | Service::UnreliableConnection
    )
}

impl Incoming {
    fn set_place(&mut self, part: PartFlags) {
        (self.starts, self.ends) = (part.starts, part.ends);
        if part.invalidates {
            self.invalidated = self.immediate.take().map(u32::from_ne_bytes);
        }
    }
}

/// Sends the next message or part of a message of the queue pair through the shared ring, if this
/// is possible now. Calls `send` to put the message into the ring, together with the pending
/// acknowledgement. If nothing was sent, the returned [`Polled`] gives the reason.
fn poll_message<H: TransferHost>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
    send: &mut impl FnMut(&RingMessage<'_>, Option<ChunkedRange<'_>>, &H) -> Result<(), RingSendError>,
) -> Polled {
    // A request that waits for a point in time is left to packets, because `now` is not exact.
    let Ok(upcoming) = queue_pair.upcoming(Time::default, host) else {
        return Polled::Nothing;
    };
    let Some(request) = queue_pair.next_request() else {
        return Polled::Nothing;
    };
    let mut room = [0; MAX_SLOT_BYTES];
    let transfer = host.transfer(request, &upcoming);
    let prepared = match transfer {
        Transfer::Slot => put_bytes(queue_pair, request, &upcoming, host, &mut room),
        Transfer::Chunks => portion(queue_pair, request, &upcoming, &mut room),
        Transfer::Descriptor => describe(queue_pair, request, &upcoming, host, &mut room),
        Transfer::Written => write(request, &upcoming, host, peer, &mut room),
        Transfer::OneSided | Transfer::TwoSided | Transfer::Later | Transfer::Packets => {
            return Polled::Nothing;
        }
    };
    let ready = match prepared {
        PreparedPart::Ready(ready) => ready,
        PreparedPart::Wait if transfer.excludes_packets() => return Polled::Waiting,
        PreparedPart::Wait => return Polled::Nothing,
        PreparedPart::UsePackets => {
            queue_pair.require_sent_bytes();
            // The bytes may go through the ring.
            return poll_message(queue_pair, now, host, peer, send);
        }
        PreparedPart::Failed(status) => {
            return fail(queue_pair, &upcoming, status, now, host, send);
        }
    };
    let message = MessagePart {
        sequence: upcoming.sequence(),
        form: ready.form,
        immediate: ready.immediate,
        solicited: request.solicited,
        payload: &room[..ready.length],
    };
    let ring_message = to_peer(queue_pair, Some(message));
    match send(&ring_message, ready.portion, host) {
        Ok(()) => {}
        Err(RingSendError::Full) => return Polled::Full,
        Err(RingSendError::Unreadable) => {
            let status = CompletionStatus::LocalProtection;
            return fail(queue_pair, &upcoming, status, now, host, send);
        }
    }
    let outcome = match ready.form {
        PayloadForm::Fetch(_) => PartOutcome::Offered,
        PayloadForm::Whole | PayloadForm::Chunks(_) | PayloadForm::Write | PayloadForm::Written => {
            PartOutcome::Sent
        }
    };
    let packets = ready.packets;
    queue_pair.acknowledgement_sent();
    queue_pair.conclude_part(&upcoming, packets, outcome, now, host);
    Polled::Sent
}

/// Fails the next request with the status `status`, and thereby the connection. First sends the
/// pending acknowledgement of received messages. If the shared ring has no room for the
/// acknowledgement, returns [`Polled::Full`] and does not fail the request. `upcoming` is the
/// position of the request.
fn fail<H: TransferHost>(
    queue_pair: &mut QueuePair,
    upcoming: &Upcoming,
    status: CompletionStatus,
    now: impl FnOnce() -> Time,
    host: &mut H,
    send: &mut impl FnMut(&RingMessage<'_>, Option<ChunkedRange<'_>>, &H) -> Result<(), RingSendError>,
) -> Polled {
    let polled = acknowledge(queue_pair, host, send);
    if polled != Polled::Full {
        queue_pair.conclude_part(upcoming, 0, PartOutcome::Failed(status), now, host);
    }
    polled
}

/// Result of preparing a part of a message for the shared ring: the part, or the reason why the
/// part cannot be sent through the ring now.
enum PreparedPart<'a> {
    Ready(ReadyPart<'a>),
    /// The part must wait, because too many sequence numbers are unacknowledged.
    Wait,
    /// The message must be sent in another way.
    UsePackets,
    Failed(CompletionStatus),
}

struct ReadyPart<'a> {
    /// Number of sequence numbers (packets) of the part.
    packets: u32,
    /// Length of the payload in bytes.
    length: usize,
    /// Bytes to be copied to chunks (data blocks) of the ring.
    portion: Option<ChunkedRange<'a>>,
    form: PayloadForm,
    immediate: Option<[u8; 4]>,
}

/// Prepares a short send, of at most [`MAX_SLOT_BYTES`] bytes: copies its bytes to `room`, the
/// payload of a slot (one cache line of the shared ring).
fn put_bytes(
    queue_pair: &QueuePair,
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &impl Host,
    room: &mut [u8; MAX_SLOT_BYTES],
) -> PreparedPart<'static> {
    if !queue_pair.has_window(upcoming, 1) {
        return PreparedPart::Wait;
    }
    let length = request.length as usize;
    let room = &mut room[..length];
    match &request.payload {
        Payload::Inline(bytes) => match bytes.get(..length) {
            Some(bytes) => room.copy_from_slice(bytes),
            None => return PreparedPart::Failed(CompletionStatus::LocalLength),
        },
        Payload::Gathered(list) => {
            if length > 0 && host.gather(list, 0, room).is_err() {
                return PreparedPart::Failed(CompletionStatus::LocalProtection);
            }
        }
    }
    PreparedPart::Ready(ReadyPart {
        packets: 1,
        length,
        portion: None,
        form: PayloadForm::Whole,
        immediate: immediate(request),
    })
}

/// Prepares the next part of a send whose bytes the peer process copies from the memory of this
/// process. Writes the addresses, lengths and keys of the part's memory segments to `room`, the
/// buffer for the payload of the ring message. Returns [`PreparedPart::Wait`] if too many parts are
/// unacknowledged.
fn describe(
    queue_pair: &QueuePair,
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &impl Host,
    room: &mut [u8; MAX_SLOT_BYTES],
) -> PreparedPart<'static> {
    let Payload::Gathered(list) = &request.payload else {
        return PreparedPart::UsePackets;
    };
    let mtu = queue_pair.mtu();
    let largest = if upcoming.is_mappable {
        MAX_MAPPED_PART / mtu
    } else {
        MAX_COPIED_PART / mtu
    };
    let Some(part) = queue_pair.part(upcoming, largest) else {
        return PreparedPart::UsePackets;
    };
    // A part ends at a packet boundary, and has no more segments than fit into the payload.
    let fits = Segment::parts(list, part.offset, part.length).take(SEGMENTS);
    let fits: u32 = fits.map(|segment| segment.length).sum();
    let packets = if fits == part.length {
        part.packets
    } else {
        fits / mtu
    };
    if packets == 0 {
        return PreparedPart::UsePackets;
    }
    // The window does not apply, because no network has to take the packets that the part replaces.
    if !may_offer(upcoming.unacknowledged, largest) {
        return PreparedPart::Wait;
    }
    // Reading the first byte detects deregistered memory even while the peer has no receive posted.
    if upcoming.packet == 0
        && (host.check_local(list, 0, request.length).is_err()
            || host.gather(list, 0, &mut [0]).is_err())
    {
        return PreparedPart::Failed(CompletionStatus::LocalProtection);
    }
    let length = part.length.min(packets * mtu);
    let taken = put_segments(Segment::parts(list, part.offset, length), room);
    let ends = upcoming.packet + packets == upcoming.packets;
    let (of, immediate) = part_of(request, part.starts, ends);
    PreparedPart::Ready(ReadyPart {
        packets,
        length: taken,
        portion: None,
        form: PayloadForm::Fetch(of),
        immediate,
    })
}

/// Prepares the next part of a send, or a whole write with immediate data, whose bytes will be
/// copied to data blocks of the shared ring. Writes the length of the bytes to `room`, the buffer
/// for the payload of the ring message. For a write, also writes the address and the key of the
/// target memory to `room`.
fn portion<'a>(
    queue_pair: &'a QueuePair,
    request: &'a SendRequest,
    upcoming: &Upcoming,
    room: &mut [u8; MAX_SLOT_BYTES],
) -> PreparedPart<'a> {
    let Some(part) = queue_pair.part(upcoming, MAX_CHUNKS_PART / queue_pair.mtu()) else {
        return PreparedPart::Wait;
    };
    let (of, immediate) = part_of(request, part.starts, part.ends);
    let (form, remote) = match request.operation {
        SendOperation::Write { remote, .. } => (PayloadForm::Write, Some(remote)),
        _ => (PayloadForm::Chunks(of), None),
    };
    PreparedPart::Ready(ReadyPart {
        packets: part.packets,
        length: put_length(part.length, remote, room),
        portion: Some(ChunkedRange {
            data: request.payload.data(),
            offset: part.offset,
            length: part.length,
        }),
        form,
        immediate,
    })
}

/// Returns the flags of a part of a send or a write. `starts` must be set if the part is the first
/// of the message, and `ends` if it is the last. For the last part, also returns the immediate
/// data, or the key that the message invalidates.
fn part_of(request: &SendRequest, starts: bool, ends: bool) -> (PartFlags, Option<[u8; 4]>) {
    let invalidated = match request.operation {
        SendOperation::Send { invalidate, .. } => invalidate,
        _ => None,
    };
    let part = PartFlags {
        starts,
        ends,
        invalidates: invalidated.is_some(),
    };
    let immediate = immediate(request).or(invalidated.map(u32::to_ne_bytes));
    (part, immediate.filter(|_| ends))
}

/// Writes the bytes of a write with immediate data to memory of the peer, and prepares the ring
/// message that reports the write. Writes the length of the bytes to `room`, the buffer for the
/// payload of the ring message.
fn write<H: Host>(
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &H,
    peer: &mut impl PeerMemory<H>,
    room: &mut [u8; MAX_SLOT_BYTES],
) -> PreparedPart<'static> {
    // A write cannot be undone, so all earlier requests must have been executed.
    if upcoming.unacknowledged > 0 {
        return PreparedPart::Wait;
    }
    if peer.write(request, host).is_none() {
        return PreparedPart::UsePackets;
    }
    PreparedPart::Ready(ReadyPart {
        packets: upcoming.packets,
        length: put_length(request.length, None, room),
        portion: None,
        form: PayloadForm::Written,
        immediate: immediate(request),
    })
}

fn immediate(request: &SendRequest) -> Option<[u8; 4]> {
    match request.operation {
        SendOperation::Send { immediate, .. } | SendOperation::Write { immediate, .. } => immediate,
        _ => None,
    }
}

/// Encodes the payload of a ring message into `room`: the length in bytes of a message or part of a
/// message. For a write, also encodes the key and the address of the target memory (`remote`).
/// Returns the length of the payload in bytes.
#[inline]
fn put_length(length: u32, remote: Option<Remote>, room: &mut [u8; MAX_SLOT_BYTES]) -> usize {
    room[..4].copy_from_slice(&length.to_ne_bytes());
    let Some(Remote { address, key }) = remote else {
        return 4;
    };
    room[4..8].copy_from_slice(&key.to_ne_bytes());
    room[8..16].copy_from_slice(&address.to_ne_bytes());
    16
}

/// Encodes memory segments into `room`, the payload of a slot (one cache line of the ring). Returns
/// the length of the encoded segments in bytes.
fn put_segments(segments: impl Iterator<Item = Segment>, room: &mut [u8; MAX_SLOT_BYTES]) -> usize {
    let mut taken = 0;
    for (segment, bytes) in segments.zip(room.chunks_exact_mut(SEGMENT)) {
        bytes[..8].copy_from_slice(&segment.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&segment.length.to_ne_bytes());
        bytes[12..].copy_from_slice(&segment.key.to_ne_bytes());
        taken += SEGMENT;
    }
    taken
}

/// Decodes the memory segments (address, length, key) in the payload of a slot (cache line of the
/// ring).
fn segments(payload: &[u8]) -> impl Iterator<Item = Segment> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let (whole, _) = payload.as_chunks::<SEGMENT>();
    whole.iter().map(move |bytes| Segment {
        address: bytes[..8].try_into().map_or(0, u64::from_ne_bytes),
        length: word(&bytes[8..12]),
        key: word(&bytes[12..]),
    })
}
