//! The requester: keeps the send queue, decides which packets to send, and handles responses and
//! timeouts.
//!
//! A request gets its sequence numbers when its first packet is sent. The cursor marks the packet
//! that is sent next. For a retransmission, the cursor is set back to the oldest unanswered packet.
//! Packets are built from the request each time, so sent packets are not kept. A peer that keeps
//! packets after a gap reports the missing packets, and only the missing packets are sent again
//! (see [`Repairs`]).
//!
//! A read is split into read requests with several response packets each (runs, see
//! `Window::read_batch`). So the window limits the response data in flight, and after a loss only
//! one run is requested again. Runs never cross multiples of their length, so that a responder
//! recognises a repeated run as a range of an earlier request.

mod congestion;
mod entry;
mod flow;
mod packet;
mod part;
mod pipe;
mod probe;
mod repairs;
mod response;
mod run;
mod skips;
mod timeouts;
mod window;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use entry::{Entry, Progress};
use flow::Flow;
use packet::PacketPosition;
use probe::Probe;
use repairs::Repairs;
use skips::Skips;
pub(super) use skips::skipped;
use timeouts::ResponseDeadline;
use window::Window;

use super::endpoint::Endpoint;
use super::timer::Pause;
use super::{
    Attributes, CompletionStatus, Counter, Host, Path, SendOperation, SendRequest, Sequence, State,
    Time,
};

/// Minimum number of unacknowledged packets at which a small message is delayed until the next
/// acknowledgement arrives. The message is then sent together with other messages.
const MIN_UNACKNOWLEDGED: u32 = 16;

/// Limits for delayed small messages, which are sent together: the maximum number of messages, and
/// their maximum total length in bytes. Each message has a single packet. The kernel does not send
/// more packets or bytes at a time.
const MAX_WAITING: (u32, u32) = (64, 64 << 10);

/// Error: the oldest request of the send queue has failed. Contains the status of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed(pub(super) CompletionStatus);

#[derive(Debug)]
pub(super) struct Requester {
    queue: VecDeque<Entry>,
    cursor: Cursor,
    /// First sequence number of the next request that is started.
    next: Sequence,
    /// Oldest sequence number to which the peer has not responded.
    unanswered: Sequence,
    /// Sequence number after the highest one that was sent.
    sent: Sequence,
    window: Window,
    read_batch: u32,
    /// Number of reads and atomics that have started and not completed.
    fetches: usize,
    /// Number of read request packets and atomics that were sent and whose data has not arrived.
    fetches_sent: u32,
    /// Number of packets since the last packet that requested an acknowledgement.
    unasked: u32,
    retries: u8,
    /// Number of consecutive timeouts without a response of the peer.
    timeouts: u8,
    /// Set if the peer is known not to exist any more, so that timeouts are not extended.
    is_peer_gone: bool,
    not_ready_retries: u8,
    /// Set after a NAK has moved the cursor back to the oldest unanswered packet. Further NAKs for
    /// that packet are ignored.
    gone_back: bool,
    /// Set if a response of the peer caused the current retransmission, and no retransmitted packet
    /// has timed out.
    sent_back: bool,
    answer_by: ResponseDeadline,
    /// Set if the present timeout was already extended because this side noticed its expiry late.
    extended: bool,
    probe: Probe,
    repairs: Repairs,
    /// Time before which nothing is sent, because the peer has sent an RNR NAK.
    again_at: Option<Time>,
    pause: Pause,
    skips: Skips,
    /// Number of consecutive messages whose bytes the peer could not copy from this process's
    /// memory: first for memory that the peer can only copy by a system call, second for memory
    /// that the peer can map.
    declined: [u32; 2],
    /// Flow control for the packets of an unreliable service.
    flow: Flow,
}

/// Position of the packet that is sent next: a request of the queue, and a packet of this request.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Index of the packet's request in the queue.
    entry: usize,
    /// Index of the packet within the request.
    packet: u32,
}

