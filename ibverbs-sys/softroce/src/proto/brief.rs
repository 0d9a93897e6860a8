//! Short messages and acknowledgements without headers: for a peer with which memory is shared.
//!
//! A brief says what one packet would say, or an acknowledgement and a packet, with the same sequence numbers; so briefs and
//! packets can follow each other in any order. What does not fit into one goes as a packet.

use super::{
    Counter, Host, Misplaced, QueuePair, Remote, Segment, SendRequest, Sequence, Service, State,
    Time,
};

/// Bytes of a message that fit into a brief.
pub(crate) const SHORT: usize = 32;

/// What one queue pair of a reliable connection says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief<'a> {
    /// The number of the queue pair that it is for.
    pub destination: u32,
    /// The partition.
    pub partition_key: u16,
    /// All up to this number is executed.
    pub acknowledged: Option<Sequence>,
    /// A message.
    pub message: Option<Short<'a>>,
}

/// A message that takes a receive, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short<'a> {
    /// The number of its first packet.
    pub sequence: Sequence,
    /// The contents of the payload.
    pub form: Form,
    /// Immediate data, or the key that the message invalidates.
    pub immediate: Option<[u8; 4]>,
    /// The peer's completion shall raise an event.
    pub solicited: bool,
    /// The message, where it was found: `SHORT` bytes at most.
    pub payload: &'a [u8],
}

/// The contents of a brief's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// All bytes of a send.
    Whole,
    /// The segments of the sender's memory that hold a part of a send: the receiver copies the bytes.
    Fetch {
        /// The part is the first of the message.
        starts: bool,
        /// The part is the last of the message.
        ends: bool,
        /// The message invalidates the key in the place of immediate data.
        invalidates: bool,
    },
    /// The length of a write with immediate data, whose bytes the sender has written.
    Written,
}

/// Length of the shortest message that is offered: the ring takes less time for shorter ones than a copy by the kernel.
pub(crate) const OFFERED: u32 = 32 << 10;

/// Length of the shortest message that is offered where the peer can map the memory of the bytes.
pub(crate) const OFFERED_MAPPED: u32 = 512;

impl Short<'_> {
    /// Returns whether the sender may keep back its next message until this one is acknowledged.
    pub fn holds_up_sender(&self) -> bool {
        match self.form {
            Form::Whole => false,
            Form::Written => true,
            Form::Fetch { starts, ends, .. } => {
                let lengths = segments(self.payload).map(|segment| u64::from(segment.length));
                !(starts && ends) || lengths.sum::<u64>() >= OFFERED.into()
            }
        }
    }
}

/// Segments in the payload of a brief.
pub(crate) const SEGMENTS: usize = SHORT / SEGMENT;

/// Bytes of a segment in the payload of a brief.
const SEGMENT: usize = 16;

/// The largest part of a message that a receiver fetches at once, in bytes: other queue pairs wait for its copy.
pub(crate) const PART: u32 = 64 << 10;

/// The memory of the peer, where the two processes share memory.
pub trait Partner<H> {
    /// Returns whether the peer can fetch bytes of sends, and this side can write to the memory of the peer.
    fn is_there(&self) -> bool {
        true
    }

    /// Writes the bytes of a request to memory of the peer. Returns `None` if that is to be left to packets.
    fn write(&mut self, request: &SendRequest, remote: Remote, host: &H) -> Option<()>;

    /// Copies segments of the peer's memory to the places from `offset` on of a message that is scattered over `to`.
    ///
    /// # Errors
    /// [`Misplaced::Here`] if `to` cannot be written, and [`Misplaced::There`] if the sender has to send the bytes.
    fn fetch(
        &mut self,
        from: &[Segment],
        to: &[Segment],
        offset: u32,
        host: &H,
    ) -> Result<(), Misplaced>;
}

/// No memory is shared.
impl<H> Partner<H> for () {
    fn is_there(&self) -> bool {
        false
    }

