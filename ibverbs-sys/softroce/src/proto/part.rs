//! Transfer of messages to the peer without packets, in parts.
//!
//! The caller copies the bytes of a part by any path. The transport keeps order, sequence numbers, windows, acknowledgements,
//! receives and completions. A part uses the sequence numbers that its packets would have, so parts and packets can follow each
//! other, also within a message.
//!
//! ```text
//! sender:   upcoming -> part -> the caller copies the bytes -> conclude_part
//! receiver: take_part, which copies the bytes from a Source
//! ```

use std::time::Duration;

use super::datagram::{self, Label};
use super::{
    CompletionStatus, Data, Host, Misplaced, QueuePair, Remote, Segment, SendOperation,
    SendRequest, Sequence, Service, State, Time,
};

/// Position of the next part of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct Upcoming {
    /// Sequence number of the message's first packet.
    pub first: Sequence,
    /// Number of packets of the message that were sent before this part.
    pub packet: u32,
    /// Total number of packets of the message.
    pub packets: u32,
    /// Number of unacknowledged sequence numbers before the part.
    pub on_the_way: u32,
    /// Set if all messages before this one have completed.
    pub is_oldest: bool,
    /// Set if a packet must announce [skipped](QueuePair::skip) sequence numbers to the peer before the part.
    pub is_gap_untold: bool,
    /// Set if the peer could not copy the bytes of this message, or of several messages in a row, so that the sender must
    /// transfer the bytes.
    pub is_declined: bool,
    /// Result of [`Host::is_mappable`] for the request.
    pub is_mappable: bool,
    /// Set if the peer acknowledges messages.
    pub is_reliable: bool,
}

/// A part of a message. It begins and ends at packet boundaries.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The send request.
    pub request: &'a SendRequest,
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Number of sequence numbers that the part takes.
    pub packets: u32,
    /// Number of bytes of the message before the part.
    pub offset: u32,
    /// Length of the part in bytes.
    pub length: u32,
    /// Set if the part is the first of the message.
    pub starts: bool,
    /// Set if the part is the last of the message.
    pub ends: bool,
    /// Number of the sending queue pair.
    pub source: u32,
    /// Queue key of the sending queue pair.
    pub queue_key: u32,
}

/// Result of transferring a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The part was executed, and counts as acknowledged.
    Executed,
    /// A whole message was executed without the peer's queue pair. A packet must announce the skipped sequence numbers to the
    /// peer before the next packet.
    ExecutedAlone,
    /// The part was sent with its bytes. The peer will acknowledge it.
    Sent,
    /// The part was sent as a description of its bytes. The peer will copy the bytes and acknowledge the part, or decline the
    /// message.
    Offered,
    /// Nothing was done. The message must be sent as packets.
    Left,
    /// Nothing was done, because the peer has no receive posted.
    NotReady {
        /// RNR timer code of the peer.
        timer: u8,
    },
    /// Nothing was done. The caller tries again after a pause.
    Later {
        /// Time to wait before the next attempt.
        again: Duration,
    },
    /// The request fails, and the connection with it.
    Failed(CompletionStatus),
}

/// Next step of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part was transferred, and there may be more.
    Moved,
    /// Nothing can be sent now.
    Idle,
    /// Only packets can be sent now, if anything.
    Packets,
}

/// A part of a message that consumes a receive, as the receiver gets it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Kind of the message.
    pub kind: Kind,
    /// Length of the part in bytes. For [`Kind::Written`]: length of the message.
    pub length: u32,
    /// Set if the part is the first of the message.
    pub starts: bool,
    /// Set if the part is the last of the message.
    pub ends: bool,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Key that the message invalidates.
    pub invalidated: Option<u32>,
    /// Set if the completion raises a solicited event.
    pub solicited: bool,
}

/// Kind of a message that consumes a receive. It determines where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send: the bytes go to the memory of the receive.
    Send,
    /// A write with immediate data: the bytes go to the memory that the write names, which the [`Source`] knows.
    Written,
}

/// Source of the bytes of a part at its receiver.
pub trait Source<H> {
    /// Copies the bytes to the memory of a message that is scattered over `to`, beginning at byte `offset`. The bytes of a
    /// [write](Kind::Written) go to the memory that the write names instead. `host` is the receiver's host.
    ///
    /// # Errors
    /// [`Misplaced::Here`] if `to` cannot be written, and [`Misplaced::There`] if the bytes cannot be read.
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced>;
}

