//! Messages that reach the peer without packets, part by part.
//!
//! The caller carries the bytes of a part, in whatever way, and the transport keeps the books: order, sequence numbers,
//! windows, acknowledgements, receive requests and completions. A part has the sequence numbers that its packets would
//! have, so parts and packets can follow each other, also within a message.
//!
//! ```text
//! sender:   upcoming -> part -> the caller carries the bytes -> conclude_part
//! receiver: take_part, which copies the bytes from a Source
//! ```

use std::time::Duration;

use super::datagram::{self, Label};
use super::{
    CompletionStatus, Data, Host, Misplaced, QueuePair, Remote, Segment, SendOperation,
    SendRequest, Sequence, Service, State, Time,
};

/// The place where the next part of a send queue begins.
#[derive(Clone, Copy, Debug)]
pub struct Upcoming {
    /// Number of the message's first packet.
    pub first: Sequence,
    /// Number of packets of the message that are sent.
    pub packet: u32,
    /// Number of packets of the message.
    pub packets: u32,
    /// Number of sequence numbers before the part that are not acknowledged.
    pub on_the_way: u32,
    /// Set if all messages before this one have ended.
    pub is_oldest: bool,
    /// Set if a packet must tell the peer of [skipped](QueuePair::skip) sequence numbers before the part.
    pub is_gap_untold: bool,
    /// Set if the peer declined this message, or several messages in a row: only packets may carry the message.
    pub is_declined: bool,
    /// The answer of [`Host::is_mappable`] for the request.
    pub is_mappable: bool,
    /// Set if the peer acknowledges messages.
    pub is_reliable: bool,
}

/// A part of a message, which begins and ends at the boundaries of packets.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The request.
    pub request: &'a SendRequest,
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Number of sequence numbers of the part.
    pub packets: u32,
    /// Number of bytes of the message before the part.
    pub offset: u32,
    /// Number of bytes of the part.
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

/// Result of carrying a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The part was executed, and counts as acknowledged.
    Executed,
    /// A whole message was executed without the peer's queue pair, which has to be told of its sequence numbers before the
    /// next packet.
    ExecutedAlone,
    /// The part is on its way, with its bytes. The peer will acknowledge it.
    Sent,
    /// The part is on its way, without its bytes. The peer will acknowledge it, or decline the message.
    Offered,
    /// Nothing was done. Packets have to carry the message.
    Left,
    /// Nothing was done: the peer has no receive request.
    NotReady {
        /// RNR timer code of the peer.
        timer: u8,
    },
    /// Nothing was done: to be tried again after a time.
    Later {
        /// Time until then.
        again: Duration,
    },
    /// The request fails, and the connection with it.
    Failed(CompletionStatus),
}

/// Next step of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part was carried, and there may be more.
    Moved,
    /// Nothing can go now.
    Idle,
    /// Packets have to go, or nothing.
    Packets,
}

/// A part of a message that takes a receive request, as it reaches the receiver.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Kind of the message.
    pub kind: Kind,
    /// Number of bytes of the part. Of [`Kind::Written`]: of the message.
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

/// Kind of a message that takes a receive request, which says where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send: its bytes go to the memory of the receive request.
    Send,
    /// A write with immediate data: its bytes go to the memory that the write names, and the [`Source`] knows it.
    Written,
}

/// The bytes of a part, for its receiver.
pub trait Source<H> {
    /// Copies the bytes to the places from `offset` on of a message that is scattered over `to`, or to where they belong if they are
    /// those of a [write](Kind::Written). `host` is the receiver's.
    ///
    /// # Errors
    /// [`Misplaced::Here`] if `to` cannot be written, and [`Misplaced::There`] if the bytes cannot be read.
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), Misplaced>;
}

/// Reason why a receiver did not take a part that is handed over by the sender's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The queue pair has no receive request.
    NotReady {
        /// RNR timer code.
        timer: u8,
    },
    /// The key that the message invalidates is still in use. To be tried again after a time.
    Later {
        /// Time until then.
        again: Duration,
    },
    /// Anything else, which packets find out.
    Left,
}

/// Longest datagram in bytes.
const DATAGRAM: usize = 4096;

impl Upcoming {
    /// Returns the sequence number of the part.
    pub fn sequence(&self) -> Sequence {
        self.first + self.packet
    }
}