    fn write(&mut self, _: &SendRequest, _: Remote, _: &H) -> Option<()> {
        None
    }

    fn fetch(&mut self, _: &[Segment], _: &[Segment], _: u32, _: &H) -> Result<(), Misplaced> {
        Err(Misplaced::There)
    }
}

/// Writes segments to the payload of a brief; returns how many bytes they take.
pub(super) fn put_segments(
    segments: impl Iterator<Item = Segment>,
    room: &mut [u8; SHORT],
) -> usize {
    let mut taken = 0;
    for (segment, bytes) in segments.zip(room.chunks_exact_mut(SEGMENT)) {
        bytes[..8].copy_from_slice(&segment.address.to_ne_bytes());
        bytes[8..12].copy_from_slice(&segment.length.to_ne_bytes());
        bytes[12..].copy_from_slice(&segment.key.to_ne_bytes());
        taken += SEGMENT;
    }
    taken
}

/// Reads the segments in the payload of a brief.
pub(super) fn segments(payload: &[u8]) -> impl Iterator<Item = Segment> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_ne_bytes);
    let (whole, _) = payload.as_chunks::<SEGMENT>();
    whole.iter().map(move |bytes| Segment {
        address: bytes[..8].try_into().map_or(0, u64::from_ne_bytes),
        length: word(&bytes[8..12]),
        key: word(&bytes[12..]),
    })
}

/// A short message that is posted, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Utterance {
    /// The caller's number for it.
    pub id: u64,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// A success shall be told too.
    pub signaled: bool,
    /// The peer's completion shall raise an event.
    pub solicited: bool,
}

/// What a queue pair has to transmit, as far as can be seen at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// Nothing.
    Nothing,
    /// How far it is, which may wait for what the program has to say, and go together with it.
    Acknowledgement,
    /// Something that shall go now.
    Urgent,
}

impl Brief<'_> {
    /// Bytes that it would have as a packet: a base transport header, an acknowledgement's or immediate data's, the message and
    /// its pad.
    pub fn bytes(&self) -> usize {
        12 + self.message.as_ref().map_or(4, |message| {
            4 * usize::from(message.immediate.is_some()) + message.payload.len().next_multiple_of(4)
        })
    }
}

