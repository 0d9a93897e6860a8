//! The sender's side of messages that are transferred without packets. A part is a range of such a
//! message.

use super::entry::{Entry, Progress};
use super::timeouts::ResponseDeadline;
use super::{Cursor, Failed, Requester};
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    CompletionStatus, Counter, Data, Host, Part, PartOutcome, SendOperation, SendProgress,
    SendRequest, Sequence, Time, UnqueuedMessage, Upcoming,
};

/// Number of consecutive messages that the peer must fail to copy from this process's memory before
/// this side sends the bytes of further messages itself. More attempts would probably fail, too.
/// Failures are counted separately for memory that the peer can map and for other memory, because
/// the peer copies from them in different ways.
const MAX_DECLINED: u32 = 3;

impl Requester {
    /// Starts the next unsent request, unless the request must wait, and returns the position of
    /// the next unsent bytes. Returns [`SendProgress::PacketsOnly`] instead if only packets can be
    /// sent now. Returns [`SendProgress::Idle`] if the send queue is empty, or waits after an RNR
    /// NAK.
    pub(in crate::proto) fn upcoming(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<Result<Upcoming, SendProgress>, Failed> {
        if self.queue.is_empty() || self.again_at.is_some_and(|at| now() < at) {
            return Ok(Err(SendProgress::Idle));
        }
        if self.cursor.entry >= self.queue.len() || self.has_due_packet() {
            return Ok(Err(SendProgress::PacketsOnly));
        }
        // The time of a pause is set when packets are polled.
        self.select(endpoint, host)?;
        Ok(self
            .started(endpoint)
            .map(|(upcoming, _)| upcoming)
            .ok_or(SendProgress::PacketsOnly))
    }

    /// Returns what can be sent next: a part of a message without packets, only packets, or
    /// nothing. On a reliable connection, a part may be sent only while no packet is
    /// unacknowledged: the peer receives in the order of the sequence numbers, and this side does
    /// not know which packets the peer has received.
    pub(in crate::proto) fn next_step(
        &self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) -> SendProgress {
        if self.queue.is_empty() || self.again_at.is_some_and(|at| now() < at) {
            SendProgress::Idle
        } else if endpoint.is_reliable() && self.sent != self.unanswered || self.has_due_packet() {
            SendProgress::PacketsOnly
        } else {
            SendProgress::Transferred
        }
    }

    /// Returns the position of the next unsent bytes of the send queue, and the request to which
    /// the bytes belong. Returns `None` if all requests are sent. Also returns `None` if the next
    /// request has not started: sequence numbers are assigned only then.
    pub(super) fn started(&self, endpoint: &Endpoint) -> Option<(Upcoming, &SendRequest)> {
        let entry = self.queue.get(self.cursor.entry)?;
        let Progress::Started { first, packets } = entry.progress else {
            return None;
        };
        let sequence = first + self.cursor.packet;
        let upcoming = Upcoming {
            first,
            packet: self.cursor.packet,
            packets,
            unacknowledged: self.in_flight(sequence),
            is_oldest: self.cursor.entry == 0,
            is_gap_unannounced: self.skips.is_due(sequence, self.unanswered),
            is_declined: entry.is_declined
                || entry.is_send() && self.is_declined(entry.is_mappable),
            is_mappable: entry.is_mappable,
            is_reliable: endpoint.is_reliable(),
            has_packets_in_flight: !endpoint.is_reliable() && self.flow.has_packets_in_flight(),
            awaits_receipt: !endpoint.is_reliable() && !self.flow.is_settled(),
        };
        Some((upcoming, &entry.request))
    }

    /// Returns the request to which the next packet or part of a message belongs. Returns `None` if
    /// all requests are sent.
    pub(in crate::proto) fn next_request(&self) -> Option<&SendRequest> {
        let entry = self.queue.get(self.cursor.entry)?;
        Some(&entry.request)
    }

    /// Returns the part (range) of the message that begins at the position `upcoming` and has at
    /// most `most` sequence numbers.
    pub(in crate::proto) fn part(
        &self,
        upcoming: &Upcoming,
        most: u32,
        endpoint: &Endpoint,
    ) -> Option<Part<'_>> {
        let request = self.next_request()?;
        let packets = (upcoming.packets - upcoming.packet).min(most);
        let offset = upcoming.packet * endpoint.mtu();
        Some(Part {
            request,
            sequence: upcoming.sequence(),
            packets,
            offset,
            length: (request.length - offset).min(packets * endpoint.mtu()),
            starts: upcoming.packet == 0,
            ends: upcoming.packet + packets == upcoming.packets,
            source: endpoint.number,
            queue_key: endpoint.attributes.queue_key,
        })
    }

    /// Returns whether the window (limit on packets in flight) permits `packets` more sequence
    /// numbers while `unacknowledged` sequence numbers are unacknowledged.
    pub(in crate::proto) fn has_window(&self, unacknowledged: u32, packets: u32) -> bool {
        self.window.has_room(unacknowledged, packets)
    }

