use std::collections::VecDeque;
use std::mem;

use crate::proto::Sequence;

/// Record of the packets that the peer has not received, although it has received later packets.
/// Only these missing packets are sent again, because the peer keeps the later packets.
///
/// The peer lists the packets that it keeps in a gap report. A kept packet is acknowledged only
/// when the missing packets before it have arrived.
///
/// Networks seldom change the order of packets. So if the peer has received a packet, the packets
/// that were sent before it have arrived or are lost. This also reveals the loss of the last
/// packets in flight, and of packets that were sent again.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Missing packets before `end`, in ascending order. The peer has received all other packets
    /// before `end`.
    missing: VecDeque<Missing>,
    /// Number of missing packets that must be sent again.
    waiting: u32,
    /// Index in `missing` at which the search for a packet that must be sent again begins. All
    /// packets before this index were already sent again.
    first_waiting: usize,
    /// Sequence number before which all packets have arrived or are missing. `None` if no packet is
    /// known to be missing.
    end: Option<Sequence>,
}

#[derive(Clone, Copy, Debug)]
struct Missing {
    sequence: Sequence,
    /// Sequence number of the next new packet at the time when this packet was sent again. `None`
    /// if this packet must still be sent again.
    resent: Option<Sequence>,
}

impl Repairs {
    /// Records a gap report of the peer. The bits of `bits`, from the highest bit of the first byte
    /// on, show which packets from `base` on the peer has received. Ignores an old report, whose
    /// `base` is before the oldest unanswered packet, `unanswered`. Ignores the bits of packets
    /// from `sent` on, which were never sent.
    ///
    /// Returns `true` if a packet that was sent again was lost again: the peer still misses the
    /// packet, although a packet that was sent after the repetition has arrived.
    pub(super) fn report(
        &mut self,
        base: Sequence,
        bits: &[u8],
        unanswered: Sequence,
        sent: Sequence,
    ) -> bool {
        if base.distance(unanswered) < 0 {
            return false;
        }
        let is_kept = |place: u32| {
            let byte = bits.get(place as usize / 8);
            byte.is_some_and(|byte| byte & 0x80 >> (place % 8) != 0)
        };
        let most = (sent.distance(base).max(0) as u32).min(8 * bits.len() as u32);
        let Some(last) = (0..most).rev().find(|&place| is_kept(place)) else {
            return false;
        };
        let reported = base + (last + 1);
        let known = mem::take(&mut self.missing);
        let mut latest = reported;
        for packet in &known {
            let place = packet.sequence.distance(base);
            if place < 0 || is_kept(place as u32) {
                latest = later(latest, packet.resent);
            }
        }
        let missing = (0..last).filter(|&place| !is_kept(place)).map(|place| {
            let sequence = base + place;
            let same = known
                .binary_search_by_key(&(place as i32), |packet| packet.sequence.distance(base));
            let resent = same.ok().and_then(|index| known[index].resent);
            Missing { sequence, resent }
        });
        let beyond = |packet: &&Missing| packet.sequence.distance(reported) >= 0;
        self.missing = missing
            .chain(known.iter().filter(beyond).copied())
            .collect();
        let end = later(reported, self.end);
        self.conclude(end, latest)
    }

    /// Records that all packets before `unanswered` are answered. Returns `true` if a packet that
    /// was sent again was lost again: the peer still misses the packet, although a packet that was
    /// sent after the repetition has arrived.
    #[inline]
    pub(super) fn progress(&mut self, unanswered: Sequence) -> bool {
        let Some(end) = self.end else {
            return false;
        };
        let mut latest = end;
        while let Some(packet) = self.missing.front()
            && packet.sequence.distance(unanswered) < 0
        {
            latest = later(latest, packet.resent);
            self.missing.pop_front();
            self.first_waiting = self.first_waiting.saturating_sub(1);
        }
        if latest.distance(unanswered) <= 0 {
            self.clear();
            return false;
        }
        self.conclude(later(unanswered, Some(end)), latest)
    }