impl QueuePair {
    /// The next thing to be said, if it fits into a brief; if not, [`poll_transmit`](Self::poll_transmit) has it, or there is
    /// nothing. A message is put into `room`. For `now` holds what [`receive_brief`](Self::receive_brief) says.
    pub fn poll_brief<'a, H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        host: &mut H,
        partner: &mut impl Partner<H>,
        room: &'a mut [u8; SHORT],
    ) -> Option<Brief<'a>> {
        let sends = match self.endpoint.state {
            State::ReadyToReceive => false,
            State::ReadyToSend | State::SendQueueDrained => true,
            _ => return None,
        };
        if self.endpoint.service != Service::ReliableConnection || !self.responder.is_brief() {
            return None;
        }
        let mut message = None;
        let mut done = Ok(());
        if sends {
            let polled = (self.requester).poll_brief(now, &self.endpoint, host, partner, room);
            message = polled.ok().flatten();
            done = polled.map(drop);
        }
        // Before it fails, so that it is told as it is in a packet.
        let acknowledged = self.responder.take_acknowledgement();
        if done.is_err() {
            self.conclude(done, host);
        }
        (message.is_some() || acknowledged.is_some()).then_some(Brief {
            destination: self.endpoint.attributes.destination,
            partition_key: self.endpoint.attributes.partition_key,
            acknowledged,
            message,
        })
    }

    /// Whether a short message that was posted now could go at once: all before it have gone, and nothing holds it up.
    #[inline]
    pub fn may_say(&self) -> bool {
        self.endpoint.state == State::ReadyToSend
            && self.endpoint.service == Service::ReliableConnection
            && self.responder.is_brief()
            && self.requester.may_say()
    }

    /// Posts a short message and sends it, where [`may_say`](Self::may_say) allows it. `bytes`: `SHORT` at most. For `now` holds what [`receive_brief`](Self::receive_brief) says.
    #[inline]
    pub fn say<'a>(
        &mut self,
        message: &Utterance,
        bytes: &'a [u8],
        now: impl FnOnce() -> Time,
    ) -> Brief<'a> {
        let message = self.requester.say(message, bytes, now, &self.endpoint);
        Brief {
            destination: self.endpoint.attributes.destination,
            partition_key: self.endpoint.attributes.partition_key,
            acknowledged: self.responder.take_acknowledgement(),
            message: Some(message),
        }
    }

    /// Returns whether a message of one segment that is posted now can be offered at once, in one part. The peer must be able
    /// to map the memory of the segment.
    #[inline]
    pub fn may_offer(&self, length: u32) -> bool {
        (OFFERED_MAPPED..=PART).contains(&length)
            && self.may_say()
            && (self.requester).may_offer(self.endpoint.packets(length), &self.endpoint)
    }

    /// Posts a message of one segment and offers it, where [`may_offer`](Self::may_offer) allows it. For `now` holds what
    /// [`receive_brief`](Self::receive_brief) says.
    pub fn offer<'a>(
        &mut self,
        message: &Utterance,
        segment: Segment,
        room: &'a mut [u8; SHORT],
        now: impl FnOnce() -> Time,
    ) -> Brief<'a> {
        let message = (self.requester).offer_posted(message, segment, room, now, &self.endpoint);
        Brief {
            destination: self.endpoint.attributes.destination,
            partition_key: self.endpoint.attributes.partition_key,
            acknowledged: self.responder.take_acknowledgement(),
            message: Some(message),
        }
    }

    /// What is to be transmitted.
    pub fn prospect(&self) -> Prospect {
        if self.endpoint.state != State::ReadyToSend || !self.requester.is_silent() {
            Prospect::Urgent
        } else if self.responder.is_silent() {
            Prospect::Nothing
        } else if self.endpoint.service == Service::ReliableConnection && self.responder.is_brief()
        {
            Prospect::Acknowledgement
        } else {
            Prospect::Urgent
        }
    }

    /// Leaves all messages to packets until [`poll_brief`](Self::poll_brief) is called.
    pub fn withhold(&mut self) {
        self.requester.withhold();
    }

    /// Returns whether the next message waits for [`poll_brief`](Self::poll_brief) alone: packets do not take it.
    pub fn offers_next(&self) -> bool {
        self.requester.offers_next()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has nothing, as far as can be seen at a glance.
    pub fn is_silent(&self) -> bool {
        self.prospect() == Prospect::Nothing
    }

    /// Takes a brief, as [`receive`](Self::receive) takes packets.
    ///
    /// The caller has checked that it came from the peer's address. `now` may be a moment that is somewhat later than the present: no
    /// more follows from it than how long the peer has for the next answer, and memory loses none.
    pub fn receive_brief<H: Host>(
        &mut self,
        now: Time,
        brief: &Brief<'_>,
        host: &mut H,
        partner: &mut impl Partner<H>,
    ) {
        if self.endpoint.service != Service::ReliableConnection {
            host.count(Counter::Unaddressed, 1);
            return;
        }
        if !self.takes(brief.destination, brief.partition_key, host) {
            return;
        }
        if let Some(sequence) = brief.acknowledged
            && matches!(
                self.endpoint.state,
                State::ReadyToSend | State::SendQueueDrained
            )
        {
            let done = (self.requester).acknowledged(sequence, now, &self.endpoint, host);
            self.conclude(done, host);
        }
        // It may have failed by what was acknowledged.
        if let Some(message) = &brief.message
            && self.endpoint.state != State::Error
        {
            self.tell_established(host);
            (self.responder).receive_short(&self.endpoint, message, host, partner);
            self.end_if_due(host);
        }
    }
}

#[cfg(test)]
mod offers;
#[cfg(test)]
mod tests;
