//! Execution and transmission of queued send requests: first requests that need no packets, then
//! the others as packets.

use super::QueuePair;
use super::device::Outgoing;
use super::object::Inner;
use crate::counters::Flow;
use crate::proto::{Counter, SendProgress, Time};
use crate::spin::MutexGuard;

impl QueuePair {
    /// Executes queued send requests without packets: copies their bytes within this process, or
    /// through memory shared with a peer process. Returns [`SendProgress::Idle`] if nothing can be
    /// sent now. Otherwise returns [`SendProgress::PacketsOnly`]: the caller must then try to send
    /// packets and ring messages (short messages in shared memory). `mine` is the locked state of
    /// this queue pair.
    pub(super) fn execute_all_queued(&self, mine: &mut MutexGuard<'_, Inner>) -> SendProgress {
        loop {
            let step = mine.transport.next_step(|| self.device().now());
            if step != SendProgress::Transferred {
                return step;
            }
            let step = match self.link(mine) {
                Some(link) => self.execute(mine, link),
                None => self.execute_queued(mine),
            };
            if step != SendProgress::Transferred {
                return step;
            }
            MutexGuard::bump(mine);
        }
    }

    /// Sends all packets and ring messages (short messages in memory shared with a peer process)
    /// that may be sent now, by passing them to `outgoing`. `inner` is the locked state of this
    /// queue pair. The lock is held during the whole call, so that messages of other threads are
    /// not sent in between.
    pub(super) fn transmit_queued(
        &self,
        inner: &mut Inner,
        now: impl FnOnce() -> Time,
        outgoing: &mut impl Outgoing,
    ) {
        if self.transmit_ring_messages(inner, outgoing) {
            return;
        }
        let now = now();
        // The loop alternates between packets and ring messages: packets may have to be sent before
        // a ring message, and a message that cannot be sent as a ring message is sent as packets.
        while self.transmit_packets(inner, now, outgoing) {
            if self.transmit_ring_messages(inner, outgoing) {
                return;
            }
        }
    }

    /// Passes to `outgoing` the packets that may be sent now. `inner` is the locked state of this
    /// queue pair. Returns `true` if packets were sent and the next message needs no packets. The
    /// caller should then try to send ring messages (short messages in shared memory).
    fn transmit_packets(&self, inner: &mut Inner, now: Time, outgoing: &mut impl Outgoing) -> bool {
        self.select_packet_path(inner, outgoing);
        let mut has_sent = false;
        let excludes_packets = self.with(inner, |transport, host| {
            host.answering = true;
            loop {
                while let Some(run) = transport.next_run(host)
                    && outgoing.push_run(&run, |count, out| {
                        transport.write_run(count, now, host, out)
                    })
                {}
                if !outgoing.push(|out| transport.poll_transmit(now, host, out)) {
                    break;
                }
                has_sent = true;
            }
            transport.excludes_packets(host)
        });
        if let Some(linked_peer) = &inner.linked_peer
            && linked_peer.link.has_waiting(self.number())
        {
            inner.transport.wait_for_space(now);
        }
        let shares = outgoing.take_shared_volume();
        if shares.packets > 0 {
            inner.tally.count(Counter::SentPackets, shares.packets);
            (inner.tally).count(Counter::SharedSentPackets, shares.packets);
            inner.tally.count(Counter::SentBytes, shares.bytes);
            inner.tally.add(Flow::RingSent, &shares.volume);
        }
        outgoing.flush();
        has_sent && excludes_packets == Some(true)
    }
}
