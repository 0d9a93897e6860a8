//! The responder: executes requests in the order of their sequence numbers, and answers them.
//!
//! Responses are flags and cursors, not a queue. An acknowledgement always covers all executed
//! requests, so a single acknowledgement answers any number of packets. Read responses are built
//! when they are sent, from the reads that are kept anyway for retransmission.
//!
//! Sends and writes that arrive after a gap are [kept](kept::KeptPackets) until the missing packets
//! arrive, and are executed then. The peer cannot distinguish this from a network that delivers the
//! packets in another order, so every rule of the specification holds. A gap report
//! ([`Opcode::GAPS`]) tells a peer that knows this opcode which packets are missing. Any other peer
//! drops the report, and sends all packets from the gap on again.
//!
//! By sending requests, a peer can make this side allocate memory only for kept packets, and for
//! the reads and atomics that are kept for retransmission. The attributes of the queue pair limit
//! the number of both.

mod kept;
mod message;
mod part;
mod resources;
mod unreliable;

#[cfg(test)]
mod tests;

use std::time::Duration;

use kept::KeptPackets;
use message::{MAX_ANNOUNCED, Message, Refusal};
use resources::{Fetch, Resource, Resources};

use super::endpoint::Endpoint;
use super::requester::earlier;
use super::timer::{Pacer, Pause};
use super::{
    AccessFlags, CompletionStatus, Counter, Event, Flush, Host, Remote, RemoteFault, Sequence,
    Time, Withdrawal,
};
use crate::wire::{Aeth, Header, Nak, Opcode, Operation, Packet, Run, Syndrome};

/// Average interval between the packets of a read response that is longer than the window (limit on
/// packets in flight). Without pauses, these packets could overflow the socket buffer of the
/// requester.
const RESPONSE_INTERVAL: Duration = Duration::from_micros(1);

#[derive(Debug, Default)]
pub(super) struct Responder {
    /// Sequence number of the next new packet. Packets with lower numbers are repetitions.
    expected: Sequence,
    /// Number of executed messages (MSN), modulo 2^24.
    message_sequence: u32,
    message: Message,
    /// Set while the remaining packets of an unreliable message are dropped, because a packet of
    /// the message was lost.
    dropping_message: bool,
    resources: Resources,
    /// Set if an acknowledgement must be sent.
    acknowledgement_pending: bool,
    /// Set if the newest message that the pending acknowledgement covers has completed a receive.
    has_completed_receive: bool,
    /// Syndrome of a NAK that must be sent, because the expected packet was lost or cannot be
    /// accepted now.
    pending_nak: Option<Syndrome>,
    /// Set after a NAK for the expected packet was scheduled. Only one NAK is sent until the packet
    /// arrives (IBTA 9.7.4.1.2, 9.7.5.2.8).
    nak_scheduled: bool,
    /// Set after the expected packet has arrived and cannot be accepted yet. The peer must send all
    /// later packets again too, so they are not kept.
    is_refused: bool,
    kept: KeptPackets,
    /// Set if a gap report must be sent.
    report_pending: bool,
    /// Key that the expected packet invalidates and that other processes still use. The packet is
    /// not stored: when no process uses the key any more, a NAK requests the packet again. Later
    /// packets are dropped until then.
    key_in_use: Option<u32>,
    pause: Pause,
    final_nak: Option<FinalNak>,
    /// NAK that must be sent after the connection has ended, and its sequence number.
    closing_nak: Option<(Nak, Sequence)>,
    pacer: Pacer,
}

/// NAK that refuses an invalid request and ends the connection. Responses to earlier requests are
/// sent before this NAK, so that the peer can identify the invalid request. A completion or an
/// event reports the error to this side's program.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalNak {
    nak: Nak,
    sequence: Sequence,
    /// Status of the receive that the message has taken, if there is one.
    status: CompletionStatus,
    /// Event to raise if no completion reports the error.
    event: Option<Event>,
}

impl Responder {
    /// Creates a responder that expects the packet with the number `sequence` first.
    pub(super) fn new(sequence: Sequence) -> Self {
        Self {
            expected: sequence,
            ..Self::default()
        }
    }

    pub(super) fn expected(&self) -> Sequence {
        self.expected
    }