    /// Records the outcome of transferring the part of a message that begins at `upcoming` and has
    /// `packets` sequence numbers. Returns what can be sent next: another part, only packets, or
    /// nothing.
    pub(in crate::proto) fn conclude_part(
        &mut self,
        upcoming: &Upcoming,
        packets: u32,
        outcome: PartOutcome,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<SendProgress, Failed> {
        let end = upcoming.sequence() + packets;
        let ends = upcoming.packet + packets == upcoming.packets;
        match outcome {
            // Messages of an unreliable connection are complete once sent (IBTA 9.8.1).
            PartOutcome::Sent if !endpoint.is_reliable() => {
                (self.sent, self.unanswered) = (end, end);
                self.flow.sent_without_packets(end);
                self.pass_answered(packets, ends, endpoint, host);
                Ok(SendProgress::Transferred)
            }
            PartOutcome::Executed | PartOutcome::ExecutedOneSided => {
                if outcome == PartOutcome::ExecutedOneSided {
                    debug_assert!(upcoming.packet == 0 && ends, "a whole message");
                    self.skips.extend(upcoming.first, packets);
                }
                self.set_answered(end);
                self.pass_answered(packets, ends, endpoint, host);
                Ok(SendProgress::Transferred)
            }
            PartOutcome::Sent | PartOutcome::Offered => {
                self.queue[self.cursor.entry].is_offered = outcome == PartOutcome::Offered;
                self.unasked = 0;
                self.cursor.packet += packets;
                if ends {
                    self.cursor = self.after(self.cursor.entry);
                }
                self.set_sent(end, host);
                // No probe is needed: shared memory loses nothing.
                self.set_response_deadline(now, endpoint);
                Ok(SendProgress::Transferred)
            }
            PartOutcome::UsePackets => Ok(SendProgress::PacketsOnly),
            PartOutcome::NotReady { timer } => {
                host.count(Counter::ReceivedRnr, 1);
                self.wait_for_receiver(timer, now(), endpoint, host)?;
                Ok(SendProgress::Idle)
            }
            PartOutcome::Later { delay } => {
                self.pause.request(delay);
                self.pause.begin(now);
                Ok(SendProgress::Idle)
            }
            PartOutcome::Failed(status) => {
                self.queue[self.cursor.entry].progress = Progress::Failed(status);
                self.complete_front(endpoint, host)?;
                Ok(SendProgress::PacketsOnly)
            }
        }
    }

    /// Forbids direct copies of the next message, so that this side must send the message's bytes.
    /// The peer then does not copy the bytes from this process's memory, and this side does not
    /// write them directly to the peer's memory.
    pub(in crate::proto) fn require_sent_bytes(&mut self) {
        if let Some(entry) = self.queue.get_mut(self.cursor.entry) {
            entry.is_declined = true;
        }
    }

    /// Handles a NAK of the oldest message, if only the location of the message's bytes was sent.
    /// The peer could not copy the bytes, so this side sends the message again with its bytes. If
    /// the bytes were sent, returns `false` and does nothing. The caller must then handle the NAK.
    pub(super) fn decline(&mut self) -> bool {
        let oldest = self.queue.front_mut();
        let Some(entry) = oldest.filter(|entry| entry.is_offered && !entry.is_declined) else {
            return false;
        };
        entry.is_declined = true;
        self.declined[usize::from(entry.is_mappable)] += 1;
        self.go_back();
        self.sent_back = true;
        true
    }

    /// Returns whether this side must send the bytes of all further messages from one kind of
    /// memory. The reason is that the peer has failed to copy several such messages in a row. If
    /// `is_mappable` is set, the kind is memory that the peer can map. Otherwise the kind is all
    /// other memory.
    #[inline]
    pub(in crate::proto) fn is_declined(&self, is_mappable: bool) -> bool {
        self.declined[usize::from(is_mappable)] >= MAX_DECLINED
    }

    /// Returns the number of sequence numbers of started requests that count towards the window
    /// (limit on packets in flight). See also [`in_flight`](Self::in_flight).
    #[inline]
    pub(in crate::proto) fn all_on_the_way(&self) -> u32 {
        self.in_flight(self.next)
    }

    /// Returns whether the send queue is idle: all requests have completed, no packet must be sent,
    /// and no receipt (confirmation by the peer of an unreliable service) is missing.
    #[inline]
    pub(in crate::proto) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.sent == self.unanswered
            && self.next == self.unanswered
            && self.again_at.is_none()
            && !self.has_due_packet()
            && self.flow.is_settled()
    }

    /// Returns whether a receipt (confirmation by the peer) for messages of an unreliable
    /// connection is missing. If so, schedules a request for a receipt, to be sent after the next
    /// message that is sent as packets.
    pub(in crate::proto) fn awaits_receipt(&mut self) -> bool {
        let awaits = !self.flow.is_settled();
        if awaits {
            self.flow.request_soon();
        }
        awaits
    }

