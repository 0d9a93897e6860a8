use super::{Failed, Requester};
use crate::proto::direct::MOST;
use crate::proto::endpoint::Endpoint;
use crate::proto::{Answer, Counter, Host, Part, Peer, SendRequest, Sequence, Step, Time};

impl Requester {
    /// Whether the next part may go without packets. None may be on the way: the peer takes things in the order of their
    /// numbers, and what it has taken of those is not known.
    pub(in crate::proto) fn has_direct(&self, now: Time, endpoint: &Endpoint) -> Step {
        if self.queue.is_empty() || self.again_at.is_some_and(|at| now < at) {
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
        now: Time,
        endpoint: &Endpoint,
        host: &mut H,
        peer: &mut impl Peer<H>,
    ) -> Result<Step, Failed> {
        let Some((first, packets)) = self.select(endpoint, host)? else {
            return Ok(Step::Idle);
        };
        let packet = self.cursor.packet;
        let sequence = first + packet;
        if self.cursor.entry != 0 || endpoint.is_reliable() && sequence != self.unanswered {
            return Ok(Step::Packets);
        }
        let covers = (packets - packet).min(MOST / endpoint.mtu());
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
                self.moved(packet + covers, packets, sequence + covers);
                self.settle(endpoint, host)?;
                Ok(Step::Moved)
            }
            Answer::Packets => Ok(Step::Packets),
            Answer::NotReady { timer } => {
                host.count(Counter::ReceivedRnr, 1);
                self.wait_for_receiver(timer, now, endpoint, host)?;
                Ok(Step::Idle)
            }
            Answer::Failed(status) => Err(Failed(status)),
        }
    }

    /// The request at the front is done up to the packet `done` of `packets`, and all before `limit` is answered.
    fn moved(&mut self, done: u32, packets: u32, limit: Sequence) {
        self.cursor.packet = done;
        if done == packets {
            self.cursor = self.after(0);
        }
        self.sent = limit;
        self.unanswered = limit;
        self.retries = 0;
        self.not_ready_retries = 0;
        self.gone_back = false;
        self.again_at = None;
        self.answer_by = None;
        self.flow.skipped(limit + 0xff_ffff);
    }

    /// The request of which something goes next.
    pub(in crate::proto) fn next_request(&self) -> Option<&SendRequest> {
        let entry = self.queue.get(self.cursor.entry)?;
        Some(&entry.request)
    }
}
