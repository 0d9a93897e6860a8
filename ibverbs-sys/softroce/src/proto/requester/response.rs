use super::entry::Progress;
use super::timeouts::ResponseDeadline;
use super::{Failed, Requester};
use crate::proto::endpoint::Endpoint;
use crate::proto::timer::rnr_wait;
use crate::proto::{CompletionStatus, Counter, Host, Payload, Sequence, Time};
use crate::wire::{Nak, Operation, Packet, Syndrome};

impl Requester {
    /// Receives a response of the peer: an acknowledgement, a NAK, or the data of a read or an
    /// atomic.
    pub(in crate::proto) fn receive(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        use Operation as O;
        let sequence = Sequence::new(packet.header.bth.sequence);
        if !self.is_new_response(sequence) {
            return Ok(());
        }
        let syndrome = packet.header.aeth.map(|aeth| aeth.syndrome);
        match (packet.header.bth.opcode.operation, syndrome) {
            (O::Acknowledge, Some(Syndrome::Ack { .. })) => {
                self.acknowledge_before(sequence.next(), || now, endpoint, host)?;
                Ok(())
            }
            (O::Acknowledge, Some(Syndrome::ReceiverNotReady { timer })) => {
                host.count(Counter::ReceivedRnr, 1);
                if self.acknowledge_before(sequence, || now, endpoint, host)? {
                    self.wait_for_receiver(timer, now, endpoint, host)?;
                }
                Ok(())
            }
            (O::Acknowledge, Some(Syndrome::Nak(nak))) => {
                if nak == Nak::SequenceError {
                    host.count(Counter::ReceivedSequenceNak, 1);
                }
                if self.acknowledge_before(sequence, || now, endpoint, host)? {
                    self.handle_nak(nak, endpoint, host)?;
                }
                Ok(())
            }
            (O::AtomicAcknowledge, Some(Syndrome::Ack { .. })) => {
                if self.acknowledge_before(sequence, || now, endpoint, host)? {
                    let original = packet.header.original.unwrap_or(0);
                    self.take_original(original, sequence, now, endpoint, host)?;
                }
                Ok(())
            }
            (
                O::ReadResponseFirst
                | O::ReadResponseMiddle
                | O::ReadResponseLast
                | O::ReadResponseOnly,
                None | Some(Syndrome::Ack { .. }),
            ) => {
                if self.acknowledge_before(sequence, || now, endpoint, host)? {
                    self.take_data(packet, sequence, now, endpoint, host)?;
                }
                Ok(())
            }
            // Combinations of opcode and syndrome that do not exist are ignored.
            _ => Ok(()),
        }
    }

