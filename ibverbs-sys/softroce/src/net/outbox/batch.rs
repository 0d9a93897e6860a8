#![forbid(unsafe_code)]
//! The buffers of an outbox, with the packets that will be sent together.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut, Range};

use super::route_cache::RouteCache;
use crate::net::network::Network;
use crate::net::route::Batching;
use crate::net::{ALIGN, OFFSET};
use crate::wire::IcrcDifferences;
use crate::wire::ip::Headers;

/// Length in bytes of an ICRC (invariant CRC), the last field of each packet.
pub(super) const ICRC: usize = 4;

/// Number of packets at which an outbox (collection of packets that are sent together) is full, and
/// is sent. With more packets, the peer would wait longer for the first of them.
pub(super) const FULL_PACKETS: usize = 64;

/// Number of bytes at which an outbox (collection of packets that are sent together) is full, and
/// is sent. With more bytes, the peer would wait longer for the first packet. The kernel accepts at
/// most about half of this number in one message.
pub(super) const FULL_BYTES: usize = 128 << 10;

/// Packets of an outbox, in two buffers that are reused: one for single packets, one for runs
/// (consecutive packets of equal size).
#[derive(Debug, Default)]
pub(in crate::net) struct Batch {
    pub(super) bytes: Vec<u8>,
    /// Buffer for runs (consecutive packets of one size), used up to the offset `runs_end`.
    pub(super) runs: Vec<u8>,
    pub(super) runs_end: usize,
    pub(super) sealed: Vec<Encoded>,
    /// Number of packets in `sealed`. All packets of a run are counted.
    pub(super) packets: usize,
    /// Slices of adjacent datagrams that are passed to the kernel, in the order of sending.
    pub(super) pieces: Vec<Piece>,
    /// Ranges of `pieces`. The slices of each range are sent to the kernel as one message (burst).
    pub(super) bursts: Vec<Range<usize>>,
    pub(super) known: RouteCache,
    identifications: IcrcDifferences,
}

/// One packet, or a run of packets (consecutive packets of equal size), with all headers and the
/// checksum (ICRC) of each packet.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    /// Range of the first packet's datagram in its buffer. The other packets of a run follow
    /// directly.
    pub(super) datagram: Range<usize>,
    /// The range from the BTH to the ICRC of the first packet in the buffer.
    pub(super) transport: Range<usize>,
    /// Number of packets in the run (consecutive packets of one size); `None` for a single packet.
    pub(super) run: Option<usize>,
    pub(super) headers: Headers,
    pub(super) parameters: SendParameters,
}

/// Returns the offset at which the next packet begins in a buffer with packets up to the offset
/// `bytes`. The packet's payload is then aligned to [`ALIGN`] bytes.
pub(super) fn next_offset(bytes: usize) -> usize {
    bytes.saturating_sub(OFFSET).next_multiple_of(ALIGN) + OFFSET
}

/// Consecutive packets of equal size that are passed to the kernel as one slice: a single packet,
/// or consecutive packets of a run.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) sealed: usize,
    /// Indices of these packets in their run.
    packets: Range<usize>,
}

/// Socket, destination and header fields with which a datagram is sent. Datagrams with the same
/// parameters can be sent as a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) struct SendParameters {
    pub(in crate::net) endpoint: usize,
    pub(in crate::net) to: SocketAddr,
    pub(in crate::net) traffic_class: u8,
    pub(in crate::net) hop_limit: Option<u8>,
    pub(in crate::net) batching: Batching,
}