impl Requester {
    /// Creates a requester, the sending half of a queue pair. The first packet gets the sequence
    /// number `sequence`.
    pub(super) fn new(sequence: Sequence, attributes: &Attributes) -> Self {
        let window = Window::new(attributes.window, attributes.max_window);
        Self {
            queue: VecDeque::new(),
            cursor: Cursor::default(),
            next: sequence,
            unanswered: sequence,
            sent: sequence,
            read_batch: window.read_batch(attributes.path_mtu.bytes() as u32),
            window,
            fetches: 0,
            fetches_sent: 0,
            unasked: 0,
            retries: 0,
            timeouts: 0,
            is_peer_gone: false,
            not_ready_retries: 0,
            gone_back: false,
            sent_back: false,
            answer_by: ResponseDeadline::Never,
            extended: false,
            probe: Probe::default(),
            repairs: Repairs::default(),
            again_at: None,
            pause: Pause::default(),
            skips: Skips::default(),
            declined: [0; 2],
            flow: Flow::new(sequence),
        }
    }

    #[inline]
    pub(super) fn post(&mut self, request: SendRequest) {
        self.queue.push_back(Entry::new(request));
    }

    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether the request that was posted last may be delayed until the next
    /// acknowledgement arrives. Requests that are posted until then are sent together with this
    /// request. Sending many packets together takes the kernel little more time than sending a
    /// single packet. Only messages of one packet are delayed, and only if an acknowledgement is
    /// expected soon.
    pub(super) fn may_wait(&self, endpoint: &Endpoint) -> bool {
        let Some(Entry {
            request, progress, ..
        }) = self.queue.back()
        else {
            return false;
        };
        let local = matches!(
            request.operation,
            SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. }
        );
        if local || !matches!(progress, Progress::Waiting) || request.length > endpoint.mtu() {
            return false;
        }
        let waiting = self.queue.len().saturating_sub(self.cursor.entry) as u32;
        let unacknowledged = self.in_flight(self.position());
        // The newest packet requested an acknowledgement.
        endpoint.is_reliable()
            && self.unasked == 0
            && unacknowledged >= MIN_UNACKNOWLEDGED
            && waiting < MAX_WAITING.0
            && waiting.saturating_mul(request.length) < MAX_WAITING.1
    }

    pub(super) fn next_sequence(&self) -> Sequence {
        self.next
    }

    /// Returns whether no request is in progress: all started requests have completed.
    pub(super) fn is_drained(&self) -> bool {
        self.queue
            .front()
            .is_none_or(|entry| matches!(entry.progress, Progress::Waiting))
    }

    /// Appends the next packet of the requester to `out`, from the base transport header (BTH) to
    /// the padding: a retransmission, a receipt request, a skip packet or the next packet of the
    /// send queue. Returns the packet's path (its addressing information), or `None` if no packet
    /// may be sent now.
    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Result<Option<Path>, Failed> {
        if self.again_at.is_some_and(|at| now < at) {
            return Ok(None);
        }
        self.again_at = None;
        if self.probe.is_due() {
            return self.transmit_probe(now, endpoint, host, out);
        }
        if let Some(sequence) = self.repairs.next() {
            // The oldest packet is sent again in any case, so that the peer can acknowledge more.
            let in_flight = self.packets_in_flight(self.sent);
            if sequence != self.unanswered && !self.window.has_room(in_flight, 1) {
                return Ok(None);
            }
            return self.transmit_repair(sequence, now, endpoint, host, out);
        }
        if let Some(path) = self.flow.poll_transmit(endpoint, out) {
            return Ok(Some(path));
        }
        let Some((first, packets)) = self.select(endpoint, host)? else {
            self.pause.begin(|| now);
            return Ok(None);
        };
        let next = first + self.cursor.packet;
        let told = self
            .skips
            .poll_transmit(next, self.unanswered, endpoint, out);
        if told.is_some() {
            return Ok(told);
        }
        if self.excludes_packets(endpoint, host) {
            return Ok(None);
        }
        self.transmit(first, packets, now, endpoint, host, out)
    }

    /// Starts the request whose packet is sent next, unless the request has already started or must
    /// wait. Returns the first sequence number of the request and the length of its range of
    /// sequence numbers. Returns `None` if no request can be sent now.
    fn select(
        &mut self,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<Option<(Sequence, u32)>, Failed> {
        loop {
            let Some(entry) = self.queue.get_mut(self.cursor.entry) else {
                return Ok(None);
            };
            match entry.progress {
                Progress::Started { first, packets } => return Ok(Some((first, packets))),
                Progress::Waiting => {
                    let fenced = entry.request.fence && self.fetches > 0;
                    if fenced || endpoint.state == State::SendQueueDrained {
                        return Ok(None);
                    }
                    if let Err(delay) = entry.start(self.next, endpoint, host) {
                        self.pause.request(delay);
                        return Ok(None);
                    }
                    if let Progress::Started { packets, .. } = entry.progress {
                        self.fetches += usize::from(entry.awaits_data());
                        self.next = self.next + packets;
                    } else {
                        self.complete_front(endpoint, host)?;
                    }
                }
                Progress::Done => self.cursor = Cursor::at(self.cursor.entry + 1),
                // Nothing is sent until the earlier requests have completed.
                Progress::Failed(_) => return Ok(None),
            }
        }
    }

    /// Returns whether the next bytes of the send queue must be copied to a peer on this host
    /// without packets. If so, these bytes must not be sent as packets, even if the copy must wait
    /// until earlier requests are acknowledged.
    pub(super) fn excludes_packets(&self, endpoint: &Endpoint, host: &impl Host) -> bool {
        let next = self.started(endpoint);
        next.is_some_and(|(upcoming, request)| host.excludes_packets(request, &upcoming))
    }

    fn transmit(
        &mut self,
        first: Sequence,
        packets: u32,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Result<Option<Path>, Failed> {
        let packet = self.cursor.packet;
        let sequence = first + packet;
        let unacknowledged = self.in_flight(sequence);
        let entry = &self.queue[self.cursor.entry];
        let attributes = &endpoint.attributes;
        let (path, destination) = match &entry.request.operation {
            SendOperation::Datagram {
                path, destination, ..
            } => (Some(*path), *destination),
            _ => (attributes.path, attributes.destination),
        };
        let Some(path) = path else {
            return Ok(None);
        };
        let covers = entry.covers(packet, packets, self.read_batch);
        let awaits_data = entry.awaits_data();
        let mut acknowledge = false;
        if endpoint.is_reliable() {
            let full = !self.window.has_room(unacknowledged, covers);
            let all_fetches = self.fetches_sent >= u32::from(endpoint.attributes.max_initiated);
            if full || awaits_data && all_fetches {
                return Ok(None);
            }
            acknowledge = packet + covers == packets || self.requests_ack(unacknowledged, covers);
        } else if !self.flow.may_send(destination, attributes.window, now) {
            return Ok(None);
        }

        let place = PacketPosition {
            sequence,
            packet,
            covers,
            packets,
            acknowledge,
        };
        if let Err(status) = packet::write(entry, place, endpoint, host, out) {
            self.queue[self.cursor.entry].progress = Progress::Failed(status);
            self.complete_front(endpoint, host)?;
            return Ok(None);
        }

        self.unasked = if acknowledge {
            0
        } else {
            self.unasked.saturating_add(1)
        };
        self.cursor.packet += covers;
        if self.cursor.packet == packets {
            self.cursor = self.after(self.cursor.entry);
        }
        let end = sequence + covers;
        let new = self.set_sent(end, host);
        if endpoint.is_reliable() {
            let timeout = endpoint.attributes.ack_timeout;
            let timed = (new && (acknowledge || awaits_data)).then_some(sequence);
            self.probe.sent(timed, now, timeout, self.delivered());
            self.fetches_sent += u32::from(awaits_data);
            self.set_response_deadline(|| now, endpoint);
        } else {
            // Packets of unreliable services are complete once sent (IBTA 9.8.1, 9.8.3).
            self.unanswered = end;
            let ends = packet + covers == packets;
            (self.flow).sent(sequence, ends, path, destination, attributes.window);
            self.complete_front(endpoint, host)?;
        }
        Ok(Some(path))
    }

    /// Returns whether a packet that is not the last of its message must request an
    /// acknowledgement. The result is `true` if many packets were sent since the last such request,
    /// or if the packet fills the window (limit on packets in flight). The packet occupies `covers`
    /// sequence numbers, after `unacknowledged` numbers without an acknowledgement.
    fn requests_ack(&self, unacknowledged: u32, covers: u32) -> bool {
        self.unasked.saturating_add(1) >= self.window.acknowledge_every()
            || unacknowledged + covers >= self.window.size()
    }

    /// Records that all packets before the sequence number `end` were sent. Returns `true` if the
    /// last of them was sent for the first time. Otherwise counts a retransmission, and returns
    /// `false`.
    fn set_sent(&mut self, end: Sequence, host: &mut impl Host) -> bool {
        let new = end.distance(self.sent) > 0;
        if new {
            self.sent = end;
        } else {
            host.count(Counter::Retransmitted, 1);
        }
        new
    }

    /// Sends the oldest unanswered packet again, as a probe: the response shows which packets the
    /// peer has received.
    fn transmit_probe(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Result<Option<Path>, Failed> {
        let timeout = endpoint.attributes.ack_timeout;
        self.probe.probe_sent(self.unanswered, now, timeout);
        self.repairs.repeat_all();
        let Some((path, covers)) = self.transmit_again(self.unanswered, endpoint, host, out)?
        else {
            return Ok(None);
        };
        self.probe
            .probe_sent(self.unanswered + covers, now, timeout);
        Ok(Some(path))
    }

    /// Sends the packet `sequence` again, because the peer has reported the packet as missing.
    fn transmit_repair(
        &mut self,
        sequence: Sequence,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Result<Option<Path>, Failed> {
        let Some((path, covers)) = self.transmit_again(sequence, endpoint, host, out)? else {
            self.repairs.clear();
            return Ok(None);
        };
        self.repairs.repeated(sequence, covers, self.sent);
        if sequence == self.unanswered {
            self.answer_by = self.deadline(now, endpoint);
            self.extended = false;
        }
        let timeout = endpoint.attributes.ack_timeout;
        self.probe.sent(None, now, timeout, self.delivered());
        Ok(Some(path))
    }

    /// Appends the packet `sequence` of a started request to `out` again. Returns the path of the
    /// packet and its number of sequence numbers: one for each response packet of a read, otherwise
    /// 1. Returns `None` if the packet cannot be sent.
    fn transmit_again(
        &mut self,
        sequence: Sequence,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Path, u32)>, Failed> {
        let Some(path) = endpoint.attributes.path else {
            return Ok(None);
        };
        for entry in &mut self.queue {
            let (first, packets) = match entry.progress {
                Progress::Started { first, packets } => (first, packets),
                Progress::Done => continue,
                Progress::Waiting | Progress::Failed(_) => return Ok(None),
            };
            let packet = sequence.distance(first).max(0) as u32;
            if packet >= packets {
                continue;
            }
            let place = PacketPosition {
                sequence,
                packet,
                covers: entry.covers(packet, packets, self.read_batch),
                packets,
                acknowledge: true,
            };
            if let Err(status) = packet::write(entry, place, endpoint, host, out) {
                entry.progress = Progress::Failed(status);
                self.complete_front(endpoint, host)?;
                return Ok(None);
            }
            host.count(Counter::Retransmitted, 1);
            return Ok(Some((path, place.covers)));
        }
        Ok(None)
    }

    /// Returns the position of the first packet after the request at index `entry` of the send
    /// queue. Passes over local operations that follow the request and have completed.
    fn after(&self, entry: usize) -> Cursor {
        let next = self.queue.iter().skip(entry + 1);
        let done = next.take_while(|entry| matches!(entry.progress, Progress::Done));
        Cursor::at(entry + 1 + done.count())
    }

    /// Returns the number of sequence numbers before `next` that count towards the window (limit on
    /// packets in flight). Usually, this is the number of [packets in
    /// flight](Self::packets_in_flight). A greater number is returned if otherwise the number of
    /// unanswered packets could exceed the maximum size that the window can reach.
    #[inline]
    fn in_flight(&self, next: Sequence) -> u32 {
        let unanswered = next.distance(self.unanswered).max(0) as u32;
        let least = unanswered.saturating_sub(self.window.reserve());
        self.packets_in_flight(next).max(least)
    }

    /// Returns the number of packets in flight, as sequence numbers before `next`. An unanswered
    /// packet does not count if the peer has reported its arrival, but still misses an earlier
    /// packet. A lost packet does not count until it is sent again.
    #[inline]
    fn packets_in_flight(&self, next: Sequence) -> u32 {
        let unanswered = next.distance(self.unanswered).max(0) as u32;
        let ended = self.repairs.kept(self.unanswered) + self.repairs.waiting();
        unanswered.saturating_sub(ended)
    }

    /// Returns a count of the packets that the peer has received, in or out of order, as a sequence
    /// number. The difference of two counts is the number of packets that arrived between the two
    /// calls. The rate of the path is measured from this difference.
    fn delivered(&self) -> Sequence {
        self.unanswered + self.repairs.kept(self.unanswered)
    }

    /// Returns whether the response with the sequence number `sequence` is new and valid: the
    /// packet with this number was sent, but is not answered yet. An acknowledgement of a packet
    /// that was never sent is a ghost acknowledgement (IBTA 9.7.5.1.3).
    fn is_new_response(&self, sequence: Sequence) -> bool {
        sequence.distance(self.unanswered) >= 0 && sequence.distance(self.sent) < 0
    }

    /// Returns the sequence number of the packet that is sent next.
    fn position(&self) -> Sequence {
        match self
            .queue
            .get(self.cursor.entry)
            .map(|entry| entry.progress)
        {
            Some(Progress::Started { first, .. }) => first + self.cursor.packet,
            _ => self.next,
        }
    }

    /// Completes the requests at the front of the send queue that are fully answered, and removes
    /// them from the queue.
    ///
    /// # Errors
    /// Returns the error status of the first request that is not fully answered, if this request
    /// has failed.
    fn complete_front(&mut self, endpoint: &Endpoint, host: &mut impl Host) -> Result<(), Failed> {
        while let Some(entry) = self.queue.front() {
            match entry.progress {
                Progress::Waiting => break,
                Progress::Failed(status) => return Err(Failed(status)),
                Progress::Started { first, packets } => {
                    let behind = self.unanswered.distance(first);
                    // Sequence numbers are assigned in order: those before the oldest unanswered
                    // one are answered.
                    if behind < 0 || (behind as u32) < packets {
                        break;
                    }
                    self.fetches -= usize::from(entry.awaits_data());
                    if entry.is_offered && !entry.is_declined {
                        self.declined[usize::from(entry.is_mappable)] = 0;
                    }
                }
                Progress::Done => {}
            }
            if entry.request.signaled || endpoint.attributes.signal_all {
                host.complete_send(entry.completion(CompletionStatus::Success));
            }
            self.queue.pop_front();
            match self.cursor.entry.checked_sub(1) {
                Some(entry) => self.cursor.entry = entry,
                // The packets that were to be retransmitted were answered before they were sent.
                None => {
                    self.cursor = Cursor::default();
                    self.fetches_sent = 0;
                }
            }
        }
        if let (0, Some(Progress::Started { first, .. })) =
            (self.cursor.entry, self.queue.front().map(|e| e.progress))
        {
            let answered = self.unanswered.distance(first).max(0) as u32;
            if self.cursor.packet < answered {
                self.cursor.packet = answered;
                self.fetches_sent = 0;
            }
        }
        Ok(())
    }

    /// Moves the cursor (position of the packet that is sent next) back to the oldest unanswered
    /// packet.
    fn go_back(&mut self) {
        self.skips.repeat();
        self.repairs.clear();
        self.cursor = Cursor::default();
        if let Some(Progress::Started { first, .. }) = self.queue.front().map(|e| e.progress) {
            self.cursor.packet = self.unanswered.distance(first).max(0) as u32;
        }
        self.fetches_sent = 0;
        self.unasked = 0;
        self.answer_by = ResponseDeadline::Never;
        self.extended = false;
        self.probe.cancel();
    }

    /// Moves the cursor (position of the packet that is sent next) back to the oldest unanswered
    /// packet, for a retransmission.
    ///
    /// # Errors
    /// The oldest request fails if the retry count is exhausted.
    fn retry(&mut self, endpoint: &Endpoint, host: &mut impl Host) -> Result<(), Failed> {
        self.count_retry(endpoint, host)?;
        self.go_back();
        Ok(())
    }

    /// Counts a retransmission of the oldest unanswered packet. The count starts again when the
    /// peer answers a packet.
    ///
    /// # Errors
    /// The oldest request fails if the count has already reached the retry count of the attributes.
    fn count_retry(&mut self, endpoint: &Endpoint, host: &mut impl Host) -> Result<(), Failed> {
        // A retry count of seven is a plain limit. Only the RNR retry count has a value for
        // "without limit" (IBTA 9.7.5.2.8).
        if self.retries >= endpoint.attributes.retry_count {
            host.count(Counter::RetryExceeded, 1);
            return Err(Failed(CompletionStatus::RetryExceeded));
        }
        self.retries += 1;
        Ok(())
    }

    /// Handles a receipt: the confirmation of an unreliable service's peer that all packets up to
    /// `sequence` have arrived. More packets may then be sent.
    pub(super) fn receipt(&mut self, sequence: Sequence) {
        self.flow.receipt(sequence);
    }

    /// Completes the oldest request of the send queue with the error `status`, and removes it from
    /// the queue.
    pub(super) fn fail(&mut self, status: CompletionStatus, host: &mut impl Host) {
        if let Some(entry) = self.queue.pop_front() {
            host.complete_send(entry.completion(status));
        }
    }

    /// Permits other processes to use a memory key again, if the first request that has not started
    /// is a binding or an invalidation of this key. For this request, the key was withdrawn from
    /// other processes. Does nothing for any other request. Called when the queue pair is reset or
    /// enters an error state, so that the request will not be executed.
    pub(super) fn publish_withdrawn(&self, host: &impl Host) {
        let mut waiting = self.queue.iter();
        let next = waiting.find(|entry| matches!(entry.progress, Progress::Waiting));
        if let Some(entry) = next {
            entry.publish_withdrawn(host);
        }
    }

    /// Completes all requests with the status "flushed", in the order of posting, because the queue
    /// pair enters an error state.
    pub(super) fn flush(&mut self, endpoint: &Endpoint, host: &mut impl Host) {
        self.publish_withdrawn(host);
        for entry in self.queue.drain(..) {
            host.complete_send(entry.completion(CompletionStatus::Flushed));
        }
        *self = Self::new(self.next, &endpoint.attributes);
    }
}

impl Cursor {
    fn at(entry: usize) -> Self {
        Self { entry, packet: 0 }
    }
}

/// Returns the earlier of two times, where `None` means never.
pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
