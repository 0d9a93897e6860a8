//! Transfer of messages without packets, to a peer in this process or in another process of the
//! host. A part is a range of a message.
//!
//! The caller copies the bytes of a part in any way. The transport keeps order, sequence numbers,
//! windows, acknowledgements, receives and completions. A part uses the sequence numbers that its
//! packets would have, so parts and packets can follow each other, also within a message.
//!
//! ```text
//! sender:   upcoming -> part -> the caller copies the bytes -> conclude_part
//! receiver: take_part, which copies the bytes from a Source
//! ```

use std::time::Duration;

use super::datagram::{self, DatagramFields};
use super::{
    CompletionStatus, CopyError, Data, Host, QueuePair, Remote, Segment, SendOperation,
    SendRequest, Sequence, Service, State, Time,
};

/// Position of the next unsent bytes of a send queue, with properties of these bytes and of the
/// connection. The caller decides from these properties whether to transfer the bytes without
/// packets.
#[derive(Clone, Copy, Debug)]
pub struct Upcoming {
    /// Sequence number of the message's first packet. Each packet of a message has the number after
    /// that of the packet before it.
    pub first: Sequence,
    /// Index of the next packet within the message.
    pub packet: u32,
    /// Total number of packets of the message.
    pub packets: u32,
    /// Number of sent sequence numbers that are not acknowledged. After the peer has reported
    /// missing packets, two kinds of packets may be left out: packets that the peer has received
    /// after a gap, and lost packets that have not been sent again.
    pub unacknowledged: u32,
    /// Set if all messages before this one have completed.
    pub is_oldest: bool,
    /// Set if sequence numbers were [skipped](QueuePair::skip), and a packet must announce them to
    /// the peer before the next message.
    pub is_gap_unannounced: bool,
    /// Set if this side must send the bytes of the message itself. In this case, the peer could not
    /// copy the bytes of this message, or of several previous messages in the same kind of memory,
    /// from this process.
    pub is_declined: bool,
    /// Set if another process can map the memory of the request: the result of
    /// [`Host::is_mappable`].
    pub is_mappable: bool,
    /// Set if the peer acknowledges messages, because the connection is reliable.
    pub is_reliable: bool,
    /// Set if earlier packets of an unreliable connection may still be in flight to the peer. Bytes
    /// that are transferred without packets would overtake these packets. Never set for a reliable
    /// connection, which restores the order itself.
    pub has_packets_in_flight: bool,
    /// Set if the receipt (confirmation by the peer) for an earlier message of an unreliable
    /// connection is missing. A one-sided operation would overtake these messages. Never set for a
    /// reliable connection.
    pub awaits_receipt: bool,
}

/// A range of a message that is transferred without packets. The beginning and end of the range are
/// packet boundaries of the message.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Send request that the part belongs to.
    pub request: &'a SendRequest,
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Number of sequence numbers of the part: the number of packets that the part replaces.
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
    /// Queue key of the sending queue pair. If the top bit of the queue key in a datagram request
    /// is set, the datagram contains this key instead.
    pub queue_key: u32,
}

/// Result of an attempt to transfer a part (range) of a message to the peer without packets. The
/// sender then continues according to this result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOutcome {
    /// The part was executed at the peer, and counts as acknowledged.
    Executed,
    /// A whole message was executed in the peer's memory without the peer's queue pair. A skip
    /// packet must announce the sequence numbers of the message to the peer before the next packet.
    ExecutedOneSided,
    /// The part was sent, including its bytes. The peer will acknowledge the part.
    Sent,
    /// A description of the part (the location of its bytes in this process's memory) was sent. The
    /// peer will copy the bytes and acknowledge the part, or decline the message.
    Offered,
    /// The part was not transferred. The message must be sent as packets.
    UsePackets,
    /// The part was not transferred, because the peer has no receive posted.
    NotReady {
        /// RNR timer code of the peer, which determines how long the sender must wait.
        timer: u8,
    },
    /// The part was not transferred. The caller must try again after a pause.
    Later {
        /// Time to wait before the next attempt.
        delay: Duration,
    },
    /// The request has failed with this status, and the connection has failed too.
    Failed(CompletionStatus),
}

