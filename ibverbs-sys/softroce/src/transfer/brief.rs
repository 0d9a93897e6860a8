//! Briefs: short messages and acknowledgements without packet headers, sent through the shared-memory ring to a peer process on
//! the same host.
//!
//! A brief contains a short message, or describes a part of a longer one whose bytes are in chunks of the ring or in memory of
//! one of the processes. It uses the sequence numbers that packets would have, so briefs and packets can follow each other in
//! any order.

use smallvec::SmallVec;

use super::Carrier;
use super::choice::{OFFERED, PART, PART_CHUNKS, PART_MAPPED, SHORT, Transfer};
use super::two_sided::{Bytes, Chunks, Described, Written};
use super::volume::Volume;
use crate::proto::{
    CompletionStatus, Counter, Data, Host, Incoming, Kind, Misplaced, Outcome, Payload, Posted,
    QueuePair, Segment, SendOperation, SendRequest, Sequence, Service, State, Time, Upcoming,
};

/// A short message that is sent without packet headers: the content of a ring slot, from one queue pair of a reliable
/// connection to the other. It contains an acknowledgement, a message, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Brief<'a> {
    /// Number of the destination queue pair.
    pub(crate) destination: u32,
    /// Partition key.
    pub(crate) partition_key: u16,
    /// Acknowledgement: all packets up to this sequence number have been executed.
    pub(crate) acknowledged: Option<Sequence>,
    /// The message, if any.
    pub(crate) message: Option<Short<'a>>,
}

/// A message that consumes a receive, or a part of such a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short<'a> {
    /// Sequence number of the first packet that the part stands for.
    pub(crate) sequence: Sequence,
    /// Meaning of the payload.
    pub(crate) form: Form,
    /// Immediate data, or the key that the message invalidates.
    pub(crate) immediate: Option<[u8; 4]>,
    /// Set if the completion at the peer raises a solicited event.
    pub(crate) solicited: bool,
    /// Payload of at most [`SHORT`] bytes.
    pub(crate) payload: &'a [u8],
}

/// Meaning of a brief's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The payload is the whole send.
    Whole,
    /// The payload is the length of a part of a send, whose bytes are in chunks of the ring.
    Chunks(PartOf),
    /// The payload is the list of segments of the sender's memory that hold a part of a send. The receiver copies the bytes.
    Fetch(PartOf),
    /// The payload is the length of a write with immediate data, whose bytes the sender has already written.
    Written,
}

/// Position of a part within its message, and whether the message invalidates a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOf {
    /// Set if the part is the first of the message.
    pub(crate) starts: bool,
    /// Set if the part is the last of the message.
    pub(crate) ends: bool,
    /// Set if the field for immediate data contains a key that the message invalidates.
    pub(crate) invalidates: bool,
}

impl PartOf {
    /// The only part of a message, without a key to invalidate.
    const WHOLE: Self = Self {
        starts: true,
        ends: true,
        invalidates: false,
    };
}

/// Bytes of a message that the sender copies to chunks of the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portion<'a> {
    /// All bytes of the message.
    pub(crate) data: Data<'a>,
    /// Number of bytes of the message before this portion.
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Reason why a brief was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// The ring is full.
    Full,
    /// The bytes of the message cannot be read.
    Unreadable,
}

/// Result of [`poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// A brief was sent, and more may follow.
    Sent,
    /// The ring is full.
    Full,
    /// No brief is to be sent now.
    Nothing,
}

/// Maximum number of segments in the payload of a brief.
pub(crate) const SEGMENTS: usize = SHORT / SEGMENT;

/// Length of an encoded segment in the payload of a brief, in bytes.
const SEGMENT: usize = 16;

/// Access to the memory of a peer in another process. The default methods are those of a peer without shared memory.
pub(crate) trait PeerMemory<H> {
    /// Writes the bytes of a request to memory of the peer. Returns `None` if the request must be sent as packets.
    fn write(&mut self, _request: &SendRequest, _host: &H) -> Option<()> {
        None
    }

    /// Copies segments of the peer's memory to the memory of a message that is scattered over `to`, beginning at byte `offset`.
    ///
    /// # Errors
    /// [`Misplaced::Here`] if `to` cannot be written, and [`Misplaced::There`] if the sender must send the bytes.
    fn fetch(
        &mut self,
        _from: &[Segment],
        _to: &[Segment],
        _offset: u32,
        _host: &H,
    ) -> Result<(), Misplaced> {
        Err(Misplaced::There)
    }