    /// Handles a response that acknowledges all packets before `end`. If the data of a read or an
    /// atomic before `end` has not arrived, this data was lost: requests the data again, and
    /// returns `false` (an implied NAK, IBTA 9.7.5.1.2). Returns `true` otherwise.
    #[inline]
    pub(super) fn acknowledge_before(
        &mut self,
        end: Sequence,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<bool, Failed> {
        // Most queues have no reads and atomics.
        let limit = if self.fetches > 0 {
            self.missing_before(end).unwrap_or(end)
        } else {
            end
        };
        self.advance(limit, now, endpoint, host)?;
        if limit == end {
            return Ok(true);
        }
        host.count(Counter::ImpliedNak, 1);
        // The peer has received the request, but its response was lost.
        self.repairs.clear();
        self.handle_loss(endpoint, host)?;
        Ok(false)
    }

    /// Returns the oldest sequence number before `end` for which data is missing: the data of a
    /// read or an atomic operation has not arrived. Returns `None` if no data before `end` is
    /// missing.
    fn missing_before(&self, end: Sequence) -> Option<Sequence> {
        for entry in &self.queue {
            let first = match entry.progress {
                Progress::Started { first, .. } => first,
                Progress::Done => continue,
                Progress::Waiting | Progress::Failed(_) => return None,
            };
            if first.distance(end) >= 0 {
                return None;
            }
            if entry.awaits_data() {
                let missing = if first.distance(self.unanswered) > 0 {
                    first
                } else {
                    self.unanswered
                };
                return (missing.distance(end) < 0).then_some(missing);
            }
        }
        None
    }

    /// Records that all packets before `limit` are answered, and completes the requests that are
    /// fully answered.
    #[inline]
    fn advance(
        &mut self,
        limit: Sequence,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        let packets = limit.distance(self.unanswered);
        if packets <= 0 {
            return Ok(());
        }
        if limit.distance(self.position()) > 0 {
            self.window.undo_loss();
        }
        self.unanswered = limit;
        if self.repairs.progress(limit) {
            self.window.timeout(self.sent);
        }
        self.window.progress(packets as u32, limit);
        self.retries = 0;
        self.not_ready_retries = 0;
        self.gone_back = false;
        self.timeouts = 0;
        self.is_peer_gone = false;
        self.extended = false;
        self.again_at = None;
        self.complete_front(endpoint, host)?;
        let waiting = self.position().distance(self.unanswered) > 0;
        if !waiting && self.probe.is_idle() {
            self.answer_by = ResponseDeadline::Never;
            return Ok(());
        }
        let now = now();
        self.answer_by = if waiting {
            self.deadline(now, endpoint)
        } else {
            ResponseDeadline::Never
        };
        let timeout = endpoint.attributes.ack_timeout;
        let delivered = self.delivered();
        let was_lost = (self.probe).progress(limit, delivered, waiting, now, timeout);
        if let Some(sample) = self.probe.take_sample() {
            self.window.measured(&sample, now);
        }
        if was_lost && !self.repairs.is_active() {
            // The later packets were lost: the peer would have acknowledged them if it had received
            // them.
            self.window.loss(self.sent);
            self.go_back();
        }
        Ok(())
    }

    /// Handles a gap report: the peer lists the packets that it misses, and keeps later ones. Only
    /// the missing packets are then sent again.
    ///
    /// A report has no effect during a retransmission from the oldest unanswered packet on, or
    /// during a pause after an RNR NAK.
    pub(in crate::proto) fn receive_gaps(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        packet: &Packet<'_>,
    ) {
        if self.again_at.is_some() || self.position() != self.sent {
            return;
        }
        let base = Sequence::new(packet.header.bth.sequence);
        let (unanswered, sent) = (self.unanswered, self.sent);
        if (self.repairs).report(base, packet.payload, unanswered, sent) {
            self.window.timeout(sent);
        }
        self.probe.reported(now, endpoint.attributes.ack_timeout);
    }

    /// Handles a loss: the peer did not receive the oldest unanswered packet, or this side did not
    /// receive the response. Schedules a retransmission and reduces the window (limit on packets in
    /// flight). If no retry is left, the oldest request fails.
    fn handle_loss(&mut self, endpoint: &Endpoint, host: &mut impl Host) -> Result<(), Failed> {
        // A peer sends one NAK per gap. Further NAKs until the gap is filled were in flight, or
        // were duplicated by the network.
        if self.gone_back || self.again_at.is_some() {
            return Ok(());
        }
        self.count_retry(endpoint, host)?;
        if !self.repairs.begin_with(self.unanswered) {
            self.go_back();
        }
        self.timeouts = 0;
        self.window.loss(self.sent);
        self.gone_back = true;
        self.sent_back = true;
        Ok(())
    }

    /// Handles the NAK `nak` of the oldest unanswered packet. After a sequence error, packets are
    /// sent again. Any other code fails the request. An RNR NAK is handled by
    /// [`wait_for_receiver`](Self::wait_for_receiver) instead.
    fn handle_nak(
        &mut self,
        nak: Nak,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        match status_of(nak) {
            Some(status) => Err(Failed(status)),
            None if self.decline() => Ok(()),
            None => self.handle_loss(endpoint, host),
        }
    }

    /// Handles an RNR NAK: the peer has no receive posted for the message of the oldest unanswered
    /// packet. The message is sent again after the time that the RNR timer code `timer` stands for.
    /// If no RNR retry is left, the request fails.
    pub(super) fn wait_for_receiver(
        &mut self,
        timer: u8,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        const WITHOUT_END: u8 = 7;
        if self.again_at.is_some() {
            return Ok(());
        }
        let allowed = endpoint.attributes.rnr_retry;
        if allowed != WITHOUT_END {
            if self.not_ready_retries >= allowed {
                host.count(Counter::RnrRetryExceeded, 1);
                return Err(Failed(CompletionStatus::RnrRetryExceeded));
            }
            self.not_ready_retries += 1;
        }
        // An RNR NAK is a response, so the retry counts start again.
        self.retries = 0;
        self.timeouts = 0;
        self.gone_back = false;
        self.go_back();
        self.sent_back = true;
        self.again_at = Some(now + rnr_wait(timer));
        Ok(())
    }

    /// Handles the read response packet with the number `sequence`: copies its payload to the local
    /// memory of the oldest request, a read. If the oldest request is an atomic write or a flush,
    /// the payload must be empty. A packet that does not fit the request fails the request.
    fn take_data(
        &mut self,
        packet: &Packet<'_>,
        sequence: Sequence,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        let bad = Failed(CompletionStatus::BadResponse);
        let entry = self.queue.front().ok_or(bad)?;
        if entry.awaits_empty() {
            if !packet.header.bth.opcode.is_only() || !packet.payload.is_empty() {
                return Err(bad);
            }
            self.fetched(sequence);
            return self.advance(sequence.next(), || now, endpoint, host);
        }
        if !entry.is_read() {
            return Err(bad);
        }
        let Progress::Started { first, packets } = entry.progress else {
            return Err(bad);
        };
        let Payload::Gathered(list) = &entry.request.payload else {
            return Err(bad);
        };
        let place = sequence.distance(first).max(0) as u32;
        let begin = place * endpoint.mtu();
        let length = (entry.request.length - begin).min(endpoint.mtu());
        let run_ends = place + 1 == packets || (place + 1).is_multiple_of(self.read_batch);
        // The opcode may mean the first or a middle packet; this is not checked, because it depends
        // on the request packet that the response answers.
        let ends = packet.header.bth.opcode.ends_message();
        if ends != run_ends || packet.payload.len() != length as usize {
            return Err(bad);
        }
        if length > 0 {
            host.scatter(list, begin, packet.payload)
                .map_err(|_| Failed(CompletionStatus::LocalProtection))?;
        }
        if run_ends {
            self.fetched(sequence);
        }
        self.advance(sequence.next(), || now, endpoint, host)
    }

    /// Stores the result `original` of an atomic operation in the local memory of its request. The
    /// result is the previous value in the peer's memory. `sequence` is the sequence number of the
    /// request.
    fn take_original(
        &mut self,
        original: u64,
        sequence: Sequence,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        let bad = Failed(CompletionStatus::BadResponse);
        let entry = self.queue.front().ok_or(bad)?;
        let Payload::Gathered(list) = &entry.request.payload else {
            return Err(bad);
        };
        if !entry.is_atomic() {
            return Err(bad);
        }
        host.scatter(list, 0, &original.to_ne_bytes())
            .map_err(|_| Failed(CompletionStatus::LocalProtection))?;
        self.fetched(sequence);
        self.advance(sequence.next(), || now, endpoint, host)
    }

    /// Records that the response to a read request packet or to an atomic operation has arrived
    /// completely. `sequence` is the number of its last packet. During a retransmission, has no
    /// effect if the request has not been sent again yet.
    fn fetched(&mut self, sequence: Sequence) {
        if self.position().distance(sequence) > 0 {
            self.fetches_sent = self.fetches_sent.saturating_sub(1);
        }
    }
}

/// Returns the status with which a NAK completes a request, or `None` for a sequence error, which
/// fails no request.
fn status_of(nak: Nak) -> Option<CompletionStatus> {
    match nak {
        Nak::SequenceError => None,
        Nak::InvalidRequest | Nak::InvalidRdRequest => Some(CompletionStatus::RemoteInvalidRequest),
        Nak::RemoteAccessError => Some(CompletionStatus::RemoteAccess),
        Nak::RemoteOperationalError => Some(CompletionStatus::RemoteOperation),
    }
}
