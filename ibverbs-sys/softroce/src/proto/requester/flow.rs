use std::time::Duration;

use crate::proto::endpoint::{Endpoint, MULTICAST};
use crate::proto::timer::Pacer;
use crate::proto::{Path, Sequence, Time, receipt};
use crate::wire::{Deth, Operation};

/// Flow control of an unreliable service. The peer confirms received packets by
/// [receipts](crate::proto::receipt), and at most one window of packets may be sent without a
/// receipt. If the peer sends no receipts, packets are sent in bursts, with pauses between them.
#[derive(Debug)]
pub(super) struct Flow {
    /// Sequence number before which all packets have a receipt, or no receipt is expected any more.
    taken: Sequence,
    /// Sequence number after the newest packet or message.
    next: Sequence,
    /// Sequence number after the newest packet, if that packet has no receipt yet.
    packets_end: Option<Sequence>,
    /// Number of packets that were sent since the last receipt request.
    unconfirmed: u32,
    /// Set if a receipt must be requested after the next message.
    requests_soon: bool,
    /// Receipt request that must be sent, if there is one.
    question: Option<Question>,
    /// Sequence number for which a receipt was requested and has not arrived.
    asked: Option<Sequence>,
    /// Time at which the wait for a receipt ends.
    deadline: Option<Time>,
    /// Number of consecutive receipts that did not arrive in time.
    misses: u32,
    pacer: Pacer,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    path: Path,
    destination: u32,
    sequence: Sequence,
}

/// Average interval between packets to a peer that sends no receipts (confirmations of received
/// packets). No response of such a peer limits the number of packets in flight. Only this interval
/// keeps the packets from overflowing the socket buffer of the peer.
const PACKET_INTERVAL: Duration = Duration::from_micros(2);

/// Maximum time to wait for a receipt (confirmation of received packets) before more packets are
/// sent without it. The time is long, because a busy machine can delay the process of the peer for
/// many milliseconds.
const RECEIPT_TIMEOUT: Duration = Duration::from_millis(50);

/// Number of consecutive missing receipts (confirmations of received packets) after which the peer
/// is assumed not to support receipts. A single receipt may also be missing because a packet was
/// lost.
const MAX_MISSING_RECEIPTS: u32 = 3;

/// Maximum distance from a message without a receipt (confirmation by the peer) to the newest
/// message, in sequence numbers. Older messages are assumed to have been received. The limit is far
/// below half of all sequence numbers, so that the order of two numbers is never ambiguous.
const MAX_DISTANCE: i32 = 1 << 20;

/// Number of full windows between receipt requests to a peer that seems to send no receipts
/// (confirmations of received packets). A full window is the maximum number of packets in flight.
/// If the peer answers a request, receipts are used again.
const WINDOWS_BEFORE_RETRY: u32 = 16;

impl Flow {
    /// Creates the flow control for a queue pair whose first packet has the sequence number
    /// `sequence`.
    pub(super) fn new(sequence: Sequence) -> Self {
        Self {
            taken: sequence,
            next: sequence,
            packets_end: None,
            unconfirmed: 0,
            requests_soon: false,
            question: None,
            asked: None,
            deadline: None,
            misses: 0,
            pacer: Pacer::default(),
        }
    }

    fn sends_receipts(&self) -> bool {
        self.misses < MAX_MISSING_RECEIPTS
    }

    /// Returns whether a packet may be sent to the queue pair `destination` at the time `now`, if
    /// at most `window` packets may be in flight. If not, records the time until which the packet
    /// waits (see [`next_timeout`](Self::next_timeout)).
    pub(super) fn may_send(&mut self, destination: u32, window: u32, now: Time) -> bool {
        if self.sends_receipts() && destination != MULTICAST {
            self.pacer.clear_waiting();
            let unacknowledged = self.next.distance(self.taken).max(0) as u32;
            if unacknowledged < window || !self.awaits_receipt() {
                self.deadline = None;
                return true;
            }
            if now < *self.deadline.get_or_insert(now + RECEIPT_TIMEOUT) {
                return false;
            }
            self.misses += 1;
            self.confirm_before(self.next);
            self.deadline = None;
            if self.sends_receipts() {
                return true;
            }
        }
        self.pacer.take(now, window, PACKET_INTERVAL)
    }

