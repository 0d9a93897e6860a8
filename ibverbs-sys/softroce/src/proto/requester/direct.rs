use super::{Cursor, Failed, Requester};
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    Answer, CompletionStatus, Counter, Host, Part, Peer, SendRequest, Sequence, Step, Time,
};

impl Requester {
    /// Returns whether the next part may go without packets. No packet may be on the way: the peer takes everything in
    /// the order of the sequence numbers, and this side does not know how many of those packets it has taken.
    pub(in crate::proto) fn has_direct(
        &self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) -> Step {
        if self.queue.is_empty() || self.again_at.is_some_and(|at| now() < at) {
            Step::Idle
        } else if endpoint.is_reliable() && self.sent != self.unanswered
            || self.probe.is_due()
            || self.flow.asks()
        {
            Step::Packets
        } else {
            Step::Moved
        }
    }

    /// Moves the next part without packets, where [`has_direct`](Self::has_direct) allows it.
    pub(in crate::proto) fn poll_direct<H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut H,
        peer: &mut impl Peer<H>,
    ) -> Result<Step, Failed> {
        let Some((first, packets)) = self.select(endpoint, host)? else {
            self.pause.begin(now);
            return Ok(Step::Idle);
        };
        let packet = self.cursor.packet;
        let sequence = first + packet;
        if self.cursor.entry != 0 || endpoint.is_reliable() && sequence != self.unanswered {
            return Ok(Step::Packets);
        }
        let covers = (packets - packet).min(peer.most() / endpoint.mtu());
        let request = &self.queue[0].request;
        let offset = packet * endpoint.mtu();
        let part = Part {
            request,
            sequence,
            packets: covers,
            offset,
            length: (request.length - offset).min(covers * endpoint.mtu()),
            starts: packet == 0,
            ends: packet + covers == packets,
            source: endpoint.number,
            queue_key: endpoint.attributes.queue_key,
        };
        match peer.take(&part, host) {
            Answer::Done => {
                self.moved(sequence + covers);
                self.cursor.packet = packet + covers;
                if packet + covers == packets {
                    self.end_first(endpoint, host);
                }
                Ok(Step::Moved)
            }
            Answer::Unseen => {
                debug_assert!(part.starts && part.ends, "a whole message");
                self.skips.extend(sequence, covers);
                self.moved(sequence + covers);
                self.end_first(endpoint, host);
                Ok(Step::Moved)
            }
            Answer::Packets => Ok(Step::Packets),
            Answer::NotReady { timer } => {
                host.count(Counter::ReceivedRnr, 1);
                self.wait_for_receiver(timer, now(), endpoint, host)?;
                Ok(Step::Idle)
            }
            Answer::Later { again } => {
                self.pause.wish(again);
                self.pause.begin(now);
                Ok(Step::Idle)
            }
            Answer::Failed(status) => Err(Failed(status)),
        }
    }

    /// Returns whether all requests so far have ended, and nothing is to be transmitted.
    #[inline]
    pub(in crate::proto) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.sent == self.unanswered
            && self.next == self.unanswered
            && self.again_at.is_none()
            && !self.probe.is_due()
            && !self.flow.asks()
            && self.flow.is_settled()
    }

    /// Returns whether packets of an unreliable connection have gone that the peer may not have taken yet. If so, the
    /// peer is asked for a receipt of the next packet.
    pub(in crate::proto) fn awaits_receipt(&mut self) -> bool {
        let awaits = !self.flow.is_settled();
        if awaits {
            self.flow.ask_soon();
        }
        awaits
    }

    /// Messages were done that were never queued, and of which the peer does not know. They have so many numbers.
    #[inline]
    pub(in crate::proto) fn skip(&mut self, packets: u32) {
        debug_assert!(self.is_idle(), "nothing is overtaken");
        self.skips.extend(self.next, packets);
        self.next = self.next + packets;
        self.moved(self.next);
    }

    /// Notes that everything before `limit` is answered, and nothing is on the way.
    fn moved(&mut self, limit: Sequence) {
        self.sent = limit;
        self.unanswered = limit;
        self.retries = 0;
        self.not_ready_retries = 0;
        self.gone_back = false;
        self.silences = 0;
        self.excused = false;
        self.again_at = None;
        self.answer_by = None;
        self.flow.skipped(limit + 0xff_ffff);
    }

    /// Completes the request at the front. Nothing was done for those behind it.
    fn end_first(&mut self, endpoint: &Endpoint, host: &mut impl Host) {
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

    /// Returns the request whose next part or packet goes next.
    pub(in crate::proto) fn next_request(&self) -> Option<&SendRequest> {
        let entry = self.queue.get(self.cursor.entry)?;
        Some(&entry.request)
    }
}