    /// Marks the packets from `end` up to `latest` (exclusive) as lost. `end` is the first number
    /// whose arrival is unknown. The peer has received a packet that was sent later. When that
    /// packet was sent, `latest` was the number of the next new packet. Missing packets that were
    /// sent again before that packet are lost again. Returns `true` if packets were lost again.
    fn conclude(&mut self, end: Sequence, latest: Sequence) -> bool {
        let count = latest.distance(end).max(0) as u32;
        (self.missing).extend((0..count).map(|place| Missing {
            sequence: end + place,
            resent: None,
        }));
        self.end = Some(later(end, Some(latest)));
        let mut is_lost_again = false;
        for packet in &mut self.missing {
            if packet.resent.is_some_and(|sent| latest.distance(sent) > 0) {
                packet.resent = None;
                is_lost_again = true;
            }
        }
        self.count_waiting();
        is_lost_again
    }

    /// Forgets which packets the peer has received and which are missing. Called in three cases:
    /// all unanswered packets are sent again, no packet is missing any more, or a missing packet
    /// cannot be sent again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether a retransmission can repeat only the packets that the peer misses. The
    /// result is `true` only if the peer is known to miss the oldest unanswered packet,
    /// `unanswered`. If the result is `false`, all unanswered packets are sent again.
    pub(super) fn begin_with(&self, unanswered: Sequence) -> bool {
        (self.missing.front()).is_some_and(|first| first.sequence == unanswered)
    }

    /// Returns the number of packets that must be sent again, because the gap reports of the peer
    /// list them as missing.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the number of unanswered packets that the peer has received and keeps until the
    /// missing packets before them arrive. `unanswered` is the number of the oldest unanswered
    /// packet.
    #[inline]
    pub(super) fn kept(&self, unanswered: Sequence) -> u32 {
        match self.end {
            Some(end) => {
                let known = end.distance(unanswered).max(0) as u32;
                known.saturating_sub(self.missing.len() as u32)
            }
            None => 0,
        }
    }

    /// Returns whether a gap report of the peer has shown that packets are missing. Only the
    /// missing packets are then sent again.
    pub(super) fn is_active(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the sequence number of the first packet that is missing at the peer and must be sent
    /// again. Returns `None` if no packet must be sent again.
    #[inline]
    pub(super) fn next(&self) -> Option<Sequence> {
        if self.waiting == 0 {
            return None;
        }
        let mut rest = self.missing.range(self.first_waiting..);
        let waiting = rest.find(|packet| packet.resent.is_none());
        waiting.map(|packet| packet.sequence)
    }

    /// Records that a packet with `covers` sequence numbers from `sequence` on was sent again. A
    /// read request packet has the numbers of all packets of its response. `sent` is the number of
    /// the next new packet. If the peer receives the packet `sent` and still misses the repeated
    /// packet, the repeated packet is assumed to be lost again.
    pub(super) fn repeated(&mut self, sequence: Sequence, covers: u32, sent: Sequence) {
        let is_before = |packet: &Missing| packet.sequence.distance(sequence) < 0;
        let first = self.missing.partition_point(is_before);
        for packet in self.missing.range_mut(first..) {
            if packet.sequence.distance(sequence) as u32 >= covers {
                break;
            }
            if packet.resent.replace(sent).is_none() {
                self.waiting -= 1;
            }
        }
        let rest = self.missing.range(self.first_waiting..);
        let is_resent = |packet: &&Missing| packet.resent.is_some();
        self.first_waiting += rest.take_while(is_resent).count();
    }

    /// Schedules all missing packets to be sent again, even those that were already sent again.
    /// Called because no response has arrived.
    pub(super) fn repeat_all(&mut self) {
        for packet in &mut self.missing {
            packet.resent = None;
        }
        self.count_waiting();
    }

    /// Updates the number of missing packets that must be sent again, and restarts the search for
    /// the first of them. Called after the list of missing packets has changed.
    fn count_waiting(&mut self) {
        let waiting = self.missing.iter().filter(|packet| packet.resent.is_none());
        self.waiting = waiting.count() as u32;
        self.first_waiting = 0;
    }
}

/// Returns the later of two sequence numbers, or `one` if `other` is `None`.
fn later(one: Sequence, other: Option<Sequence>) -> Sequence {
    other.filter(|other| other.distance(one) > 0).unwrap_or(one)
}