/// Reason why a receiver did not take a part that the sender's thread passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The queue pair has no receive posted.
    NotReady {
        /// RNR timer code.
        timer: u8,
    },
    /// The key that the message invalidates is still in use. The caller tries again after a pause.
    Later {
        /// Time to wait before the next attempt.
        again: Duration,
    },
    /// Any other reason. The message must be sent as packets, whose responses report errors.
    Left,
}

/// Maximum length of a datagram in bytes.
const DATAGRAM: usize = 4096;

impl Upcoming {
    /// Returns the sequence number of the part.
    pub fn sequence(&self) -> Sequence {
        self.first + self.packet
    }
}

impl QueuePair {
    /// Starts the next request, if it may start, and returns the position of its next part.
    ///
    /// # Errors
    /// The next step, if no part can be sent.
    pub fn upcoming(
        &mut self,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) -> Result<Upcoming, Step> {
        if !self.sends() {
            return Err(Step::Packets);
        }
        let upcoming = self.requester.upcoming(now, &self.endpoint, host);
        upcoming.unwrap_or_else(|failed| {
            self.conclude(Err(failed), host);
            Err(Step::Moved)
        })
    }

    /// Returns the next step, as far as this side knows: [`Step::Moved`] if a part may be sent and no packet is unacknowledged.
    pub fn next_step(&self, now: impl FnOnce() -> Time) -> Step {
        if self.sends() {
            self.requester.next_step(now, &self.endpoint)
        } else {
            Step::Packets
        }
    }

    /// Returns whether the next part must not be sent as packets, because it takes another path.
    pub fn is_held_back(&self, host: &impl Host) -> bool {
        self.requester.is_held_back(&self.endpoint, host)
    }

    /// Returns the request whose next part or packet is sent next.
    pub fn next_request(&self) -> Option<&SendRequest> {
        self.requester.next_request()
    }

