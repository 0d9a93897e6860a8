use super::entry::{Entry, Progress};
use super::packet::{self, PacketPosition};
use super::{Requester, SendOperation};
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, Path, Run, Sequence, Time};
use crate::wire::{BASE, request_acknowledgement};

impl Requester {
    /// Returns the run that can be sent next: two or more packets from the middle of a message.
    /// Returns `None` if there is no run, or if another packet must be sent first.
    pub(in crate::proto) fn next_run(
        &self,
        endpoint: &Endpoint,
        path: Path,
        host: &impl Host,
    ) -> Option<Run> {
        let (_, first, packets) = self.message_in_progress()?;
        let sequence = first + self.cursor.packet;
        let is_held = self.again_at.is_some()
            || self.probe.is_due()
            || self.repairs.next().is_some()
            || self.skips.is_due(sequence, self.unanswered);
        if is_held || self.excludes_packets(endpoint, host) {
            return None;
        }
        let left = packets - 1 - self.cursor.packet;
        let count = left.min(self.window.room(self.in_flight(sequence)));
        (count > 1).then(|| Run {
            path,
            destination: endpoint.attributes.destination,
            length: BASE + endpoint.mtu() as usize,
            count: count as usize,
        })
    }

    /// Writes `count` packets of the next run. Divides `out` into `count` equal parts, and writes
    /// each packet to the beginning of a part. Returns `false` if the memory of the message cannot
    /// be read. No packet then counts as sent.
    pub(in crate::proto) fn write_run(
        &mut self,
        count: u32,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        out: &mut [u8],
    ) -> bool {
        let Some((entry, first, packets)) = self.message_in_progress() else {
            return false;
        };
        let packet = self.cursor.packet;
        let sequence = first + packet;
        let place = PacketPosition {
            sequence,
            packet,
            covers: 1,
            packets,
            acknowledge: false,
        };
        if packet::write_run(entry, place, count, endpoint, host, out).is_err() {
            return false;
        }
        let stride = out.len() / count as usize;
        let unacknowledged = self.in_flight(sequence);
        let known = self.sent.distance(sequence).clamp(0, count as i32) as u32;
        let mut timed = None;
        for (number, bytes) in (0..).zip(out.chunks_exact_mut(stride)) {
            if self.requests_ack(unacknowledged + number, 1) {
                request_acknowledgement(bytes);
                self.unasked = 0;
                if number >= known {
                    timed = timed.or(Some(sequence + number));
                }
            } else {
                self.unasked += 1;
            }
        }
        self.cursor.packet += count;
        let end = sequence + count;
        if known > 0 {
            host.count(Counter::Retransmitted, known.into());
        }
        if known < count {
            self.sent = end;
        }
        let timeout = endpoint.attributes.ack_timeout;
        self.probe.sent(timed, now, timeout, self.delivered());
        self.set_response_deadline(|| now, endpoint);
        true
    }

    /// Returns the send or write whose middle packet is sent next, its first sequence number, and
    /// the length of its range of sequence numbers. Returns `None` if the next packet is the first
    /// or last of its message, or belongs to another operation. Only middle packets have equal
    /// headers, so only middle packets can be written several at a time.
    fn message_in_progress(&self) -> Option<(&Entry, Sequence, u32)> {
        let packet = self.cursor.packet;
        let entry = self.queue.get(self.cursor.entry).filter(|_| packet > 0)?;
        let Progress::Started { first, packets } = entry.progress else {
            return None;
        };
        let has_middle = matches!(
            entry.request.operation,
            SendOperation::Send { .. } | SendOperation::Write { .. }
        );
        (has_middle && packet + 1 < packets).then_some((entry, first, packets))
    }
}