    /// Handles a skip packet: the `length` sequence numbers before `end` belong to requests that
    /// the peer has executed directly in this side's memory. No packets arrive with these numbers,
    /// so the packet `end` is expected next.
    pub(super) fn skip_to(&mut self, end: Sequence, length: u64) {
        /// Maximum increase of the expected sequence number by a skip packet. Within this limit,
        /// the number after the skipped numbers is certainly later than the expected number,
        /// although sequence numbers wrap around. If the expected number is the first skipped
        /// number, the order is clear, and the limit does not apply.
        const MAX_SKIP: u64 = 1 << 22;
        let missing = end.distance(self.expected);
        let all = Sequence::new(end.value().wrapping_sub(length as u32)) == self.expected;
        let some = missing > 0 && missing as u64 <= length.min(MAX_SKIP);
        let is_idle = self.final_nak.is_none() && !self.message.is_under_way();
        if is_idle && (all && length > 0 || some) {
            self.expected = end;
            self.discard_kept();
            self.expected_arrived();
        }
    }

    /// Receives a request packet of a reliable service. Executes the request if its sequence number
    /// is the expected number. Answers a repeated request again. Requests missing packets after a
    /// gap.
    pub(super) fn receive(
        &mut self,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) {
        if self.final_nak.is_some() {
            return;
        }
        let sequence = Sequence::new(packet.header.bth.sequence);
        let distance = sequence.distance(self.expected);
        if distance > 0 {
            self.keep(endpoint, packet);
            self.handle_gap(host);
            return;
        }
        if distance < 0 {
            host.count(Counter::DuplicateRequest, 1);
            self.report_pending |= packet.header.bth.acknowledge && !self.kept.is_empty();
            self.repeat(sequence, endpoint, packet);
            return;
        }
        self.accept(sequence, endpoint, packet, host);
        if !self.kept.is_empty() {
            self.accept_kept(endpoint, host);
        }
    }

    /// Executes the request of the packet with the expected sequence number `sequence`. If the
    /// request cannot be executed, [determines the response](Self::refuse) that refuses the
    /// request.
    fn accept(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) {
        self.expected_arrived();
        let opcode = packet.header.bth.opcode;
        // An XRC request names the shared receive queue whose protection domain applies to its keys
        // (IBTA annex A14), whether the request takes a receive or not.
        let named = packet.header.xrc_srq;
        let done = if named.is_some_and(|number| !host.has_xrc_srq(number)) {
            Err(Refusal::Invalid)
        } else if opcode.is_send() || opcode.is_write() {
            self.message.accept(endpoint, packet, host).map(|ends| {
                self.message_sequence = self.message_sequence.wrapping_add(u32::from(ends));
                self.expected = sequence.next();
                self.acknowledgement_pending |= packet.header.bth.acknowledge;
                let receives = opcode.is_send() || packet.header.immediate.is_some();
                self.has_completed_receive = ends && receives;
            })
        } else if self.message.is_under_way() {
            Err(Refusal::Invalid)
        } else if opcode.is_atomic() {
            self.atomic(sequence, endpoint, packet, host)
        } else if opcode.is_atomic_write() {
            self.atomic_write(sequence, endpoint, packet, host)
        } else if opcode.is_flush() {
            self.flush_memory(sequence, endpoint, packet, host)
        } else {
            self.read(sequence, endpoint, packet, host)
        };
        match done {
            // The requester may repeat a packet that waited for a key in use before this side has
            // sent the NAK that requests the packet. That NAK would now be wrong.
            Ok(()) => self.key_in_use = None,
            Err(refusal) => self.refuse(refusal, endpoint, host),
        }
    }

    /// Receives all packets of `run`, which have equal lengths and consecutive numbers, in one
    /// step. The packets must be the next expected ones, and neither the first nor the last of
    /// their message. Otherwise returns `false` and does nothing.
    pub(super) fn receive_run(
        &mut self,
        endpoint: &Endpoint,
        run: &Run<'_>,
        host: &mut impl Host,
    ) -> bool {
        let sequence = Sequence::new(run.first().header.bth.sequence);
        let is_next = self.final_nak.is_none() && sequence == self.expected;
        if !is_next || !self.message.accept_run(endpoint, run, host) {
            return false;
        }
        self.expected_arrived();
        self.expected = sequence + run.count() as u32;
        self.acknowledgement_pending |= run.acknowledge();
        self.has_completed_receive = false;
        if !self.kept.is_empty() {
            self.accept_kept(endpoint, host);
        }
        true
    }