    /// Returns the part of at most `packets` sequence numbers that begins at `upcoming`.
    pub fn part(&self, upcoming: &Upcoming, packets: u32) -> Option<Part<'_>> {
        self.requester.part(upcoming, packets, &self.endpoint)
    }

    /// Returns whether the window has room for `packets` more sequence numbers.
    pub fn has_window(&self, upcoming: &Upcoming, packets: u32) -> bool {
        self.requester.has_window(upcoming.on_the_way, packets)
    }

    /// Records the outcome of transferring the part of `packets` sequence numbers that began at `upcoming`. Returns the next
    /// step.
    pub fn conclude_part(
        &mut self,
        upcoming: &Upcoming,
        packets: u32,
        outcome: Outcome,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) -> Step {
        let endpoint = &self.endpoint;
        let done = (self.requester).conclude_part(upcoming, packets, outcome, now, endpoint, host);
        let step = done.unwrap_or(Step::Moved);
        self.conclude(done.map(drop), host);
        step
    }

    /// Excludes the next message from paths on which the peer copies its bytes, or on which this side writes them to the peer's
    /// memory.
    pub fn leave_to_packets(&mut self) {
        self.requester.leave_to_packets();
    }

    /// Returns whether all requests are complete, so that a request that is posted now would be sent next.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.endpoint.state == State::ReadyToSend && self.requester.is_idle()
    }

    /// Returns whether the peer may not yet have received all packets that an unreliable connection sent. A message without
    /// packets would overtake them. If so, the peer is asked for a receipt of the next packet.
    pub fn awaits_receipt(&mut self) -> bool {
        self.requester.awaits_receipt()
    }

    /// Returns the number of sequence numbers that a message of `length` bytes takes.
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        if length <= 256 {
            // 256 bytes is the smallest MTU.
            1
        } else {
            self.endpoint.packets(length)
        }
    }

    /// Returns the largest payload of a packet in bytes.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.endpoint.mtu()
    }

    /// Records that messages with `packets` sequence numbers were executed without the peer's queue pair, and without being
    /// posted here. The caller must have checked that [`is_idle`](Self::is_idle) returns `true`.
    pub fn skip(&mut self, packets: u32) {
        self.requester.skip(packets);
    }

    /// Returns whether a message with `packets` sequence numbers could be [posted as sent](Self::post_sent) now: all earlier
    /// messages have been sent, and the window has room.
    #[inline]
    pub fn may_post_sent(&self, packets: u32) -> bool {
        self.endpoint.state == State::ReadyToSend
            && self.endpoint.service == Service::ReliableConnection
            && self.responder.has_no_packet()
            && self.requester.may_post_sent(packets)
    }

    /// Returns the number of unacknowledged sequence numbers.
    #[inline]
    pub fn on_the_way(&self) -> u32 {
        self.requester.all_on_the_way()
    }

    /// Returns whether the peer could not copy the bytes of so many messages in a row that this side must transfer the bytes of
    /// further messages.
    #[inline]
    pub fn is_declined(&self) -> bool {
        self.requester.is_declined()
    }

    /// Posts a message that was sent with the [next sequence number](Self::send_sequence), where
    /// [`may_post_sent`](Self::may_post_sent) allows this. `is_offered` is set if the peer may decline the message, as after
    /// [`Outcome::Offered`]. The caller must then call [`arm`](Self::arm).
    #[inline(always)]
    pub fn post_sent(&mut self, message: &Posted, data: Data<'_>, length: u32, is_offered: bool) {
        let size = (length, self.packets(length));
        (self.requester).post_sent(message, data, size, is_offered, &self.endpoint);
    }

    /// Returns whether a message that was [posted as sent](Self::post_sent) awaits a response, and the timeout for it is not
    /// set.
    #[inline]
    pub fn is_unarmed(&self) -> bool {
        self.requester.is_unarmed()
    }

    /// Sets the timeout for the response to messages that were [posted as sent](Self::post_sent), if it is not set.
    /// [`handle_timeout`](Self::handle_timeout) does this too, so a caller for which a timer is set need not call `arm`. Until
    /// the timeout is set, [`next_timeout`](Self::next_timeout) does not include it.
    #[inline]
    pub fn arm(&mut self, now: Time) {
        self.requester.arm(now, &self.endpoint);
    }

    /// Returns whether this queue pair and `peer` are connected to each other. For datagrams only the partition must match.
    pub fn is_connected_to(&self, peer: &Self) -> bool {
        let (own, other) = (&self.endpoint, &peer.endpoint);
        let connected = own.service == Service::UnreliableDatagram
            || own.attributes.destination == other.number
                && other.attributes.destination == own.number
                && own.attributes.path_mtu == other.attributes.path_mtu;
        own.service == other.service && connected && own.shares_partition(other)
    }

    /// Returns whether this queue pair expects the part next, and nothing must be transmitted before it.
    pub fn expects(&self, part: &Part<'_>) -> bool {
        self.listens() && self.responder.expects(part)
    }

    /// Records that a part of a write, a read or an atomic was executed in the memory of this side. The caller must have
    /// checked that the part is [expected](Self::expects).
    pub fn executed(&mut self, part: &Part<'_>, host: &mut impl Host) {
        self.tell_established(host);
        self.responder.executed(part);
    }

    /// Takes a part that the sender's thread passes in, and copies its bytes. The caller must have checked that the part is
    /// [expected](Self::expects), and that the two queue pairs are connected.
    pub fn take_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) -> Result<(), NotTaken> {
        let taken = (self.responder).take_part(part, source, &self.endpoint, host);
        if !matches!(taken, Err(NotTaken::Left)) {
            self.tell_established(host);
        }
        taken
    }

    /// Receives a part, as [`receive`](Self::receive) receives packets: acknowledgements and NAKs are sent later. The caller
    /// must have checked that the part comes from the peer.
    #[inline(always)]
    pub fn receive_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) {
        if self.endpoint.state == State::Error {
            return;
        }
        self.tell_established(host);
        (self.responder).receive_part(part, source, &self.endpoint, host);
        self.end_if_due(host);
    }

    /// Receives an acknowledgement of everything up to `sequence`. `now` may return a time somewhat later than the present:
    /// only the timeout of the next response depends on it.
    #[inline]
    pub fn receive_acknowledgement(
        &mut self,
        sequence: Sequence,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        if self.sends() {
            let done = (self.requester).acknowledged(sequence, now, &self.endpoint, host);
            self.conclude(done, host);
        }
    }

    /// Returns the sequence number up to which everything must be acknowledged now, and marks the acknowledgement as sent.
    /// Returns `None` if no acknowledgement is due.
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<Sequence> {
        self.responder.take_acknowledgement()
    }

    /// Returns the sequence number that [`take_acknowledgement`](Self::take_acknowledgement) would return.
    #[inline]
    pub fn acknowledgement(&self) -> Option<Sequence> {
        self.responder.acknowledgement()
    }

    /// Records that the [acknowledgement](Self::acknowledgement) was sent, if one was due.
    #[inline]
    pub fn acknowledgement_sent(&mut self) {
        self.responder.acknowledgement_sent();
    }

    /// Returns whether a message for this queue pair number and partition key is accepted in the present state. Counts a
    /// message that is not accepted.
    #[inline]
    pub fn accepts(&self, destination: u32, partition_key: u16, host: &mut impl Host) -> bool {
        self.takes(destination, partition_key, host)
    }

    /// Returns whether the responder has nothing to send except, possibly, an acknowledgement.
    #[inline]
    pub fn responds_briefly(&self) -> bool {
        self.responder.has_no_packet()
    }

    /// Returns how urgently this queue pair must transmit something.
    #[inline]
    pub fn prospect(&self) -> Prospect {
        if self.endpoint.state != State::ReadyToSend || !self.requester.is_silent() {
            Prospect::Urgent
        } else if self.responder.is_silent() {
            Prospect::Nothing
        } else if self.endpoint.service == Service::ReliableConnection
            && self.responder.has_no_packet()
        {
            Prospect::Acknowledgement
        } else {
            Prospect::Urgent
        }
    }

    /// Returns whether nothing is to be transmitted.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.prospect() == Prospect::Nothing
    }

    /// Delivers a datagram of the host `sender` to this queue pair. `route` is the GRH for the first 40 bytes of the receive.
    /// Returns [`Outcome::Executed`] also for a datagram that is dropped.
    ///
    /// The caller must have checked the queue pair number and the partition.
    pub fn take_datagram<H: Host>(
        &mut self,
        part: &Part<'_>,
        route: &[u8; 40],
        host: &mut H,
        sender: &H,
    ) -> Outcome {
        let request = part.request;
        let &SendOperation::Datagram {
            immediate,
            queue_key,
            ..
        } = &request.operation
        else {
            return Outcome::Left;
        };
        if !self.listens() || self.endpoint.service != Service::UnreliableDatagram {
            return Outcome::Left;
        }
        let mut room = [0; DATAGRAM];
        let payload = match request.payload.data() {
            Data::Inline(bytes) => bytes,
            Data::Gathered(list) => {
                let Some(bytes) = room.get_mut(..request.length as usize) else {
                    return Outcome::Left;
                };
                if !bytes.is_empty() && sender.gather(list, 0, bytes).is_err() {
                    return Outcome::Failed(CompletionStatus::LocalProtection);
                }
                bytes
            }
        };
        let own = queue_key & 1 << 31 != 0;
        let label = Label {
            queue_key: if own { part.queue_key } else { queue_key },
            source: part.source,
            immediate,
            solicited: request.solicited,
        };
        let done = datagram::deliver(&self.endpoint, route, Some(label), payload, host);
        if let Err(status) = done {
            self.responder.abort(status, host);
            self.fall(host);
        }
        Outcome::Executed
    }

    /// Returns whether requests may be sent in the present state.
    #[inline]
    fn sends(&self) -> bool {
        matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        )
    }

    /// Returns whether the queue pair receives anything in the present state.
    fn listens(&self) -> bool {
        !matches!(
            self.endpoint.state,
            State::Reset | State::Init | State::Error
        )
    }
}

/// A send, or a write with immediate data, to be posted; its bytes are passed separately.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Work request id.
    pub id: u64,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Destination memory of a write with immediate data. `None` for a send.
    pub remote: Option<Remote>,
    /// Set if a successful completion is reported too.
    pub signaled: bool,
    /// Set if the completion at the peer raises a solicited event.
    pub solicited: bool,
}

/// Urgency of what a queue pair has to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// Nothing is to be transmitted.
    Nothing,
    /// Only an acknowledgement is to be transmitted. It may be delayed to be sent together with a message of the program.
    Acknowledgement,
    /// Something is to be transmitted now.
    Urgent,
}
