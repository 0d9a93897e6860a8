use std::collections::VecDeque;

use crate::proto::Sequence;
use crate::wire::{Header, Packet};

/// Sends and writes that have arrived after a gap in the sequence numbers, in the order of their
/// numbers. These packets are executed when the missing packets have arrived, so the peer need not
/// send the kept packets again. The caller limits the number of kept packets.
#[derive(Debug, Default)]
pub(super) struct KeptPackets {
    packets: VecDeque<KeptPacket>,
}

/// A copy of a send or write packet that arrived after a gap in the sequence numbers. The packet is
/// executed when the missing packets have arrived.
#[derive(Debug)]
pub(super) struct KeptPacket {
    header: Header,
    payload: Box<[u8]>,
}

impl KeptPacket {
    pub(super) fn as_packet(&self) -> Packet<'_> {
        Packet {
            header: self.header,
            payload: &self.payload,
        }
    }

    fn sequence(&self) -> Sequence {
        Sequence::new(self.header.bth.sequence)
    }
}

impl KeptPackets {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.packets = VecDeque::new();
    }

    /// Adds a copy of `packet`, which has arrived although the earlier packet `expected` is
    /// missing. Does nothing if a copy exists already. Returns whether the packet reveals a new
    /// gap: `packet` is the latest packet so far, and the packet directly before `packet` has not
    /// arrived.
    pub(super) fn insert(&mut self, expected: Sequence, packet: &Packet<'_>) -> bool {
        let distance = Sequence::new(packet.header.bth.sequence).distance(expected);
        let place =
            (self.packets).partition_point(|kept| kept.sequence().distance(expected) < distance);
        let next = self.packets.get(place);
        if next.is_some_and(|kept| kept.sequence().distance(expected) == distance) {
            return false;
        }
        let opens_gap = next.is_none()
            && (self.packets.back())
                .is_none_or(|last| last.sequence().distance(expected) + 1 < distance);
        let kept = KeptPacket {
            header: packet.header,
            payload: packet.payload.into(),
        };
        self.packets.insert(place, kept);
        opens_gap
    }

    /// Discards the stored packets before `expected`. These packets are not needed any more: the
    /// peer has sent them again, or has transferred their bytes without packets.
    pub(super) fn discard_before(&mut self, expected: Sequence) {
        let is_old = |packet: &KeptPacket| packet.sequence().distance(expected) < 0;
        while self.packets.front().is_some_and(is_old) {
            self.packets.pop_front();
        }
    }

    /// Removes and returns the stored packet with the number `expected`, or returns `None` if this
    /// packet is not stored. Discards the stored packets before it.
    pub(super) fn take(&mut self, expected: Sequence) -> Option<KeptPacket> {
        self.discard_before(expected);
        let first = self.packets.front()?;
        if first.sequence() != expected {
            return None;
        }
        self.packets.pop_front()
    }

    /// Appends the list of kept packets to `out`, for a report to the peer. The list has a bit for
    /// each packet from the first missing packet, `expected`, on. The bit is set if the packet is
    /// kept here. The list ends after `most` bytes at the latest.
    pub(super) fn write_bits(&self, expected: Sequence, most: usize, out: &mut Vec<u8>) {
        let begin = out.len();
        for packet in &self.packets {
            let place = packet.sequence().distance(expected).max(0) as usize;
            if place / 8 >= most {
                break;
            }
            // The length of a packet without pad is a multiple of four.
            out.resize(begin + (place / 32 + 1) * 4, 0);
            out[begin + place / 8] |= 0x80 >> (place % 8);
        }
    }
}