    /// Copies `_length` bytes from the chunks of the brief that is being received to the memory of a message that is scattered
    /// over `_to`, beginning at byte `_offset`.
    ///
    /// # Errors
    /// See [`fetch`](Self::fetch).
    fn take(
        &mut self,
        _length: u32,
        _to: &[Segment],
        _offset: u32,
        _host: &H,
    ) -> Result<(), Misplaced> {
        Err(Misplaced::There)
    }
}

/// A peer without shared memory.
impl<H> PeerMemory<H> for () {}

impl Brief<'_> {
    /// Returns the length in bytes that the brief would have as a packet, for the traffic counters: a base transport header, an
    /// acknowledgement or immediate data, and the message with its pad.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        12 + self.message.as_ref().map_or(4, |message| {
            let bytes = match message.form {
                Form::Chunks(_) => message.length() as usize,
                Form::Whole | Form::Fetch(_) | Form::Written => message.payload.len(),
            };
            4 * usize::from(message.immediate.is_some()) + bytes.next_multiple_of(4)
        })
    }
}

impl Short<'_> {
    /// Returns whether the sender may delay its next message until this one is acknowledged.
    #[inline]
    pub(crate) fn holds_up_sender(&self) -> bool {
        match self.form {
            Form::Whole | Form::Chunks(_) | Form::Written => false,
            Form::Fetch(part) => !(part.starts && part.ends) || self.length() >= OFFERED,
        }
    }

    /// Returns the length of the message, or of its part, in bytes.
    pub(crate) fn length(&self) -> u32 {
        match self.form {
            Form::Whole => self.payload.len() as u32,
            Form::Fetch(_) => {
                // The sum may exceed 32 bits in a malformed brief. No valid message is that long.
                let lengths = segments(self.payload).map(|segment| u64::from(segment.length));
                u32::try_from(lengths.sum::<u64>()).unwrap_or(u32::MAX)
            }
            Form::Chunks(_) | Form::Written => {
                let length = self.payload.first_chunk();
                length.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            }
        }
    }
}

/// Calls `send` with the next brief: the acknowledgement that is due, the next part of a message that is sent in a brief, or
/// both. `now` may return a time somewhat later than the present.
pub(crate) fn poll<H: Carrier>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
    mut send: impl FnMut(&Brief<'_>, Option<Portion<'_>>, &H) -> Result<(), Unsent>,
) -> Polled {
    let is_open = matches!(
        queue_pair.state(),
        State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
    );
    let is_reliable = queue_pair.service() == Service::ReliableConnection;
    if !is_open || !is_reliable || !queue_pair.responds_briefly() {
        return Polled::Nothing;
    }
    match poll_message(queue_pair, now, host, peer, &mut send) {
        Polled::Nothing => acknowledge(queue_pair, host, &mut send),
        polled => polled,
    }
}

/// Calls `send` with the acknowledgement that is due.
fn acknowledge<H>(
    queue_pair: &mut QueuePair,
    host: &H,
    send: &mut impl FnMut(&Brief<'_>, Option<Portion<'_>>, &H) -> Result<(), Unsent>,
) -> Polled {
    if queue_pair.acknowledgement().is_none() {
        return Polled::Nothing;
    }
    let brief = to_peer(queue_pair, None);
    if send(&brief, None, host).is_err() {
        return Polled::Full;
    }
    queue_pair.acknowledgement_sent();
    Polled::Sent
}

/// Content of the brief of a message that is sent while it is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// The bytes of a send: at most [`SHORT`].
    Bytes(&'a [u8]),
    /// The length of a send, whose bytes are in chunks of the ring.
    Chunks,
    /// The segments of a send, whose bytes the peer copies.
    Segments,
    /// The length of a write with immediate data, whose bytes are already written.
    Written,
}