    /// Records that the packet with the expected sequence number has arrived. A NAK for this packet
    /// is not needed any more, and the next gap in the sequence numbers causes a new NAK.
    #[inline]
    fn expected_arrived(&mut self) {
        self.nak_scheduled = false;
        self.pending_nak = None;
        self.is_refused = false;
    }

    /// Counts a packet that arrived after a gap in the sequence numbers, and schedules a NAK that
    /// requests the missing packets. The NAK is scheduled only for the first packet after the gap.
    fn handle_gap(&mut self, host: &mut impl Host) {
        host.count(Counter::OutOfSequenceRequest, 1);
        self.request_expected();
    }

    /// Schedules a NAK that requests the expected packet from the peer, unless a NAK was already
    /// scheduled for this packet.
    fn request_expected(&mut self) {
        if !self.nak_scheduled {
            self.nak_scheduled = true;
            self.pending_nak = Some(Syndrome::Nak(Nak::SequenceError));
        }
    }

    /// Keeps a send or write packet that arrived after a gap in the sequence numbers. The packet
    /// must be within the limit `max_kept` of the attributes. Packets of other requests are not
    /// kept. The peer sends those packets again.
    fn keep(&mut self, endpoint: &Endpoint, packet: &Packet<'_>) {
        let bth = &packet.header.bth;
        let distance = Sequence::new(bth.sequence).distance(self.expected);
        let is_kind = bth.opcode.is_send() || bth.opcode.is_write();
        // A packet above the path MTU is refused when it arrives again in order.
        let is_long = packet.payload.len() > endpoint.mtu() as usize;
        let is_far = distance as u32 >= endpoint.attributes.max_kept;
        if !is_kind || is_long || is_far || self.is_refused {
            return;
        }
        let opens_gap = self.kept.insert(self.expected, packet);
        self.report_pending |= opens_gap || bth.acknowledge;
    }

    /// Discards the packets that were kept because they arrived after a gap in the sequence
    /// numbers. The peer sends them again.
    fn discard_kept(&mut self) {
        self.kept.clear();
        self.report_pending = false;
    }

    /// Executes the kept packets that have become the next expected packets, as if they arrived
    /// now. If other kept packets are left, a packet before them is missing. A NAK that requests
    /// the missing packet is then scheduled.
    fn accept_kept(&mut self, endpoint: &Endpoint, host: &mut impl Host) {
        while self.final_nak.is_none() && !self.is_refused {
            let Some(packet) = self.kept.take(self.expected) else {
                break;
            };
            self.accept(self.expected, endpoint, &packet.as_packet(), host);
        }
        self.report_pending = !self.kept.is_empty();
        if self.report_pending {
            self.request_expected();
        }
    }

    fn read(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let attributes = &endpoint.attributes;
        let reth = packet.header.reth.ok_or(Refusal::Invalid)?;
        let packets = endpoint.packets(reth.length);
        let capacity = usize::from(attributes.max_accepted);
        // A response with more numbers than half of the sequence space would be ambiguous.
        if !attributes.access.contains(AccessFlags::REMOTE_READ)
            || reth.length > MAX_ANNOUNCED
            || packets >= 1 << 23
            || !self.resources.has_room(capacity)
        {
            return Err(Refusal::Invalid);
        }
        host.check_remote(
            reth.key,
            reth.address,
            reth.length,
            AccessFlags::REMOTE_READ,
        )?;
        self.message_sequence = self.message_sequence.wrapping_add(1);
        let remote = Remote {
            address: reth.address,
            key: reth.key,
        };
        let fetch = Fetch::Read {
            remote,
            length: reth.length,
            packets,
        };
        let resource = Resource::new(sequence, fetch, self.message_sequence);
        self.resources.push(resource, capacity);
        self.expected = sequence + packets;
        Ok(())
    }

    fn atomic(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let attributes = &endpoint.attributes;
        let request = packet.header.atomic.ok_or(Refusal::Invalid)?;
        let capacity = usize::from(attributes.max_accepted);
        if !attributes.access.contains(AccessFlags::REMOTE_ATOMIC)
            || !request.address.is_multiple_of(8)
            || !self.resources.has_room(capacity)
        {
            return Err(Refusal::Invalid);
        }
        let original = if packet.header.bth.opcode.operation == Operation::CompareSwap {
            host.compare_swap(
                request.key,
                request.address,
                request.compare,
                request.swap_or_add,
            )?
        } else {
            host.fetch_add(request.key, request.address, request.swap_or_add)?
        };
        self.message_sequence = self.message_sequence.wrapping_add(1);
        let fetch = Fetch::Atomic { original };
        let resource = Resource::new(sequence, fetch, self.message_sequence);
        self.resources.push(resource, capacity);
        self.expected = sequence.next();
        Ok(())
    }