/// Result of an attempt to transfer a part (range) of a message without packets. The sender then
/// continues with another part, continues with packets, or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProgress {
    /// A part of a message was transferred. The caller may try to transfer the next part.
    Transferred,
    /// Nothing can be sent now, because no request is left or the next one must wait.
    Idle,
    /// Only packets can be sent now, and no parts.
    PacketsOnly,
}

/// Received part (range) of a message that is transferred without packets. The message is a send or
/// a write with immediate data. Both complete a posted receive.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Sequence number of the part's first packet.
    pub sequence: Sequence,
    /// Kind of the message.
    pub kind: Kind,
    /// Length of the part in bytes. A part of the kind [`Kind::Write`] is always a whole message.
    pub length: u32,
    /// Set if the part is the first of the message.
    pub starts: bool,
    /// Set if the part is the last of the message.
    pub ends: bool,
    /// Immediate data that the message carries, if it has any.
    pub immediate: Option<[u8; 4]>,
    /// Key that the message invalidates.
    pub invalidated: Option<u32>,
    /// Set if the completion raises a solicited event.
    pub solicited: bool,
}

/// Kind of a message that completes a posted receive. The kind determines the memory to which the
/// bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send: the bytes go to the memory of the receive.
    Send,
    /// A write with immediate data. The [`Source`] copies the bytes to this memory of the receiver.
    /// The receiver checks that the sender may write there.
    Write(Remote),
    /// A write with immediate data. Either the sender has written the bytes to the receiver's
    /// memory, after checking its access rights, or the [`Source`] writes the bytes.
    Written,
}

/// Source from which a receiver copies the bytes of a part (range) of a message, such as a ring in
/// shared memory, or the memory of the sender.
pub trait Source<H> {
    /// Copies the bytes of a part (range) of a message to the receiver, whose [`Host`] is `host`.
    /// The bytes of a send go to the memory `to` of the receive, from byte `offset` on. The bytes
    /// of a write go to the destination of the write, unless the sender has already copied them
    /// there.
    ///
    /// # Errors
    /// - [`CopyError::Local`] if the receiver's memory cannot be written.
    /// - [`CopyError::Peer`] if the bytes cannot be read.
    fn copy(&mut self, to: &[Segment], offset: u32, host: &H) -> Result<(), CopyError>;
}

/// Reason why a receiver did not accept a part (range) of a message from a sender in the same
/// process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartRefusal {
    /// The queue pair has no receive posted.
    NotReady {
        /// RNR timer code, which determines how long the sender must wait.
        timer: u8,
    },
    /// The message invalidates a key that other processes still use. The caller must try again
    /// after a pause.
    Later {
        /// Time to wait before the next attempt.
        delay: Duration,
    },
    /// The receiver refused for another reason. The sender must send the message as packets, whose
    /// responses report errors.
    UsePackets,
}

/// Maximum length of a datagram's payload in bytes: 4096, the largest path MTU of RDMA. A buffer of
/// this size holds the payload while it is copied between two queue pairs.
const DATAGRAM: usize = 4096;

impl Upcoming {
    /// Returns the sequence number of the next packet of the message. Bytes that are transferred
    /// without packets have the numbers that their packets would have.
    pub fn sequence(&self) -> Sequence {
        self.first + self.packet
    }
}

impl QueuePair {
    /// Starts the next send request if this is possible now, and returns the position of the next
    /// unsent bytes. A request that starts gets its sequence numbers.
    ///
    /// # Errors
    /// - [`SendProgress::PacketsOnly`] if only packets can be sent now.
    /// - [`SendProgress::Idle`] if nothing can be sent now.
    /// - [`SendProgress::Transferred`] if a request has failed. All requests have then completed,
    ///   and the queue pair is in an error state.
    pub fn upcoming(
        &mut self,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) -> Result<Upcoming, SendProgress> {
        if !self.may_send() {
            return Err(SendProgress::PacketsOnly);
        }
        let upcoming = self.requester.upcoming(now, &self.endpoint, host);
        upcoming.unwrap_or_else(|failed| {
            self.handle_result(Err(failed), host);
            Err(SendProgress::Transferred)
        })
    }