    /// Records that the packet `sequence` was sent to the queue pair `destination`; `ends` is set
    /// for the last packet of a message. After half of `window` (the limit on packets in flight),
    /// schedules a request to the peer to confirm the packets. The confirmation then arrives before
    /// the window is full.
    ///
    /// Also schedules this request at the end of a message after
    /// [`request_soon`](Self::request_soon). A peer that does not answer such requests gets them
    /// more rarely, and a multicast group gets none.
    pub(super) fn sent(
        &mut self,
        sequence: Sequence,
        ends: bool,
        path: Path,
        destination: u32,
        window: u32,
    ) {
        self.next = sequence.next();
        self.packets_end = Some(self.next);
        self.unconfirmed = self.unconfirmed.saturating_add(1);
        let every = if self.sends_receipts() {
            window / 2
        } else {
            window.saturating_mul(WINDOWS_BEFORE_RETRY)
        };
        if (self.unconfirmed >= every || self.requests_soon && ends) && destination != MULTICAST {
            self.unconfirmed = 0;
            self.requests_soon = false;
            self.question = Some(Question {
                path,
                destination,
                sequence,
            });
        }
    }

    /// Records that the sequence number `sequence` was used without a packet. No receipt
    /// (confirmation of received packets) is expected for this number.
    pub(super) fn skipped(&mut self, sequence: Sequence) {
        if self.taken == self.next {
            self.confirm_before(sequence.next());
        }
        self.next = sequence.next();
    }

    /// Records that messages with the sequence numbers before `end` were put into the peer's ring
    /// (queue in shared memory), without packets. No receipt (confirmation by the peer) is
    /// requested for these messages before the next packet is sent.
    pub(super) fn sent_without_packets(&mut self, end: Sequence) {
        self.next = end;
        // Without this limit, the distance between the two numbers could exceed half of all
        // numbers.
        if self.next.distance(self.taken) > MAX_DISTANCE {
            let limit = self.next.value().wrapping_sub(MAX_DISTANCE as u32);
            self.confirm_before(Sequence::new(limit));
        }
    }

    /// Records that no receipt (confirmation by the peer) is awaited for packets and messages
    /// before `limit`: the receipt has arrived, or is not expected any more.
    fn confirm_before(&mut self, limit: Sequence) {
        self.taken = limit;
        self.packets_end = self.packets_end.filter(|end| end.distance(limit) > 0);
    }

    /// Returns whether no receipt (confirmation by the peer) is missing: for each sent packet and
    /// message, the receipt has arrived, or the wait for the receipt has ended.
    pub(super) fn is_settled(&self) -> bool {
        self.taken == self.next
    }

    /// Returns whether packets are perhaps still in flight to the peer. The result is `true` until
    /// the receipt (confirmation by the peer) for the newest packet has arrived, or the wait for
    /// this receipt has ended.
    pub(super) fn has_packets_in_flight(&self) -> bool {
        self.packets_end.is_some()
    }

    /// Schedules a receipt request after the next message that is sent as packets, unless a receipt
    /// is already awaited. A receipt request is a packet that asks the peer to confirm received
    /// packets.
    pub(super) fn request_soon(&mut self) {
        self.requests_soon = !self.awaits_receipt();
    }

    /// Returns whether a receipt (confirmation of received packets) that this side has requested
    /// from the peer has not arrived yet.
    fn awaits_receipt(&self) -> bool {
        (self.asked).is_some_and(|asked| asked.distance(self.taken) >= 0)
    }

    /// Returns whether a receipt request (a packet that requests a confirmation of received
    /// packets) must be sent.
    pub(super) fn has_request(&self) -> bool {
        self.question.is_some()
    }

    /// Appends a receipt request (a packet that asks the peer to confirm received packets) to
    /// `out`, and returns the path that the packet takes to the peer. Returns `None` if no receipt
    /// must be requested.
    pub(super) fn poll_transmit(&mut self, endpoint: &Endpoint, out: &mut Vec<u8>) -> Option<Path> {
        let question = self.question.take()?;
        self.asked = Some(question.sequence);
        let mut header = receipt::header(endpoint, Operation::SendOnly, question.sequence);
        header.bth.destination = question.destination;
        header.deth = Some(Deth {
            queue_key: endpoint.attributes.queue_key,
            source: endpoint.number,
        });
        header.emit(out);
        Some(question.path)
    }