/// Packet buffers ([`Batch`]) of an outbox, from the network's pool of buffers. The buffers are
/// taken when the first packet is added to the outbox, and returned when this value is dropped.
#[derive(Debug)]
pub(super) struct PooledBatch<'a> {
    network: &'a Network,
    batch: Option<Box<Batch>>,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.packets >= FULL_PACKETS || self.bytes.len() + self.runs_end >= FULL_BYTES
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.runs_end = 0;
        self.sealed.clear();
        self.packets = 0;
        self.pieces.clear();
        self.bursts.clear();
    }

    /// Returns the socket, destination and header fields of the first packet. Returns `None` if
    /// there are fewer than two packets, which cannot form a burst.
    pub(in crate::net) fn first_of_several(&self) -> Option<&SendParameters> {
        let first = self.sealed.first().filter(|_| self.packets > 1);
        first.map(|first| &first.parameters)
    }

    /// Adds the packets of `sealed` to the packets that are to be sent, `copies` times. The packets
    /// have all headers and checksums. More than one copy is an injected fault.
    pub(super) fn put(&mut self, sealed: Encoded, copies: usize) {
        self.packets += copies * sealed.count();
        self.sealed.extend(std::iter::repeat_n(sealed, copies));
    }

    /// Returns the number of packets in this outbox. Each packet of a run is counted.
    pub(in crate::net) fn packets(&self) -> usize {
        self.packets
    }

    /// Divides the packets of the outbox into bursts. The kernel gets each burst as one message,
    /// and splits it into several datagrams (`UDP_SEGMENT`). Must be called before the packets are
    /// sent.
    pub(super) fn divide_into_bursts(&mut self, network: &Network) {
        let (mut sealed, mut packet) = (0, 0);
        while let Some(first) = self.sealed.get(sealed) {
            let batching = first.parameters.batching;
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
            if matches!(batching, Batching::Numbered | Batching::Trial) {
                self.set_identifications(burst.clone());
            }
            self.bursts.push(burst);
        }
    }

    /// Sets the IPv4 identifications of the packets in `burst` to 0, 1, 2 and so on, as the kernel
    /// does when it splits the burst. Adapts the checksum of each packet (ICRC), which covers the
    /// identification. A checksum that an injected fault has made wrong stays wrong.
    fn set_identifications(&mut self, burst: Range<usize>) {
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
                let difference = self.identifications.difference(number, covered);
                let difference = difference.to_le_bytes();
                for (byte, difference) in bytes[end - ICRC..end].iter_mut().zip(difference) {
                    *byte ^= difference;
                }
                number += 1;
            }
        }
    }

    /// Returns the bytes of `piece`: consecutive datagrams in the outbox's buffer.
    pub(super) fn datagrams(&self, piece: &Piece) -> &[u8] {
        let Encoded { datagram, run, .. } = &self.sealed[piece.sealed];
        let bytes = match run {
            Some(_) => &self.runs,
            None => &self.bytes,
        };
        let (first, size) = (datagram.start, datagram.len());
        &bytes[first + piece.packets.start * size..first + piece.packets.end * size]
    }
}

impl Encoded {
    /// Returns the number of packets in this value: 1, or more if the value describes several
    /// consecutive packets of equal size (a run).
    pub(super) fn count(&self) -> usize {
        self.run.unwrap_or(1)
    }
}

impl<'a> PooledBatch<'a> {
    /// Creates a `PooledBatch` without packet buffers. [`open`](Self::open) takes the buffers from
    /// the pool.
    pub(super) fn empty(network: &'a Network) -> Self {
        Self {
            network,
            batch: None,
        }
    }

    /// Takes packet buffers for this outbox from the network's pool, unless the outbox already has
    /// buffers. Called before a packet is added.
    pub(super) fn open(&mut self) {
        let network = self.network;
        self.batch.get_or_insert_with(|| network.batch());
    }

    /// Removes and returns the packet buffers ([`Batch`]) of this outbox. Returns `None` if the
    /// outbox has no buffers. The buffers are taken from the pool when a packet is added.
    pub(super) fn take(&mut self) -> Option<Box<Batch>> {
        self.batch.take()
    }

    /// Returns the packet buffers ([`Batch`]) of this outbox. Returns `None` if the outbox has no
    /// buffers. The buffers are taken from the pool when a packet is added.
    pub(super) fn opened(&mut self) -> Option<&mut Batch> {
        self.batch.as_deref_mut()
    }
}

impl Deref for PooledBatch<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        match &self.batch {
            Some(batch) => batch,
            None => unreachable!("it was opened"),
        }
    }
}

impl DerefMut for PooledBatch<'_> {
    fn deref_mut(&mut self) -> &mut Batch {
        match &mut self.batch {
            Some(batch) => batch,
            None => unreachable!("it was opened"),
        }
    }
}

impl Drop for PooledBatch<'_> {
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
    fn payloads_are_aligned_for_copying() {
        const RETH: usize = 16;
        let mut begin = next_offset(0);
        for length in [BASE + RETH + 4096, BASE + 4096, BASE + 1024, BASE + 13, 1] {
            assert!(
                (begin + BASE).is_multiple_of(ALIGN) && (begin + BASE + RETH).is_multiple_of(ALIGN)
            );
            let next = next_offset(begin + length + ICRC);
            assert!((begin + length + ICRC..begin + length + ICRC + ALIGN).contains(&next));
            begin = next;
        }
        // The packets of a run must be adjacent in their buffer.
        for mtu in [256, 512, 1024, 2048, 4096] {
            assert!((BASE + mtu + ICRC).is_multiple_of(ALIGN));
        }
    }
}