impl QueuePair {
    /// Starts the next request, if it may start, and returns where its next part begins. Otherwise returns the next step.
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

    /// Returns the next step, as far as this side knows: [`Step::Moved`] if a part may go and nothing is on the way.
    pub fn next_step(&self, now: impl FnOnce() -> Time) -> Step {
        if self.sends() {
            self.requester.next_step(now, &self.endpoint)
        } else {
            Step::Packets
        }
    }

    /// Returns whether packets must not carry the next part, because it goes by another path.
    pub fn is_held_back(&self, host: &impl Host) -> bool {
        self.requester.is_held_back(&self.endpoint, host)
    }

    /// Returns the request whose next part or packet goes next.
    pub fn next_request(&self) -> Option<&SendRequest> {
        self.requester.next_request()
    }

    /// Returns the part of at most `packets` sequence numbers that begins at `upcoming`.
    pub fn part(&self, upcoming: &Upcoming, packets: u32) -> Option<Part<'_>> {
        self.requester.part(upcoming, packets, &self.endpoint)
    }

    /// Returns whether the window has room for `packets` sequence numbers more.
    pub fn has_window(&self, upcoming: &Upcoming, packets: u32) -> bool {
        self.requester.has_window(upcoming.on_the_way, packets)
    }

    /// Notes the result of carrying the part of `packets` sequence numbers that began at `upcoming`. Returns the next step.
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

    /// Leaves the next message to packets.
    pub fn leave_to_packets(&mut self) {
        self.requester.leave_to_packets();
    }

    /// Returns whether a request that is posted now would be the next to go: all requests before it are done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.endpoint.state == State::ReadyToSend && self.requester.is_idle()
    }

    /// Returns whether packets of an unreliable connection have gone that the peer may not have taken yet: a message that
    /// goes without packets would overtake them. If so, the peer is asked for a receipt of the next packet.
    pub fn awaits_receipt(&mut self) -> bool {
        self.requester.awaits_receipt()
    }

    /// Returns the number of sequence numbers of a message of `length` bytes.
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        if length <= 256 {
            // No packet is smaller.
            1
        } else {
            self.endpoint.packets(length)
        }
    }

    /// Returns the number of bytes of the largest packet's payload.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.endpoint.mtu()
    }

    /// Notes that messages with `packets` sequence numbers, which were never posted here, were executed without the peer's
    /// queue pair. To be called where [`is_idle`](Self::is_idle) returned `true`.
    pub fn skip(&mut self, packets: u32) {
        self.requester.skip(packets);
    }

    /// Returns whether a message that is posted now could be [sent](Self::post_sent) at once, with `packets` sequence
    /// numbers: all messages before it have gone, and nothing holds it up.
    #[inline]
    pub fn may_post_sent(&self, packets: u32) -> bool {
        self.endpoint.state == State::ReadyToSend
            && self.endpoint.service == Service::ReliableConnection
            && self.responder.has_no_packet()
            && self.requester.may_post_sent(packets)
    }

    /// Returns the number of sequence numbers that are not acknowledged.
    #[inline]
    pub fn on_the_way(&self) -> u32 {
        self.requester.all_on_the_way()
    }

    /// Returns whether the peer has declined so many messages in a row that only packets may carry more.
    #[inline]
    pub fn is_declined(&self) -> bool {
        self.requester.is_declined()
    }

    /// Posts a message that was sent with the [next sequence number](Self::send_sequence), where
    /// [`may_post_sent`](Self::may_post_sent) allows it. Set `is_offered` if the peer may decline the message, as after
    /// [`Outcome::Offered`]. Then [`arm`](Self::arm) must be called.
    #[inline(always)]
    pub fn post_sent(&mut self, message: &Posted, data: Data<'_>, length: u32, is_offered: bool) {
        let size = (length, self.packets(length));
        (self.requester).post_sent(message, data, size, is_offered, &self.endpoint);
    }

    /// Returns whether the peer must answer a message that was [posted as sent](Self::post_sent) by a time that is not set.
    #[inline]
    pub fn is_unarmed(&self) -> bool {
        self.requester.is_unarmed()
    }

    /// Sets the time by which the peer must answer messages that were [posted as sent](Self::post_sent), unless that is set.
    /// [`handle_timeout`](Self::handle_timeout) sets the time, too, so a caller for which a timer is set need not call this. Until
    /// the time is set, [`next_timeout`](Self::next_timeout) does not count the answer.
    #[inline]
    pub fn arm(&mut self, now: Time) {
        self.requester.arm(now, &self.endpoint);
    }

    /// Returns whether this queue pair and `peer` are connected to each other. For datagrams only the partition has to
    /// match.
    pub fn is_connected_to(&self, peer: &Self) -> bool {
        let (own, other) = (&self.endpoint, &peer.endpoint);
        let connected = own.service == Service::UnreliableDatagram
            || own.attributes.destination == other.number
                && other.attributes.destination == own.number
                && own.attributes.path_mtu == other.attributes.path_mtu;
        own.service == other.service && connected && own.shares_partition(other)
    }

    /// Returns whether this queue pair expects a part of `peer` next, and nothing is to be transmitted before the part.
    pub fn expects(&self, part: &Part<'_>) -> bool {
        self.listens() && self.responder.expects(part)
    }

    /// Notes that a part of a write, or a read or an atomic, was executed in the memory of this side. The caller has checked
    /// that the part is [expected](Self::expects).
    pub fn executed(&mut self, part: &Part<'_>, host: &mut impl Host) {
        self.tell_established(host);
        self.responder.executed(part);
    }

    /// Takes a part that the sender's thread hands over, and copies its bytes. The caller has checked that the part is
    /// [expected](Self::expects), and that the two are connected.
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

    /// Receives a part, as [`receive`](Self::receive) receives packets: whatever becomes of it, the peer is told later. The
    /// caller has checked that the part comes from the peer.
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

    /// Receives an acknowledgement of everything up to `sequence`. `now` may return a time somewhat later than the present: only
    /// the time until the next answer follows from it.
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

    /// Returns the sequence number up to which everything is to be acknowledged now, and counts the acknowledgement as
    /// transmitted. Returns `None` if none is due, or if a packet has to tell more.
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<Sequence> {
        self.responder.take_acknowledgement()
    }

    /// Returns the sequence number that [`take_acknowledgement`](Self::take_acknowledgement) would return.
    #[inline]
    pub fn acknowledgement(&self) -> Option<Sequence> {
        self.responder.acknowledgement()
    }

    /// Notes that the [acknowledgement](Self::acknowledgement) was transmitted, if one was due.
    #[inline]
    pub fn acknowledgement_sent(&mut self) {
        self.responder.acknowledgement_sent();
    }

    /// Returns whether a message for this number and partition is accepted in the present state, and counts it if not.
    #[inline]
    pub fn accepts(&self, destination: u32, partition_key: u16, host: &mut impl Host) -> bool {
        self.takes(destination, partition_key, host)
    }

    /// Returns whether the responder has nothing to transmit but perhaps an acknowledgement.
    #[inline]
    pub fn responds_briefly(&self) -> bool {
        self.responder.has_no_packet()
    }

    /// Returns how urgently something has to be transmitted.
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

    /// Takes a datagram of `sender`'s. `route` is the GRH that the receiver finds in its buffer. Returns `Ok` also for a
    /// datagram that is dropped.
    ///
    /// The caller has checked the queue pair number and the partition.
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

    /// Returns whether requests may go in the present state.
    #[inline]
    fn sends(&self) -> bool {
        matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        )
    }

    /// Returns whether the queue pair receives anything in its state.
    fn listens(&self) -> bool {
        !matches!(
            self.endpoint.state,
            State::Reset | State::Init | State::Error
        )
    }
}

/// A send, or a write with immediate data, that is posted, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// The caller's number for the request.
    pub id: u64,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Memory that the bytes go to, of a write with immediate data.
    pub remote: Option<Remote>,
    /// Set if a successful end is reported, too.
    pub signaled: bool,
    /// Set if the completion of the peer raises a solicited event.
    pub solicited: bool,
}

/// Urgency of what a queue pair has to transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// Nothing is to be transmitted.
    Nothing,
    /// An acknowledgement is to be transmitted. It may wait for a message of the program, and go together with it.
    Acknowledgement,
    /// Something is to be transmitted now.
    Urgent,
}