    /// Handles a receipt: the peer confirms that all packets up to `sequence` have arrived. More
    /// packets may then be sent.
    pub(super) fn receipt(&mut self, sequence: Sequence) {
        let old = sequence.distance(self.taken) < 0;
        if old || sequence.distance(self.next) >= 0 {
            return;
        }
        // A peer that seemed not to support receipts got more than a window of packets, so none of
        // them counts as in flight.
        let limit = if self.sends_receipts() {
            sequence.next()
        } else {
            self.next
        };
        self.confirm_before(limit);
        self.misses = 0;
        self.deadline = None;
        self.pacer.clear_waiting();
    }

    /// Returns the time at which a waiting packet may be sent. The packet waits for a receipt (the
    /// peer's confirmation of earlier packets), or for the end of the pause after a burst of
    /// packets. Returns `None` if no packet waits.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let times = [self.deadline, self.pacer.resume_at()];
        times.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::{Flow, MAX_MISSING_RECEIPTS, RECEIPT_TIMEOUT};
    use crate::proto::testing::path;
    use crate::proto::{Sequence, Time};

    const WINDOW: u32 = 8;

    /// Sends as many packets as the flow control `flow` allows at `now`. Returns their number.
    fn send(flow: &mut Flow, now: Time) -> u32 {
        let mut sent = 0;
        while sent < 1000 && flow.may_send(2, WINDOW, now) {
            let sequence = flow.next;
            flow.sent(sequence, true, path(), 2, WINDOW);
            if let Some(question) = flow.question.take() {
                flow.asked = Some(question.sequence);
            }
            sent += 1;
        }
        sent
    }

    #[test]
    fn packets_are_sent_up_to_the_window_and_as_received_packets_allow() {
        let mut flow = Flow::new(Sequence::new(0xff_fffe));
        let now = Time::default();
        assert_eq!(send(&mut flow, now), 8);
        assert_eq!(flow.asked, Some(Sequence::new(5)));
        flow.receipt(Sequence::new(1));
        assert_eq!(send(&mut flow, now), 4);
        // The receipts of a packet that was received before, and of a packet that was not sent,
        // must be ignored.
        flow.receipt(Sequence::new(1));
        flow.receipt(Sequence::new(100));
        assert_eq!(send(&mut flow, now), 0);
    }

    #[test]
    fn messages_without_packets_need_a_receipt_but_do_not_count_as_packets_in_flight() {
        let mut flow = Flow::new(Sequence::new(0xff_fff0));
        flow.sent_without_packets(Sequence::new(0xff_fff4));
        assert!(!flow.is_settled() && !flow.has_packets_in_flight());
        flow.sent(Sequence::new(0xff_fff4), true, path(), 2, WINDOW);
        flow.sent_without_packets(Sequence::new(5));
        assert!(flow.has_packets_in_flight());
        flow.receipt(Sequence::new(0xff_fff4));
        assert!(!flow.is_settled() && !flow.has_packets_in_flight());
        flow.receipt(Sequence::new(4));
        assert!(flow.is_settled());
        // More messages than there are sequence numbers.
        for end in (0..0x180_0000).step_by(0x1000) {
            flow.sent_without_packets(Sequence::new(end + 6));
            assert!(!flow.is_settled() && !flow.has_packets_in_flight());
        }
    }

    #[test]
    fn a_peer_that_never_sends_receipts_gets_bursts() {
        let mut flow = Flow::new(Sequence::new(0));
        let mut now = Time::default();
        assert_eq!(send(&mut flow, now), 8);
        for _ in 1..MAX_MISSING_RECEIPTS {
            let due = flow.next_timeout().unwrap();
            assert_eq!(due, now + RECEIPT_TIMEOUT);
            now = due;
            assert_eq!(send(&mut flow, now), 8);
        }
        now = flow.next_timeout().unwrap();
        let begin = now;
        let mut sent = 0;
        while now - begin < RECEIPT_TIMEOUT {
            sent += send(&mut flow, now);
            now = flow.next_timeout().unwrap();
        }
        assert!(sent > 20_000, "{sent}");
        // The missing receipt arrives late.
        flow.receipt(Sequence::new(200));
        assert_eq!(send(&mut flow, now), 8);
        assert_eq!(flow.misses, 0);
    }
}