/// Returns the brief of a message that is sent while it is posted, where [`may_post_sent`](QueuePair::may_post_sent) allows
/// this. The message has one segment or inline bytes. Once the brief has been sent, the caller must call [`sent`].
#[inline(always)]
pub(crate) fn posted<'a>(
    queue_pair: &QueuePair,
    message: &Posted,
    data: Data<'_>,
    content: Content<'a>,
    room: &'a mut [u8; SHORT],
) -> Brief<'a> {
    let (form, payload) = match content {
        Content::Bytes(bytes) => (Form::Whole, bytes),
        Content::Chunks | Content::Written => {
            let length = data.length().unwrap_or(u32::MAX);
            room[..4].copy_from_slice(&length.to_ne_bytes());
            let form = match content {
                Content::Chunks => Form::Chunks(PartOf::WHOLE),
                _ => Form::Written,
            };
            (form, &room[..4])
        }
        Content::Segments => {
            let list = match data {
                Data::Gathered(list) => list,
                Data::Inline(_) => &[],
            };
            let taken = put_segments(list.iter().copied(), room);
            (Form::Fetch(PartOf::WHOLE), &room[..taken])
        }
    };
    let message = Short {
        sequence: queue_pair.send_sequence(),
        form,
        immediate: message.immediate,
        solicited: message.solicited,
        payload,
    };
    to_peer(queue_pair, Some(message))
}

/// Returns a brief to the peer, with the acknowledgement that is due.
#[inline(always)]
fn to_peer<'a>(queue_pair: &QueuePair, message: Option<Short<'a>>) -> Brief<'a> {
    let attributes = queue_pair.attributes();
    Brief {
        destination: attributes.destination,
        partition_key: attributes.partition_key,
        acknowledged: queue_pair.acknowledgement(),
        message,
    }
}

/// Queues a message whose [brief](posted) has been sent. The caller must then [set](QueuePair::arm) the timeout for the
/// response.
#[inline(always)]
pub(crate) fn sent(
    queue_pair: &mut QueuePair,
    message: &Posted,
    data: Data<'_>,
    content: Content<'_>,
) {
    let length = data.length().unwrap_or(u32::MAX);
    let is_offered = matches!(content, Content::Segments);
    queue_pair.acknowledgement_sent();
    queue_pair.post_sent(message, data, length, is_offered);
}