    /// Executes an atomic write (IBTA annex A19), and schedules its response. Fails, and writes
    /// nothing, if the request is invalid or if the peer may not write to the address.
    fn atomic_write(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let attributes = &endpoint.attributes;
        let reth = packet.header.reth.ok_or(Refusal::Invalid)?;
        let bytes: [u8; 8] = packet.payload.try_into().map_err(|_| Refusal::Invalid)?;
        if !attributes.access.contains(AccessFlags::REMOTE_WRITE)
            || reth.length as usize != bytes.len()
            || !reth.address.is_multiple_of(8)
            || !self
                .resources
                .has_room(usize::from(attributes.max_accepted))
        {
            return Err(Refusal::Invalid);
        }
        host.write_word(reth.key, reth.address, bytes)?;
        self.answer_empty(sequence, endpoint);
        Ok(())
    }

    /// Executes a flush (IBTA annex A19) after checking the rights of the peer: makes the peer's
    /// earlier writes visible to this side's program. Schedules the response, which has no data.
    fn flush_memory(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let attributes = &endpoint.attributes;
        let feth = packet.header.feth.ok_or(Refusal::Invalid)?;
        let reth = packet.header.reth.ok_or(Refusal::Invalid)?;
        let rights = Flush::rights(feth.placement).ok_or(Refusal::Invalid)?;
        let range = match feth.level {
            Flush::RANGE => Some((reth.address, reth.length)),
            Flush::REGION => None,
            _ => return Err(Refusal::Invalid),
        };
        if !attributes.access.contains(rights)
            || reth.length > MAX_ANNOUNCED
            || !self
                .resources
                .has_room(usize::from(attributes.max_accepted))
        {
            return Err(Refusal::Invalid);
        }
        host.flush(reth.key, range, rights)?;
        self.answer_empty(sequence, endpoint);
        Ok(())
    }

    /// Schedules the response to an executed atomic write or flush. The response has no data.
    /// `sequence` is the number of the request's packet. The packet after this packet is expected
    /// next.
    fn answer_empty(&mut self, sequence: Sequence, endpoint: &Endpoint) {
        self.message_sequence = self.message_sequence.wrapping_add(1);
        let resource = Resource::new(sequence, Fetch::Empty, self.message_sequence);
        let capacity = usize::from(endpoint.attributes.max_accepted);
        self.resources.push(resource, capacity);
        self.expected = sequence.next();
    }

    /// Responds again to a repeated request (IBTA 9.7.4.1.2, 9.7.5.1.2). Only a read is executed
    /// again, because a read changes nothing. The responses are:
    /// - send or write: an acknowledgement;
    /// - read: the data;
    /// - atomic operation: the stored result;
    /// - atomic write or flush: the empty response.
    ///
    /// A read, atomic operation, atomic write or flush that is no longer stored is ignored.
    fn repeat(&mut self, sequence: Sequence, endpoint: &Endpoint, packet: &Packet<'_>) {
        let opcode = packet.header.bth.opcode;
        if opcode.is_send() || opcode.is_write() {
            self.acknowledgement_pending = true;
            self.has_completed_receive = false;
            return;
        }
        let Some(resource) = self.resources.find(sequence) else {
            return;
        };
        match resource.fetch {
            Fetch::Atomic { .. } if opcode.is_atomic() => self.resources.repeat(sequence, 1),
            Fetch::Empty if opcode.is_atomic_write() || opcode.is_flush() => {
                self.resources.repeat(sequence, 1);
            }
            Fetch::Read { remote, length, .. } if opcode.operation == Operation::ReadRequest => {
                let Some(reth) = packet.header.reth else {
                    return;
                };
                let skipped = sequence.distance(resource.first).max(0) as u32 * endpoint.mtu();
                // The request must cover the rest of the read, or whole packets of it, so that the
                // response packets are the same.
                let rest = length.saturating_sub(skipped);
                let whole = reth.length < rest && reth.length.is_multiple_of(endpoint.mtu());
                let within = reth.key == remote.key
                    && reth.address == remote.address.wrapping_add(u64::from(skipped))
                    && (reth.length == rest || whole && reth.length > 0);
                if within {
                    let packets = endpoint.packets(reth.length);
                    self.resources.repeat(sequence, packets);
                }
            }
            _ => {}
        }
    }

