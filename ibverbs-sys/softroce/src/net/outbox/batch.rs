#![forbid(unsafe_code)]
//! What is in a box.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut, Range};

use super::known::Lately;
use crate::net::network::Network;
use crate::net::route::Company;
use crate::net::{FRONT, GRAIN};
use crate::wire::icrc;
use crate::wire::ip::Headers;

/// Bytes of an ICRC.
pub(super) const ICRC: usize = 4;

/// A box that has so many packets is sent.
pub(super) const PACKETS: usize = 64;

/// A box that has so many bytes is sent: two bursts.
pub(super) const BYTES: usize = 128 << 10;

/// The packets of a box, in two buffers that are used again.
#[derive(Debug, Default)]
pub(in crate::net) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// What runs are in, from the beginning to `runs_end`.
    pub(super) runs: Vec<u8>,
    pub(super) runs_end: usize,
    pub(super) sealed: Vec<Sealed>,
    /// How many packets those are.
    pub(super) packets: usize,
    /// What goes to the system.
    pub(super) pieces: Vec<Piece>,
    /// Which of these pass it together.
    pub(super) bursts: Vec<Range<usize>>,
    pub(super) known: Lately,
}

/// A packet that is ready, or a run of them.
#[derive(Clone, Debug)]
pub(super) struct Sealed {
    /// The bytes of the first one's datagram. Those of a run stand one behind the other in the buffer for runs.
    pub(super) datagram: Range<usize>,
    /// Those from BTH to ICRC.
    pub(super) transport: Range<usize>,
    /// How many they are; none: it is no run.
    pub(super) run: Option<usize>,
    pub(super) headers: Headers,
    pub(super) shipment: Shipment,
}

/// Where a packet begins that is put behind so many bytes.
pub(super) fn place_behind(bytes: usize) -> usize {
    bytes.saturating_sub(FRONT).next_multiple_of(GRAIN) + FRONT
}

/// Packets of what is sealed, which are behind each other.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) sealed: usize,
    /// Which of them.
    packets: Range<usize>,
}

/// What a datagram needs beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) struct Shipment {
    pub(in crate::net) endpoint: usize,
    pub(in crate::net) to: SocketAddr,
    pub(in crate::net) traffic_class: u8,
    pub(in crate::net) hop_limit: Option<u8>,
    pub(in crate::net) company: Company,
}

/// The packets of a box, which it has from the first one on, and gives back for the next use.
#[derive(Debug)]
pub(super) struct Lent<'a> {
    network: &'a Network,
    batch: Option<Box<Batch>>,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.packets >= PACKETS || self.bytes.len() + self.runs_end >= BYTES
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.runs_end = 0;
        self.sealed.clear();
        self.packets = 0;
        self.pieces.clear();
        self.bursts.clear();
    }

    /// Puts in a packet, perhaps more than once.
    pub(super) fn put(&mut self, sealed: Sealed, copies: usize) {
        self.sealed.extend(std::iter::repeat_n(sealed, copies));
        self.packets += copies;
    }

    /// Finds out what passes the system together.
    pub(super) fn arrange(&mut self, network: &Network) {
        let (mut sealed, mut packet) = (0, 0);
        while let Some(first) = self.sealed.get(sealed) {
            let company = first.shipment.company;
            let mut left = network.burst(&self.sealed[sealed..], packet);
            let begin = self.pieces.len();
            while left > 0 {
                let all = self.sealed[sealed].count();
                let end = all.min(packet + left);
                left -= end - packet;
                let packets = packet..end;
                self.pieces.push(Piece { sealed, packets });
                (sealed, packet) = if end == all {
                    (sealed + 1, 0)
                } else {
                    (sealed, end)
                };
            }
            let burst = begin..self.pieces.len();
            if company == Company::Numbered {
                self.number(burst.clone());
            }
            self.bursts.push(burst);
        }
    }

    /// Makes packets ones that the system numbers from 0 on: their headers, and their ICRC, which may be wrong by an accident
    /// and then stays wrong.
    fn number(&mut self, burst: Range<usize>) {
        let mut number = 0;
        for piece in &self.pieces[burst] {
            let sealed = &mut self.sealed[piece.sealed];
            let stride = sealed.datagram.len();
            let covered = sealed.transport.len() - ICRC;
            let bytes = match sealed.run {
                Some(_) => &mut self.runs,
                None => &mut self.bytes,
            };
            for packet in piece.packets.clone() {
                if sealed.run.is_none() {
                    sealed.headers.set_identification(number);
                }
                let end = sealed.transport.end + packet * stride;
                let difference = icrc::of_identification(number, covered).to_le_bytes();
                for (byte, difference) in bytes[end - ICRC..end].iter_mut().zip(difference) {
                    *byte ^= difference;
                }
                number += 1;
            }
        }
    }

    /// The datagrams of a piece, one behind the other.
    pub(super) fn datagrams(&self, piece: &Piece) -> &[u8] {
        let Sealed { datagram, run, .. } = &self.sealed[piece.sealed];
        let bytes = match run {
            Some(_) => &self.runs,
            None => &self.bytes,
        };
        let (first, size) = (datagram.start, datagram.len());
        &bytes[first + piece.packets.start * size..first + piece.packets.end * size]
    }
}

impl Sealed {
    /// How many packets it is.
    pub(super) fn count(&self) -> usize {
        self.run.unwrap_or(1)
    }
}

impl<'a> Lent<'a> {
    /// None so far.
    pub(super) fn none(network: &'a Network) -> Self {
        Self {
            network,
            batch: None,
        }
    }

    /// Has one from now on.
    pub(super) fn open(&mut self) {
        let network = self.network;
        self.batch.get_or_insert_with(|| network.batch());
    }

    /// It, if there is one.
    pub(super) fn opened(&mut self) -> Option<&mut Batch> {
        self.batch.as_deref_mut()
    }
}

impl Deref for Lent<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        match &self.batch {
            Some(batch) => batch,
            None => unreachable!("it was opened"),
        }
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Batch {
        match &mut self.batch {
            Some(batch) => batch,
            None => unreachable!("it was opened"),
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.network.recycle(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::BASE;

    #[test]
    fn payloads_are_where_they_are_copied_fast() {
        const RETH: usize = 16;
        let mut begin = place_behind(0);
        for length in [BASE + RETH + 4096, BASE + 4096, BASE + 1024, BASE + 13, 1] {
            assert!(
                (begin + BASE).is_multiple_of(GRAIN) && (begin + BASE + RETH).is_multiple_of(GRAIN)
            );
            let next = place_behind(begin + length + ICRC);
            assert!((begin + length + ICRC..begin + length + ICRC + GRAIN).contains(&next));
            begin = next;
        }
        // Those of a run follow each other.
        for mtu in [256, 512, 1024, 2048, 4096] {
            assert!((BASE + mtu + ICRC).is_multiple_of(GRAIN));
        }
    }
}