/// Receives a brief, as [`QueuePair::receive`] receives packets. The caller must have checked that the brief came from the
/// peer's address. `now` may return a time somewhat later than the present: only the timeout of the next response depends on
/// it. Returns the amount of data that was taken from the brief's message: zero if the message is not the next one.
#[inline]
pub(crate) fn receive<H: Host>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    brief: &Brief<'_>,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
) -> Volume {
    let mut taken = Volume::default();
    if queue_pair.service() != Service::ReliableConnection {
        host.count(Counter::Unaddressed, 1);
        return taken;
    }
    if !queue_pair.accepts(brief.destination, brief.partition_key, host) {
        return taken;
    }
    if let Some(sequence) = brief.acknowledged {
        queue_pair.receive_acknowledgement(sequence, now, host);
    }
    let Some(message) = &brief.message else {
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
    let (before, mut copies) = (queue_pair.receive_sequence(), 0);
    match message.form {
        Form::Whole => queue_pair.receive_part(&part, &mut Bytes(message.payload), host),
        Form::Chunks(of) => {
            part.set_place(of);
            let mut source = Chunks {
                length: part.length,
                peer,
            };
            queue_pair.receive_part(&part, &mut source, host);
        }
        Form::Fetch(of) => {
            part.set_place(of);
            let list: SmallVec<[Segment; SEGMENTS]> = segments(message.payload).collect();
            let mut source = Described {
                segments: &list,
                peer,
                copies: 0,
            };
            queue_pair.receive_part(&part, &mut source, host);
            copies = source.copies;
        }
        Form::Written => {
            part.kind = Kind::Written;
            queue_pair.receive_part(&part, &mut Written, host);
        }
    }
    // A part that was not taken is still expected.
    if queue_pair.receive_sequence() != before {
        taken.add_part(part.length, part.ends, copies);
    }
    taken
}

impl Incoming {
    fn set_place(&mut self, part: PartOf) {
        (self.starts, self.ends) = (part.starts, part.ends);
        if part.invalidates {
            self.invalidated = self.immediate.take().map(u32::from_ne_bytes);
        }
    }
}

/// Calls `send` with the next part of a message and the acknowledgement that is due, if the part is sent in a brief now.
fn poll_message<H: Carrier>(
    queue_pair: &mut QueuePair,
    now: impl FnOnce() -> Time,
    host: &mut H,
    peer: &mut impl PeerMemory<H>,
    send: &mut impl FnMut(&Brief<'_>, Option<Portion<'_>>, &H) -> Result<(), Unsent>,
) -> Polled {
    // A request that waits for a point in time is left to packets, because `now` is not exact.
    let Ok(upcoming) = queue_pair.upcoming(Time::default, host) else {
        return Polled::Nothing;
    };
    let Some(request) = queue_pair.next_request() else {
        return Polled::Nothing;
    };
    let mut room = [0; SHORT];
    let prepared = match host.transfer(request, &upcoming) {
        Transfer::Slot => put_bytes(queue_pair, request, &upcoming, host, &mut room),
        Transfer::Chunks => portion(queue_pair, request, &upcoming, &mut room),
        Transfer::Descriptor => describe(queue_pair, request, &upcoming, host, &mut room),
        Transfer::Written => write(request, &upcoming, host, peer, &mut room),
        Transfer::OneSided | Transfer::TwoSided | Transfer::Packets => return Polled::Nothing,
    };
    let ready = match prepared {
        Prepared::Ready(ready) => ready,
        Prepared::Wait => return Polled::Nothing,
        Prepared::Left => {
            queue_pair.leave_to_packets();
            return Polled::Nothing;
        }
        Prepared::Failed(status) => return fail(queue_pair, &upcoming, status, now, host, send),
    };
    let message = Short {
        sequence: upcoming.sequence(),
        form: ready.form,
        immediate: ready.immediate,
        solicited: request.solicited,
        payload: &room[..ready.length],
    };
    let brief = to_peer(queue_pair, Some(message));
    match send(&brief, ready.portion, host) {
        Ok(()) => {}
        Err(Unsent::Full) => return Polled::Full,
        Err(Unsent::Unreadable) => {
            let status = CompletionStatus::LocalProtection;
            return fail(queue_pair, &upcoming, status, now, host, send);
        }
    }
    let outcome = match ready.form {
        Form::Fetch(_) => Outcome::Offered,
        Form::Whole | Form::Chunks(_) | Form::Written => Outcome::Sent,
    };
    let packets = ready.packets;
    queue_pair.acknowledgement_sent();
    queue_pair.conclude_part(&upcoming, packets, outcome, now, host);
    Polled::Sent
}

/// Fails a request and its connection. The peer still gets the acknowledgement that is due.
fn fail<H: Carrier>(
    queue_pair: &mut QueuePair,
    upcoming: &Upcoming,
    status: CompletionStatus,
    now: impl FnOnce() -> Time,
    host: &mut H,
    send: &mut impl FnMut(&Brief<'_>, Option<Portion<'_>>, &H) -> Result<(), Unsent>,
) -> Polled {
    let polled = acknowledge(queue_pair, host, send);
    if polled != Polled::Full {
        queue_pair.conclude_part(upcoming, 0, Outcome::Failed(status), now, host);
    }
    polled
}

/// Result of preparing the brief of a part.
enum Prepared<'a> {
    Ready(Ready<'a>),
    /// The window has no room.
    Wait,
    /// The message must take another path.
    Left,
    Failed(CompletionStatus),
}

struct Ready<'a> {
    /// Number of sequence numbers of the part.
    packets: u32,
    /// Length of the payload in bytes.
    length: usize,
    /// Bytes to be copied to chunks of the ring.
    portion: Option<Portion<'a>>,
    form: Form,
    immediate: Option<[u8; 4]>,
}

/// Writes the bytes of a send to the payload.
fn put_bytes(
    queue_pair: &QueuePair,
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &impl Host,
    room: &mut [u8; SHORT],
) -> Prepared<'static> {
    if !queue_pair.has_window(upcoming, 1) {
        return Prepared::Wait;
    }
    let length = request.length as usize;
    let room = &mut room[..length];
    match &request.payload {
        Payload::Inline(bytes) => match bytes.get(..length) {
            Some(bytes) => room.copy_from_slice(bytes),
            None => return Prepared::Failed(CompletionStatus::LocalLength),
        },
        Payload::Gathered(list) => {
            if length > 0 && host.gather(list, 0, room).is_err() {
                return Prepared::Failed(CompletionStatus::LocalProtection);
            }
        }
    }
    Prepared::Ready(Ready {
        packets: 1,
        length,
        portion: None,
        form: Form::Whole,
        immediate: immediate(request),
    })
}