    /// Advances the send sequence number by `packets`, to account for messages that were executed
    /// directly in the peer's memory and were never queued here.
    #[inline]
    pub(in crate::proto) fn skip(&mut self, packets: u32) {
        debug_assert!(self.is_idle(), "nothing is overtaken");
        self.skips.extend(self.next, packets);
        self.next = self.next + packets;
        self.set_answered(self.next);
    }

    /// Returns whether a message of `packets` sequence numbers can be sent now, before the message
    /// is added to the queue. The result is `true` only if all earlier messages are sent, and if
    /// the window (limit on packets in flight) permits the message.
    #[inline]
    pub(in crate::proto) fn may_post_sent(&self, packets: u32) -> bool {
        self.cursor.entry >= self.queue.len()
            && self.again_at.is_none()
            && !self.has_due_packet()
            && !self.skips.is_due(self.next, self.unanswered)
            && self.window.has_room(self.in_flight(self.next), packets)
    }

    /// Adds a message to the send queue after the caller has sent the message, with the next
    /// sequence number. `size` is the length of the message in bytes and its number of sequence
    /// numbers. `offered` is `None` if the bytes of the message were sent. If only their location
    /// was sent, `offered` is the value of [`Entry::is_mappable`]. Afterwards, the caller must set
    /// the timeout with [`arm`](Self::arm).
    #[inline(always)]
    pub(in crate::proto) fn post_sent(
        &mut self,
        message: &UnqueuedMessage,
        data: Data<'_>,
        size: (u32, u32),
        offered: Option<bool>,
        endpoint: &Endpoint,
    ) {
        let (length, packets) = size;
        debug_assert!(self.may_post_sent(packets), "nothing is overtaken");
        let first = self.next;
        self.queue.push_back(Entry {
            request: SendRequest {
                id: message.id,
                operation: match message.remote {
                    None => SendOperation::Send {
                        immediate: message.immediate,
                        invalidate: None,
                    },
                    Some(remote) => SendOperation::Write {
                        remote,
                        immediate: message.immediate,
                    },
                },
                payload: data.to_payload(),
                length,
                xrc_srq: None,
                signaled: message.signaled,
                solicited: message.solicited,
                fence: false,
            },
            progress: Progress::Started { first, packets },
            is_mappable: offered == Some(true),
            is_offered: offered.is_some(),
            is_declined: false,
        });
        self.cursor = Cursor::at(self.queue.len());
        self.next = self.next + packets;
        self.sent = self.next;
        self.unasked = 0;
        self.await_response(endpoint);
    }

    /// Records that the peer has executed all requests up to the sequence number `sequence`. `now`
    /// returns the present time, or a somewhat later time.
    #[inline]
    pub(in crate::proto) fn acknowledged(
        &mut self,
        sequence: Sequence,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        if self.is_new_response(sequence) {
            self.probe.cancel_measurement();
            self.acknowledge_before(sequence.next(), now, endpoint, host)?;
        }
        Ok(())
    }

    /// Returns whether all packets of the send queue were sent, and no other packet, such as a
    /// retransmission, must be sent.
    #[inline]
    pub(in crate::proto) fn is_silent(&self) -> bool {
        self.cursor.entry >= self.queue.len() && !self.has_due_packet()
    }

    /// Returns whether another packet must be sent before the next packet of the queue. This packet
    /// is a probe (repetition of the oldest unanswered packet), a packet that the peer has reported
    /// as missing, or a receipt request (which asks the peer to confirm received packets).
    #[inline]
    fn has_due_packet(&self) -> bool {
        self.probe.is_due() || self.repairs.next().is_some() || self.flow.has_request()
    }

    /// Records that all sequence numbers before `limit` are answered, and that no packet is in
    /// flight.
    fn set_answered(&mut self, limit: Sequence) {
        self.sent = limit;
        self.unanswered = limit;
        self.retries = 0;
        self.not_ready_retries = 0;
        self.gone_back = false;
        self.timeouts = 0;
        self.extended = false;
        self.again_at = None;
        self.answer_by = ResponseDeadline::Never;
        self.flow.skipped(limit + 0xff_ffff);
    }

    /// Advances the position of the next packet past a part (range) of a message that is already
    /// answered. The part has `packets` sequence numbers. If `ends` is set, the part is the last of
    /// its request, which then completes.
    fn pass_answered(
        &mut self,
        packets: u32,
        ends: bool,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) {
        self.cursor.packet += packets;
        if ends {
            self.complete_first(endpoint, host);
        }
    }

    /// Completes the oldest request of the send queue successfully, and removes it from the queue.
    /// The next request is then sent from its beginning. This next request must not have started.
    fn complete_first(&mut self, endpoint: &Endpoint, host: &mut impl Host) {
        if let Some(entry) = self.queue.front() {
            self.fetches -= usize::from(entry.awaits_data());
            if entry.request.signaled || endpoint.attributes.signal_all {
                host.complete_send(entry.completion(CompletionStatus::Success));
            }
            self.queue.pop_front();
        }
        self.cursor = Cursor::default();
        self.fetches_sent = 0;
    }
}