    /// Returns what can be sent next: bytes without packets, only packets, or nothing. Does not
    /// change the state. [`SendProgress::Transferred`] means that bytes may be copied to a peer on
    /// this host now, without packets. On a reliable connection, this requires that the peer has
    /// acknowledged all sent packets.
    pub fn next_step(&self, now: impl FnOnce() -> Time) -> SendProgress {
        if self.may_send() {
            self.requester.next_step(now, &self.endpoint)
        } else {
            SendProgress::PacketsOnly
        }
    }

    /// Returns whether the next request's bytes must be copied to a peer on this host without
    /// packets. If so, the caller must not send these bytes as packets, even if the copy must wait
    /// until earlier requests are acknowledged.
    pub fn excludes_packets(&self, host: &impl Host) -> bool {
        self.requester.excludes_packets(&self.endpoint, host)
    }

    /// Returns the send request whose bytes are sent next, in a packet or without packets. Returns
    /// `None` if no request waits to be sent.
    pub fn next_request(&self) -> Option<&SendRequest> {
        self.requester.next_request()
    }

    /// Returns the next part (range) of the message, to be copied to a peer on this host without
    /// packets. The part begins at the position `upcoming`, and replaces at most `packets` packets.
    /// Returns `None` if no request waits to be sent.
    pub fn part(&self, upcoming: &Upcoming, packets: u32) -> Option<Part<'_>> {
        self.requester.part(upcoming, packets, &self.endpoint)
    }

    /// Returns whether `packets` more packets may be sent, within the limit on unacknowledged
    /// packets (the window). `upcoming` is the position of the next unsent bytes, and contains the
    /// present number of unacknowledged packets. Bytes that are copied to a peer on this host count
    /// as the packets that they replace.
    pub fn has_window(&self, upcoming: &Upcoming, packets: u32) -> bool {
        self.requester.has_window(upcoming.unacknowledged, packets)
    }

    /// Records `outcome`, the result of an attempt to copy a part (range) of a message to a peer on
    /// this host without packets. The part begins at the position `upcoming`, and replaces
    /// `packets` packets. Returns what can be sent next: another part, only packets, or nothing at
    /// present. If the request has failed, returns [`SendProgress::Transferred`]: the queue pair is
    /// then in an error state.
    pub fn conclude_part(
        &mut self,
        upcoming: &Upcoming,
        packets: u32,
        outcome: PartOutcome,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) -> SendProgress {
        let endpoint = &self.endpoint;
        let done = (self.requester).conclude_part(upcoming, packets, outcome, now, endpoint, host);
        let step = done.unwrap_or(SendProgress::Transferred);
        self.handle_result(done.map(drop), host);
        step
    }

    /// Forbids direct copies of the next message, so that this side must send the message's bytes.
    /// The caller must call this function in two cases: the location of the bytes in this process's
    /// memory cannot be described to the peer, or this side cannot write the bytes to the peer's
    /// memory.
    pub fn require_sent_bytes(&mut self) {
        self.requester.require_sent_bytes();
    }

    /// Returns whether all requests have completed and nothing must be sent, so that a new request
    /// need not wait for an earlier one.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.endpoint.state == State::ReadyToSend && self.requester.is_idle()
    }

    /// Returns whether a receipt (confirmation by the peer) for earlier messages of an unreliable
    /// connection is missing. While the result is `true`, the caller must not copy bytes directly
    /// to the peer's memory, because the copy would overtake these messages. In this case, also
    /// schedules a request for a receipt, to be sent after the next message that is sent as
    /// packets.
    pub fn awaits_receipt(&mut self) -> bool {
        self.requester.awaits_receipt()
    }

    /// Returns the number of sequence numbers that a message of `length` bytes uses: one for each
    /// of its packets. A message that is transferred without packets uses the same number.
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        self.endpoint.packets(length)
    }

    /// Returns the largest payload of a packet in bytes: the path MTU.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.endpoint.mtu()
    }

    /// Advances the send sequence number by `packets`, to account for messages that were executed
    /// directly in the peer's memory without being posted here. The caller must ensure that
    /// [`is_idle`](Self::is_idle) has returned `true`.
    pub fn skip(&mut self, packets: u32) {
        self.requester.skip(packets);
    }

    /// Returns whether the caller may send a message of `packets` packets now, before
    /// [`post_sent`](Self::post_sent) adds the message to the send queue. The result is `true` only
    /// on a reliable connection on which all earlier messages are sent. The limit on unacknowledged
    /// packets (the window) must also permit the message.
    #[inline]
    pub fn may_post_sent(&self, packets: u32) -> bool {
        self.endpoint.state == State::ReadyToSend
            && self.endpoint.service == Service::ReliableConnection
            && self.responder.has_no_packet()
            && self.requester.may_post_sent(packets)
    }

    /// Returns the number of packets of started requests that are not acknowledged. Bytes that are
    /// transferred through shared memory count as the packets that they replace. After the peer has
    /// reported missing packets, the result leaves out the packets that
    /// [`Upcoming::unacknowledged`] also leaves out.
    #[inline]
    pub fn unacknowledged(&self) -> u32 {
        self.requester.all_on_the_way()
    }

    /// Returns whether this side must send the bytes of messages itself, because the peer has
    /// failed to copy several messages in a row from this process's memory. If `is_mappable` is
    /// set, the result is for messages in memory that the peer can map. Otherwise the result is for
    /// messages in other memory. Failures are counted separately for the two kinds of memory.
    #[inline]
    pub fn is_declined(&self, is_mappable: bool) -> bool {
        self.requester.is_declined(is_mappable)
    }

    /// Adds a message to the send queue after the caller has sent the message through shared
    /// memory. The caller must ensure that [`may_post_sent`](Self::may_post_sent) has returned
    /// `true`. The message gets the [next sequence number](Self::send_sequence). `data` contains
    /// the `length` bytes. `offered` is `None` if the bytes were sent. If only their location was
    /// sent, `offered` is the result of [`Host::is_mappable`].
    ///
    /// Afterwards, the caller must set the timeout for the response by [`arm`](Self::arm) or
    /// [`handle_timeout`](Self::handle_timeout).
    #[inline(always)]
    pub fn post_sent(
        &mut self,
        message: &UnqueuedMessage,
        data: Data<'_>,
        length: u32,
        offered: Option<bool>,
    ) {
        let size = (length, self.packets(length));
        (self.requester).post_sent(message, data, size, offered, &self.endpoint);
    }

    /// Returns whether [`arm`](Self::arm) must still set the timeout for a response. The result is
    /// `true` after [`post_sent`](Self::post_sent) has added a message.
    #[inline]
    pub fn is_unarmed(&self) -> bool {
        self.requester.is_unarmed()
    }

    /// Sets the timeout for the response to messages that [`post_sent`](Self::post_sent) added,
    /// unless the timeout is already set. Before this call, [`next_timeout`](Self::next_timeout)
    /// does not include the timeout. [`handle_timeout`](Self::handle_timeout) also sets the
    /// timeout, so a caller of that function need not call `arm`.
    #[inline]
    pub fn arm(&mut self, now: Time) {
        self.requester.arm(now, &self.endpoint);
    }

    /// Returns whether this queue pair and `peer` are connected to each other. If so, messages may
    /// be transferred between them without packets. For datagrams, returns whether both queue pairs
    /// are in the same partition.
    pub fn is_connected_to(&self, peer: &Self) -> bool {
        let (own, other) = (&self.endpoint, &peer.endpoint);
        let connected = own.service == Service::UnreliableDatagram
            || own.attributes.destination == other.number
                && other.attributes.destination == own.number
                && own.attributes.path_mtu == other.attributes.path_mtu;
        own.service == other.service && connected && own.shares_partition(other)
    }

    /// Returns whether the peer may now execute `part` (a range of a message) directly in the
    /// memory of this process. The result is `true` only if the part has the sequence number that
    /// this queue pair expects next, and if the responses to all earlier reads and atomics are
    /// sent. If the result is `false`, the peer sends packets.
    pub fn expects(&self, part: &Part<'_>) -> bool {
        self.may_receive() && self.responder.expects(part)
    }

    /// Records that the peer executed a part (range) of a write, a read or an atomic directly in
    /// this process's memory, without packets. Before the execution, the caller must have checked
    /// that the part is [expected next](Self::expects). Afterwards, this queue pair expects the
    /// sequence number after the part.
    pub fn executed(&mut self, part: &Part<'_>, host: &mut impl Host) {
        self.report_established(host);
        self.responder.executed(part);
    }

    /// Receives a part (range) of a message from a sender in this process, on the sender's thread.
    /// Copies the bytes from `source` to the posted receive or the destination of the write. The
    /// caller must have checked that the part is [expected next](Self::expects), and that the two
    /// queue pairs are connected.
    pub fn take_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) -> Result<(), PartRefusal> {
        let taken = (self.responder).take_part(part, source, &self.endpoint, host);
        if !matches!(taken, Err(PartRefusal::UsePackets)) {
            self.report_established(host);
        }
        taken
    }

    /// Receives a part (range) of a message from another process, and copies the bytes from
    /// `source` to the posted receive or the destination of the write. Returns `true` if the part
    /// was accepted and all its bytes were copied. Acknowledgements and NAKs are sent later, as for
    /// [`receive`](Self::receive). The caller must have checked that the part comes from the
    /// connected peer.
    #[inline(always)]
    pub fn receive_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        host: &mut H,
    ) -> bool {
        if self.endpoint.state == State::Error {
            return false;
        }
        self.report_established(host);
        if self.endpoint.is_reliable() {
            let is_taken = (self.responder).receive_part(part, source, &self.endpoint, host);
            self.end_if_due(host);
            return is_taken;
        }
        let endpoint = &self.endpoint;
        let taken = (self.responder).receive_unreliable_part(part, source, endpoint, host);
        taken.unwrap_or_else(|status| {
            self.fail_receive(status, host);
            false
        })
    }

    /// Handles an acknowledgement of all packets up to `sequence` by the peer. Has no effect on an
    /// unreliable connection. `now` returns the time from which the next response's timeout is
    /// counted: the present time, or a somewhat later time.
    #[inline]
    pub fn receive_acknowledgement(
        &mut self,
        sequence: Sequence,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
    ) {
        if self.may_send() && self.endpoint.is_reliable() {
            let done = (self.requester).acknowledged(sequence, now, &self.endpoint, host);
            self.handle_result(done, host);
        }
    }

    /// Returns the sequence number of the acknowledgement that must be sent, and records that it
    /// was sent. Returns `None` if no acknowledgement must be sent.
    #[inline]
    pub fn take_acknowledgement(&mut self) -> Option<Sequence> {
        self.responder.take_acknowledgement()
    }

    /// Returns the sequence number of the acknowledgement that this queue pair must send to its
    /// peer. Returns `None` if no acknowledgement must be sent. Does not change the state.
    #[inline]
    pub fn acknowledgement(&self) -> Option<Sequence> {
        self.responder.acknowledgement()
    }

    /// Records that the [acknowledgement](Self::acknowledgement) was sent, so that this
    /// acknowledgement is not sent again. Has no effect if no acknowledgement had to be sent.
    #[inline]
    pub fn acknowledgement_sent(&mut self) {
        self.responder.acknowledgement_sent();
    }

    /// Returns whether this queue pair accepts a message with the queue pair number `destination`
    /// and the partition key `partition_key` in its present state. If not, counts the message as
    /// dropped.
    #[inline]
    pub fn accepts(&self, destination: u32, partition_key: u16, host: &mut impl Host) -> bool {
        self.accepts_packet(destination, partition_key, host)
    }

    /// Returns whether the responder half of this queue pair has no packet to send. A pending
    /// acknowledgement is ignored, because it can also be sent as a message in shared memory.
    #[inline]
    pub fn has_no_response_packet(&self) -> bool {
        self.responder.has_no_packet()
    }

    /// Returns whether all responses to the peer have been sent: no response packet, no
    /// acknowledgement and no receipt is left.
    #[inline]
    pub fn has_no_response(&self) -> bool {
        self.responder.is_silent() && self.receipts.is_empty()
    }

    /// Returns the urgency with which this queue pair must transmit: not at all, only an
    /// acknowledgement, or without a delay. Always returns [`TransmitUrgency::Urgent`] unless the
    /// state is ready to send.
    #[inline]
    pub fn transmit_urgency(&self) -> TransmitUrgency {
        if self.endpoint.state != State::ReadyToSend || !self.requester.is_silent() {
            TransmitUrgency::Urgent
        } else if self.has_no_response() {
            TransmitUrgency::Nothing
        } else if self.endpoint.service == Service::ReliableConnection
            && self.responder.has_no_packet()
        {
            TransmitUrgency::Acknowledgement
        } else {
            TransmitUrgency::Urgent
        }
    }

    /// Returns whether this queue pair has nothing to transmit: no request, no response, and no
    /// acknowledgement.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.transmit_urgency() == TransmitUrgency::Nothing
    }

    /// Delivers a datagram to this queue pair without a packet. `route` is the GRH, which fills the
    /// first 40 bytes of the receive. `sender` gives access to the memory of the sending queue
    /// pair. Returns [`PartOutcome::Executed`] even if the datagram is dropped, because the sender
    /// of a datagram is not informed of a loss.
    ///
    /// The caller must have checked the queue pair number and the partition.
    pub fn take_datagram<H: Host>(
        &mut self,
        part: &Part<'_>,
        route: &[u8; 40],
        host: &mut H,
        sender: &H,
    ) -> PartOutcome {
        let request = part.request;
        let &SendOperation::Datagram {
            immediate,
            queue_key,
            ..
        } = &request.operation
        else {
            return PartOutcome::UsePackets;
        };
        if !self.may_receive() || self.endpoint.service != Service::UnreliableDatagram {
            return PartOutcome::UsePackets;
        }
        let mut room = [0; DATAGRAM];
        let payload = match request.payload.data() {
            Data::Inline(bytes) => bytes,
            Data::Gathered(list) => {
                let Some(bytes) = room.get_mut(..request.length as usize) else {
                    return PartOutcome::UsePackets;
                };
                if !bytes.is_empty() && sender.gather(list, 0, bytes).is_err() {
                    return PartOutcome::Failed(CompletionStatus::LocalProtection);
                }
                bytes
            }
        };
        let own = queue_key & 1 << 31 != 0;
        let label = DatagramFields {
            queue_key: if own { part.queue_key } else { queue_key },
            source: part.source,
            immediate,
            solicited: request.solicited,
        };
        let done = datagram::deliver(&self.endpoint, route, Some(label), payload, host);
        if let Err(status) = done {
            self.fail_receive(status, host);
        }
        PartOutcome::Executed
    }

    /// Returns whether the queue pair sends requests and handles responses in its present state.
    /// The result is `true` in the state ready to send, and in the state send queue drained, in
    /// which started requests continue.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        )
    }

    /// Returns whether the queue pair receives packets in the present state: from ready to receive
    /// on, but not in the error state.
    fn may_receive(&self) -> bool {
        !matches!(
            self.endpoint.state,
            State::Reset | State::Init | State::Error
        )
    }
}

/// A send, or a write with immediate data, that the caller transmits directly, without the send
/// queue. Afterwards, [`post_sent`](QueuePair::post_sent) adds the message to the send queue, to
/// await the acknowledgement. The bytes of the message are passed separately.
#[derive(Clone, Copy, Debug)]
pub struct UnqueuedMessage {
    /// Work request ID, which the program has chosen, and which the completion contains.
    pub id: u64,
    /// Immediate data that the message carries, if it has any.
    pub immediate: Option<[u8; 4]>,
    /// Destination memory of a write with immediate data. `None` for a send.
    pub remote: Option<Remote>,
    /// Set if the request generates a completion even if it succeeds.
    pub signaled: bool,
    /// Set if the completion at the peer raises a solicited event.
    pub solicited: bool,
}

/// Urgency of the next transmission of a queue pair: nothing to transmit, an acknowledgement that
/// may be delayed, or a transmission without delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransmitUrgency {
    /// Nothing must be transmitted.
    Nothing,
    /// Only an acknowledgement must be transmitted. The acknowledgement may be delayed to be sent
    /// together with a message of the program.
    Acknowledgement,
    /// A message, a packet or a NAK must be transmitted now.
    Urgent,
}
