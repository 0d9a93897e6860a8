use crate::proto::endpoint::Endpoint;
use crate::proto::{Path, Sequence};
use crate::wire::{Header, Opcode, Operation, Reth};

/// Announcement of sequence numbers that no packet has, because their messages were executed
/// directly in the peer's memory. Without the announcement, the peer would take the gap in the
/// numbers for a loss.
///
/// A skip packet announces the end and the length of the gap, before the next packet is sent. The
/// skip packet has no response, and is repeated before each retransmission of the packet after the
/// gap, until that packet is answered. A peer that has passed the gap already ignores the
/// repetition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skips {
    gap: Option<Gap>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    end: Sequence,
    length: u64,
    told: bool,
}

impl Skips {
    /// Records that `count` sequence numbers from `first` on belong to messages that were executed
    /// directly in the peer's memory. A skip packet must tell the peer's queue pair to pass over
    /// these numbers, because no packet has them.
    pub(super) fn extend(&mut self, first: Sequence, count: u32) {
        let before = self.gap.filter(|gap| gap.end == first);
        self.gap = Some(Gap {
            end: first + count,
            length: before.map_or(0, |gap| gap.length) + u64::from(count),
            told: false,
        });
    }

    /// Schedules the skip packet to be sent again, because the next packet after the gap is about
    /// to be sent again. A skip packet tells the peer to pass over a gap of sequence numbers that
    /// no packet has.
    pub(super) fn repeat(&mut self) {
        if let Some(gap) = &mut self.gap {
            gap.told = false;
        }
    }

    /// Returns whether a skip packet must be sent before the packet `next`. A skip packet tells the
    /// peer to pass over the sequence numbers before `next`, which no packet has. The skip packet
    /// is sent only after the peer has answered all earlier packets: `next` then equals the oldest
    /// unanswered number, `unanswered`.
    pub(super) fn is_due(&self, next: Sequence, unanswered: Sequence) -> bool {
        let untold = |gap: &Gap| gap.end == unanswered && !gap.told && next == unanswered;
        self.gap.as_ref().is_some_and(untold)
    }

    /// Appends a skip packet to `out`, and returns the path to the peer. A skip packet tells the
    /// peer to pass over a gap of sequence numbers that no packet has. Returns `None` if no skip
    /// packet [must be sent](Self::is_due) before the packet `next`. Forgets the gap when the
    /// oldest unanswered number, `unanswered`, is beyond the gap.
    pub(super) fn poll_transmit(
        &mut self,
        next: Sequence,
        unanswered: Sequence,
        endpoint: &Endpoint,
        out: &mut Vec<u8>,
    ) -> Option<Path> {
        let gap = self.gap.as_mut()?;
        if gap.end != unanswered {
            self.gap = None;
            return None;
        }
        if gap.told || next != unanswered {
            return None;
        }
        let path = endpoint.attributes.path?;
        gap.told = true;
        let mut header = endpoint.header(Operation::WriteOnly, gap.end);
        header.bth.opcode = Opcode::SKIP;
        header.reth = Some(Reth {
            address: gap.length,
            key: 0,
            length: 0,
        });
        header.emit(out);
        Some(path)
    }
}

/// Returns the gap in the sequence numbers that a skip packet announces: the number after the gap,
/// and the length of the gap. `header` must be the header of a skip packet. Returns `None` if the
/// header has no RETH (RDMA extended transport header).
pub(in crate::proto) fn skipped(header: &Header) -> Option<(Sequence, u64)> {
    let reth = header.reth.as_ref()?;
    Some((Sequence::new(header.bth.sequence), reth.address))
}