/// Writes the segments of the next part of a send to the payload. At most two parts are unacknowledged at a time.
fn describe(
    queue_pair: &QueuePair,
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &impl Host,
    room: &mut [u8; SHORT],
) -> Prepared<'static> {
    let Payload::Gathered(list) = &request.payload else {
        return Prepared::Left;
    };
    let mtu = queue_pair.mtu();
    let largest = if upcoming.is_mappable {
        PART_MAPPED / mtu
    } else {
        PART / mtu
    };
    let Some(part) = queue_pair.part(upcoming, largest) else {
        return Prepared::Left;
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
        return Prepared::Left;
    }
    // The window does not apply, because no network has to take the packets that the part replaces.
    if upcoming.on_the_way > 0 && upcoming.on_the_way + packets > 2 * largest {
        return Prepared::Wait;
    }
    // Reading the first byte detects deregistered memory even while the peer has no receive posted.
    if upcoming.packet == 0
        && (host.check_local(list, 0, request.length).is_err()
            || host.gather(list, 0, &mut [0]).is_err())
    {
        return Prepared::Failed(CompletionStatus::LocalProtection);
    }
    let length = part.length.min(packets * mtu);
    let taken = put_segments(Segment::parts(list, part.offset, length), room);
    let ends = upcoming.packet + packets == upcoming.packets;
    let (of, immediate) = part_of(request, part.starts, ends);
    Prepared::Ready(Ready {
        packets,
        length: taken,
        portion: None,
        form: Form::Fetch(of),
        immediate,
    })
}

/// Writes the length of the next part of a send to the payload.
fn portion<'a>(
    queue_pair: &'a QueuePair,
    request: &'a SendRequest,
    upcoming: &Upcoming,
    room: &mut [u8; SHORT],
) -> Prepared<'a> {
    let Some(part) = queue_pair.part(upcoming, PART_CHUNKS / queue_pair.mtu()) else {
        return Prepared::Wait;
    };
    room[..4].copy_from_slice(&part.length.to_ne_bytes());
    let (of, immediate) = part_of(request, part.starts, part.ends);
    Prepared::Ready(Ready {
        packets: part.packets,
        length: 4,
        portion: Some(Portion {
            data: request.payload.data(),
            offset: part.offset,
            length: part.length,
        }),
        form: Form::Chunks(of),
        immediate,
    })
}

/// Returns the position of a part of a send, and its immediate data or the key that the message invalidates.
fn part_of(request: &SendRequest, starts: bool, ends: bool) -> (PartOf, Option<[u8; 4]>) {
    let invalidated = match request.operation {
        SendOperation::Send { invalidate, .. } => invalidate,
        _ => None,
    };
    let part = PartOf {
        starts,
        ends,
        invalidates: invalidated.is_some(),
    };
    let immediate = immediate(request).or(invalidated.map(u32::to_ne_bytes));
    (part, immediate.filter(|_| ends))
}

/// Writes the bytes of a write with immediate data to memory of the peer, and their length to the payload.
fn write<H: Host>(
    request: &SendRequest,
    upcoming: &Upcoming,
    host: &H,
    peer: &mut impl PeerMemory<H>,
    room: &mut [u8; SHORT],
) -> Prepared<'static> {
    // A write cannot be undone, so all earlier requests must have been executed.
    if upcoming.on_the_way > 0 {
        return Prepared::Wait;
    }
    if peer.write(request, host).is_none() {
        return Prepared::Left;
    }
    room[..4].copy_from_slice(&request.length.to_ne_bytes());
    Prepared::Ready(Ready {
        packets: upcoming.packets,
        length: 4,
        portion: None,
        form: Form::Written,
        immediate: immediate(request),
    })
}

fn immediate(request: &SendRequest) -> Option<[u8; 4]> {
    match request.operation {
        SendOperation::Send { immediate, .. } | SendOperation::Write { immediate, .. } => immediate,
        _ => None,
    }
}

/// Encodes segments into the payload of a brief. Returns their encoded length in bytes.
fn put_segments(segments: impl Iterator<Item = Segment>, room: &mut [u8; SHORT]) -> usize {
    let mut taken = 0;
    for (segment, bytes) in segments.zip(room.chunks_exact_mut(SEGMENT)) {
        bytes[..8].copy_from_slice(&segment.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&segment.length.to_ne_bytes());
        bytes[12..].copy_from_slice(&segment.key.to_ne_bytes());
        taken += SEGMENT;
    }
    taken
}

/// Decodes the segments in the payload of a brief.
fn segments(payload: &[u8]) -> impl Iterator<Item = Segment> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let (whole, _) = payload.as_chunks::<SEGMENT>();
    whole.iter().map(move |bytes| Segment {
        address: bytes[..8].try_into().map_or(0, u64::from_ne_bytes),
        length: word(&bytes[8..12]),
        key: word(&bytes[12..]),
    })
}