    /// Determines the response to an expected packet that was not accepted because of `refusal`.
    /// - No receive is posted: an RNR NAK (receiver not ready), after which the peer tries again.
    /// - The packet invalidates a memory key that other processes still use: later, a NAK that
    ///   requests the packet again.
    /// - Any other reason: a NAK that ends the connection.
    fn refuse(&mut self, refusal: Refusal, endpoint: &Endpoint, host: &mut impl Host) {
        let (nak, status, event) = match refusal {
            Refusal::NotReady => {
                host.count(Counter::SentRnr, 1);
                self.wait_for_repetition();
                self.pending_nak = Some(Syndrome::ReceiverNotReady {
                    timer: endpoint.attributes.min_rnr_timer,
                });
                return;
            }
            Refusal::Later { key, delay } => {
                self.wait_for_repetition();
                self.key_in_use = Some(key);
                self.pause.request(delay);
                return;
            }
            Refusal::Invalid => {
                host.count(Counter::RemoteInvalidRequests, 1);
                let status = CompletionStatus::RemoteInvalidRequest;
                (Nak::InvalidRequest, status, Some(Event::InvalidRequest))
            }
            Refusal::Access => {
                host.count(Counter::RemoteAccessErrors, 1);
                let status = CompletionStatus::RemoteAccess;
                (Nak::RemoteAccessError, status, Some(Event::AccessViolation))
            }
            // The completion of the receive reports this error (IBTA 9.9.3, class C).
            Refusal::Receive(status @ CompletionStatus::LocalLength) => {
                (Nak::InvalidRequest, status, None)
            }
            Refusal::Receive(status) => (Nak::RemoteOperationalError, status, None),
        };
        self.final_nak = Some(FinalNak {
            nak,
            sequence: self.expected,
            status,
            event,
        });
    }

    /// Records that the expected packet was not accepted. The peer must send this packet and all
    /// later packets again, so the kept packets are discarded.
    fn wait_for_repetition(&mut self) {
        self.nak_scheduled = true;
        self.is_refused = true;
        self.discard_kept();
    }

    /// Returns whether an acknowledgement of received requests must be sent to the peer.
    pub(super) fn must_acknowledge(&self) -> bool {
        self.acknowledgement_pending
    }

    /// Returns whether the pending acknowledgement may be delayed. The result is `true` if nothing
    /// else must be sent, and a receive of the program has completed. The program may soon send a
    /// message in response, and the acknowledgement is then sent together with that message.
    pub(super) fn may_delay(&self) -> bool {
        self.acknowledgement_pending && self.has_completed_receive && self.has_no_packet()
    }

    /// Returns the NAK that ends the connection because of an invalid request. Returns `None` if no
    /// request was invalid. Also returns `None` while responses to earlier requests must still be
    /// sent.
    #[inline]
    pub(super) fn due_final_nak(&self) -> Option<FinalNak> {
        self.final_nak.filter(|_| self.resources.is_idle())
    }

    /// Ends the connection because of an invalid request. `end` describes the error: the NAK, which
    /// is the last response; the status with which the receive of the current message completes;
    /// and an optional event, which is raised. All other responses and received packets are
    /// discarded.
    pub(super) fn finish(&mut self, end: FinalNak, host: &mut impl Host) {
        self.publish_held(host);
        self.message.abort(end.status, host);
        if let Some(event) = end.event {
            host.raise(event);
        }
        *self = Self {
            closing_nak: Some((end.nak, end.sequence)),
            message_sequence: self.message_sequence,
            ..Self::new(self.expected)
        };
    }

    /// Completes the receive of the message in progress with the status "flushed". Discards
    /// received packets and unsent responses, except the NAK that has ended the connection.
    pub(super) fn flush(&mut self, host: &mut impl Host) {
        self.publish_held(host);
        self.message.abort(CompletionStatus::Flushed, host);
        *self = Self {
            closing_nak: self.closing_nak,
            message_sequence: self.message_sequence,
            ..Self::new(self.expected)
        };
    }

