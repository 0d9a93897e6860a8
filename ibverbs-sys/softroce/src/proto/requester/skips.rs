use crate::proto::endpoint::Endpoint;
use crate::proto::{Path, Sequence};
use crate::wire::{Header, Opcode, Operation, Reth};

/// Numbers that were used without packets, and that the peer did not count: the peer must be told of them before the
/// next packet, or it would see a gap.
///
/// The numbers of several messages in a row are one gap. A packet tells the gap's end and length. This packet has no
/// answer of its own: the answer to the packet behind it shows that both have come, and until then it is sent before
/// each packet with which this side begins again. A peer that is somewhere in the gap goes to its end; any other peer
/// has been told of it already.
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
    /// Notes that `count` numbers from `first` on were used.
    pub(super) fn extend(&mut self, first: Sequence, count: u32) {
        let before = self.gap.filter(|gap| gap.end == first);
        self.gap = Some(Gap {
            end: first + count,
            length: before.map_or(0, |gap| gap.length) + u64::from(count),
            told: false,
        });
    }

    /// The packet that goes next, or goes again, is the one with the oldest number without an answer.
    pub(super) fn again(&mut self) {
        if let Some(gap) = &mut self.gap {
            gap.told = false;
        }
    }

    /// Returns whether the peer must be told of skipped numbers before the packet `next`; everything before
    /// `unanswered` is answered.
    pub(super) fn is_untold(&self, next: Sequence, unanswered: Sequence) -> bool {
        let untold = |gap: &Gap| gap.end == unanswered && !gap.told && next == unanswered;
        self.gap.as_ref().is_some_and(untold)
    }

    /// Appends the packet that tells the peer of skipped numbers, if it must go before the packet `next`; everything
    /// before `unanswered` is answered.
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

/// Returns the skipped numbers that a packet tells of: their end, and how many they are.
pub(in crate::proto) fn skipped(header: &Header) -> Option<(Sequence, u64)> {
    let reth = header.reth.as_ref()?;
    Some((Sequence::new(header.bth.sequence), reth.address))
}