    /// Appends the next response packet to `out`. Returns whether a packet was appended. Responses
    /// are sent in the order of their sequence numbers: if a response arrives before an earlier
    /// one, the peer considers the earlier one lost.
    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.resources.is_idle() {
            return self.transmit_response(now, endpoint, host, out);
        }
        self.request_held(now, endpoint, host);
        let (syndrome, sequence) = if self.final_nak.is_some() {
            return false;
        } else if self.take_report() {
            // The report precedes the NAK, so that the peer knows the missing packets when it
            // handles the NAK.
            self.write_report(endpoint, out);
            return true;
        } else if let Some(syndrome) = self.pending_nak.take() {
            (syndrome, self.expected)
        } else if self.acknowledgement_pending {
            (Syndrome::Ack { credits: 31 }, self.acknowledged())
        } else {
            return false;
        };
        // A NAK also acknowledges all earlier packets.
        self.acknowledgement_pending = false;
        self.write_acknowledgement(syndrome, sequence, endpoint, out);
        true
    }

    /// Checks again whether other processes use the memory key that the expected packet
    /// invalidates. The packet was not accepted before because of such a use. If the use has ended,
    /// a NAK requests the packet again. If the use does not end in time, a NAK ends the connection.
    fn request_held(&mut self, now: Time, endpoint: &Endpoint, host: &mut impl Host) {
        let Some(key) = self.key_in_use else {
            return;
        };
        match host.withdraw(key) {
            Withdrawal::Complete => {
                self.key_in_use = None;
                self.pending_nak = Some(Syndrome::Nak(Nak::SequenceError));
            }
            Withdrawal::Pending { delay } => {
                self.pause.request(delay);
                self.pause.begin(|| now);
            }
            Withdrawal::Refused => {
                self.key_in_use = None;
                self.refuse(Refusal::Access, endpoint, host);
            }
        }
    }

    /// Permits other processes to use the memory key in [`key_in_use`](Self::key_in_use) again. The
    /// key was withdrawn from other processes because a received packet invalidates the key. Called
    /// when that packet will not be accepted.
    pub(super) fn publish_held(&self, host: &impl Host) {
        if let Some(key) = self.key_in_use {
            host.restore_window(key);
        }
    }

    /// Returns the sequence number for an acknowledgement of the executed requests. Leaves out
    /// reads and atomics at the end of these requests: only its own response acknowledges such a
    /// request.
    ///
    /// The responses to these reads and atomics are perhaps lost. If an acknowledgement contained
    /// their numbers, a peer that follows IBTA 9.7.5.1.2 would detect the loss. But Linux's
    /// Soft-RoCE would complete the request without its result.
    #[inline]
    fn acknowledged(&self) -> Sequence {
        let newest = self.expected + 0xff_ffff;
        self.resources.before(newest, self.message_sequence)
    }

    fn write_acknowledgement(
        &self,
        syndrome: Syndrome,
        sequence: Sequence,
        endpoint: &Endpoint,
        out: &mut Vec<u8>,
    ) {
        let mut header = endpoint.header(Operation::Acknowledge, sequence);
        header.aeth = Some(aeth(syndrome, self.message_sequence));
        header.emit(out);
    }

    /// Returns whether a gap report must be sent now, and records the report as sent. A gap report
    /// lists the packets that have arrived after a missing packet. If the result is `true`, the
    /// caller must send the report.
    fn take_report(&mut self) -> bool {
        // Messages without packets may have replaced kept packets.
        self.kept.discard_before(self.expected);
        std::mem::take(&mut self.report_pending) && !self.kept.is_empty()
    }

    /// Appends a gap report to `out`, which tells the peer which packets are missing. The report
    /// has the sequence number of the expected packet, and a bit for each packet from the expected
    /// packet on. A bit is set if this side has received the packet, and keeps the packet until the
    /// missing packets arrive.
    fn write_report(&self, endpoint: &Endpoint, out: &mut Vec<u8>) {
        let mut header = endpoint.header(Operation::ReadResponseOnly, self.expected);
        header.bth.opcode = Opcode::GAPS;
        header.aeth = Some(aeth(Syndrome::Ack { credits: 31 }, self.message_sequence));
        header.emit(out);
        self.kept
            .write_bits(self.expected, endpoint.attributes.path_mtu.bytes(), out);
    }

    /// Appends the NAK that has ended the connection to `out`, unless this NAK was sent before.
    /// Called in the error state. Returns whether the NAK was appended.
    pub(super) fn transmit_final_nak(&mut self, endpoint: &Endpoint, out: &mut Vec<u8>) -> bool {
        let Some((nak, sequence)) = self.closing_nak.take() else {
            return false;
        };
        self.write_acknowledgement(Syndrome::Nak(nak), sequence, endpoint, out);
        true
    }

    fn transmit_response(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> bool {
        use Operation as O;
        let Some((resource, answer)) = self.resources.next() else {
            return false;
        };
        let window = endpoint.attributes.window;
        // A requester of this crate never requests so much in one request.
        if answer.group_length > window && !self.pacer.take(now, window / 2, RESPONSE_INTERVAL) {
            return false;
        }
        let sequence = resource.first + answer.packet;
        let aeth = aeth(Syndrome::Ack { credits: 31 }, resource.message_sequence);
        let (remote, length) = match resource.fetch {
            Fetch::Atomic { original } => {
                let mut header = endpoint.header(O::AtomicAcknowledge, sequence);
                header.aeth = Some(aeth);
                header.original = Some(original);
                header.emit(out);
                self.answered(sequence);
                return true;
            }
            Fetch::Empty => {
                let mut header = endpoint.header(O::ReadResponseOnly, sequence);
                header.aeth = Some(aeth);
                header.emit(out);
                self.answered(sequence);
                return true;
            }
            Fetch::Read { remote, length, .. } => (remote, length),
        };
        let operation = match (answer.first, answer.last) {
            (true, true) => O::ReadResponseOnly,
            (true, false) => O::ReadResponseFirst,
            (false, false) => O::ReadResponseMiddle,
            (false, true) => O::ReadResponseLast,
        };
        let mut header = endpoint.header(operation, sequence);
        header.aeth = header.bth.opcode.has_aeth().then_some(aeth);
        let begin = answer.packet * endpoint.mtu();
        let length = (length - begin).min(endpoint.mtu());
        let before = out.len();
        match write_data(header, remote, begin, length as usize, host, out) {
            Ok(()) => {
                self.answered(sequence);
                true
            }
            Err(fault) => {
                out.truncate(before);
                if answer.is_repeat {
                    // The request may have been in flight for long, and its memory may have been
                    // deregistered. A peer that has the data ignores this NAK; a peer that lacks
                    // the data learns the reason.
                    self.resources.cancel_response();
                    let nak = Syndrome::Nak(Nak::RemoteAccessError);
                    self.write_acknowledgement(nak, sequence, endpoint, out);
                    return true;
                }
                // The memory was deregistered after the request was accepted.
                self.resources.clear();
                self.refuse(fault.into(), endpoint, host);
                if let Some(end) = &mut self.final_nak {
                    end.sequence = sequence;
                }
                false
            }
        }
    }

    /// Records that the next packet of a response, with the sequence number `sequence`, was sent.
    /// If the packet answers the newest request, no acknowledgement is needed any more.
    fn answered(&mut self, sequence: Sequence) {
        self.resources.advance();
        // A response to the newest executed request acknowledges all earlier ones.
        self.acknowledgement_pending &= sequence.next() != self.expected;
    }

    /// Returns the time at which the responder must continue: to send the next packet of a long
    /// response, or to check again whether other processes use a memory key that a request
    /// invalidates. Returns `None` if the responder does not wait for a time.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let response = self.pacer.resume_at().filter(|_| !self.resources.is_idle());
        earlier(response, self.pause.end())
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.pause.handle_timeout(now);
    }
}

fn aeth(syndrome: Syndrome, message_sequence: u32) -> Aeth {
    Aeth {
        syndrome,
        message_sequence: message_sequence & 0xff_ffff,
    }
}

/// Appends a read response packet to `out`: the header, and `length` bytes of the memory `remote`,
/// beginning with its byte `begin`.
fn write_data(
    mut header: Header,
    remote: Remote,
    begin: u32,
    length: usize,
    host: &impl Host,
    out: &mut Vec<u8>,
) -> Result<(), RemoteFault> {
    header.bth.pad = Header::pad_for(length);
    header.emit(out);
    let start = out.len();
    if length > 0 {
        out.resize(start + length, 0);
        let address = remote.address.checked_add(u64::from(begin));
        let address = address.ok_or(RemoteFault::Access)?;
        host.read_remote(remote.key, address, &mut out[start..])?;
    }
    out.resize(start + length + usize::from(header.bth.pad), 0);
    Ok(())
}
