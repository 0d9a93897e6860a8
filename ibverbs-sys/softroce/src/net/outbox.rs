#![forbid(unsafe_code)]

use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::thread;

use smallvec::SmallVec;

use super::bursts;
use super::delay::Packet;
use super::network::Network;
use super::route::{Company, Way};
use super::socket::{Burst, Socket};
use super::tunnel;
use crate::config::Segmentation;
use crate::proto::{Counter, Path, Run};
use crate::same_host::{Failure, Kept, Link};
use crate::wire::icrc;
use crate::wire::ip::Headers;

/// How often a batch is tried that the system has no room for.
const TRIES: u32 = 16;

/// Bytes of an ICRC.
const ICRC: usize = 4;

/// A box that has so many packets is sent.
const PACKETS: usize = 64;

/// A box that has so many bytes is sent: two bursts.
const BYTES: usize = 128 << 10;

/// A datagram of so many bytes that goes alone goes as a burst of one: the system puts it into pages then, and it takes
/// about half the memory of what else is a power of two.
const LARGE: usize = 512;

/// Packets that are about to be sent. Each gets its ICRC when it is put in; they go, in this order, when the box is
/// full, flushed, or dropped.
///
/// A queue pair's packets must be flushed before its lock is released, or those of the next one who has the lock overtake
/// them.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    network: &'a Network,
    batch: Lent<'a>,
    /// Where packets go through shared memory.
    shared: Option<Shared>,
    /// Who shares memory is woken later.
    is_quiet: bool,
}

/// Where packets go through shared memory.
#[derive(Debug)]
struct Shared {
    link: Arc<Link>,
    /// What they say there.
    tag: u16,
    /// Whose they are.
    queue_pair: u32,
    /// Some have gone, for which nobody was woken yet.
    has_sent: bool,
}

/// The packets of a box, which it has from the first one on, and gives back for the next use.
#[derive(Debug)]
struct Lent<'a> {
    network: &'a Network,
    batch: Option<Box<Batch>>,
}

/// The packets of a box, in two buffers that are used again.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// What runs are in, from the beginning to `runs_end`.
    runs: Vec<u8>,
    runs_end: usize,
    sealed: Vec<Sealed>,
    /// How many packets those are.
    packets: usize,
    /// What goes to the system.
    pieces: Vec<Piece>,
    /// Which of these pass it together.
    bursts: Vec<Range<usize>>,
    known: Lately,
}

/// What was found out for packets before: the next one is likely to be as one of the last.
#[derive(Debug, Default)]
struct Lately {
    known: [Option<Known>; 4],
    /// The one that was found out last.
    newest: usize,
}

/// What was found out for a packet: the way, and the headers for a length from BTH to pad.
#[derive(Clone, Copy, Debug)]
struct Known {
    path: Path,
    queue_pair: u32,
    way: Way,
    len: usize,
    headers: Headers,
    icrc: icrc::Begun,
}

/// A packet that is ready, or a run of them.
#[derive(Clone, Debug)]
struct Sealed {
    /// The bytes of the first one's datagram. Those of a run stand one behind the other in the buffer for runs.
    datagram: Range<usize>,
    /// Those from BTH to ICRC.
    transport: Range<usize>,
    /// How many they are; none: it is no run.
    run: Option<usize>,
    headers: Headers,
    shipment: Shipment,
}

/// Packets of what is sealed, which are behind each other.
#[derive(Clone, Debug)]
struct Piece {
    sealed: usize,
    /// Which of them.
    packets: Range<usize>,
}

/// What a datagram needs beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shipment {
    pub(super) endpoint: usize,
    pub(super) to: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: Option<u8>,
    pub(super) company: Company,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(network: &'a Network) -> Self {
        Self {
            network,
            batch: Lent {
                network,
                batch: None,
            },
            shared: None,
            is_quiet: false,
        }
    }

    /// The same, but who shares memory is woken later.
    pub(crate) fn quiet(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    /// Whether who shares memory is woken later.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Puts in the packet that `write` appends, from BTH to pad, and says the way of; whether there was one.
    ///
    /// A packet that has no way is discarded and counted, as is one that the system does not take: the transport is
    /// made for that. Where shared memory has no room for one, none is asked for.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        let shared = self.shared.as_ref();
        if shared.is_some_and(|shared| !shared.link.may_send(shared.queue_pair)) {
            return false;
        }
        self.open();
        let begin = self.batch.bytes.len();
        let transport = begin + tunnel::OVERHEAD;
        // Room for a tunnel's headers, whether there is one is not known before the packet is written.
        self.batch.bytes.resize(transport, 0);
        let path = write(&mut self.batch.bytes);
        if path.is_some() && self.share(transport).is_some() {
            self.batch.bytes.truncate(begin);
        } else if let Some(path) = &path
            && self.seal(begin, path).is_none()
        {
            self.network.counters.count(Counter::SendDiscarded, 1);
            self.batch.bytes.truncate(begin);
        }
        if path.is_none() {
            self.batch.bytes.truncate(begin);
        }
        if self.batch.is_full() {
            self.flush();
        }
        path.is_some()
    }

    /// Puts in packets of a run, from BTH to pad at the fronts of parts that `write` is given to write to. False: this is no place for
    /// a run, or `write` could not, and nothing is put in.
    pub(crate) fn push_run(
        &mut self,
        run: &Run,
        write: impl FnOnce(usize, &mut [u8]) -> bool,
    ) -> bool {
        let network = self.network;
        if self.shared.is_some() || network.is_captured() || !network.faults.spare_packets() {
            return false;
        }
        self.open();
        let batch: &mut Batch = &mut self.batch;
        let (stride, begin) = (run.length + ICRC, batch.runs_end);
        let room = (BYTES.saturating_sub(begin) / stride).min(PACKETS - batch.packets);
        let count = run.count.min(room);
        let known = (batch.known).of(network, &run.path, run.destination, run.length);
        let Some(known) = known.filter(|known| count > 1 && !known.way.tunnelled) else {
            return false;
        };
        // Once: what is written to later on is what was written to before.
        batch.runs.resize(BYTES, 0);
        let end = begin + count * stride;
        let bytes = &mut batch.runs[begin..end];
        if !write(count, bytes) {
            return false;
        }
        for packet in bytes.chunks_exact_mut(stride) {
            let (transport, icrc) = packet.split_at_mut(run.length);
            icrc.copy_from_slice(&known.icrc.finish(transport).to_le_bytes());
        }
        let counters = &network.counters;
        counters.count(Counter::SentPackets, count as u64);
        counters.count(Counter::SentBytes, (end - begin) as u64);
        batch.sealed.push(Sealed {
            datagram: begin..begin + stride,
            transport: begin..begin + stride,
            run: Some(count),
            headers: known.headers,
            shipment: known.shipment(),
        });
        batch.runs_end = end;
        batch.packets += count;
        if batch.is_full() {
            self.flush();
        }
        true
    }

    /// Changes a bit of the runs in the box.
    #[cfg(test)]
    pub(super) fn damage(&mut self, byte: usize) {
        self.batch.runs[byte] ^= 1;
    }

    /// Sends all packets in the box. Never waits, but for the system to make room, and that not long.
    pub(crate) fn flush(&mut self) {
        if let Some(shared) = &mut self.shared
            && std::mem::take(&mut shared.has_sent)
        {
            if self.is_quiet {
                shared.link.flush_later();
            } else {
                shared.link.flush();
            }
        }
        let network = self.network;
        let Some(batch) = &mut self.batch.batch else {
            return;
        };
        if batch.sealed.is_empty() {
            batch.bytes.clear();
            return;
        }
        batch.arrange(network);
        if network.is_captured() {
            // There are no runs then.
            for packet in &batch.sealed {
                network.capture(&packet.headers, &batch.bytes[packet.transport.clone()]);
            }
        }
        network.send(batch);
        batch.clear();
    }

    /// What is pushed from now on is one queue pair's, and goes to a process through shared memory, where the tag says of
    /// which GIDs it is.
    pub(crate) fn through(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        self.shared = Some(Shared {
            link: Arc::clone(link),
            tag,
            queue_pair,
            has_sent: false,
        });
    }

    /// Has a buffer, from the first packet on.
    fn open(&mut self) {
        let network = self.network;
        self.batch.batch.get_or_insert_with(|| network.batch());
    }

    /// Sends the bytes from `begin` on through shared memory. None: there is none.
    fn share(&mut self, begin: usize) -> Option<()> {
        let shared = self.shared.as_mut()?;
        let written = self.batch.bytes.get(begin..)?;
        match shared.link.send(shared.tag, written) {
            Ok(()) => shared.has_sent = true,
            Err(Failure::Full) => {
                let kept = Kept::Packet(written.into());
                shared.link.keep(shared.tag, kept);
            }
            Err(Failure::Dead) => return None,
        }
        let counters = &self.network.counters;
        counters.count(Counter::SentPackets, 1);
        counters.count(Counter::SentBytes, written.len() as u64);
        Some(())
    }

    /// Makes the bytes from `begin` on a packet of this way; none if there is no such way.
    fn seal(&mut self, begin: usize, path: &Path) -> Option<()> {
        let network = self.network;
        let batch: &mut Batch = &mut self.batch;
        let bytes = &mut batch.bytes;
        let transport = begin + tunnel::OVERHEAD;
        let written = bytes.get(transport..)?;
        let destination = written.get(4..8)?;
        let queue_pair = u32::from_be_bytes(destination.try_into().ok()?) & 0xff_ffff;
        let known = (batch.known).of(network, path, queue_pair, written.len())?;
        let (way, headers) = (&known.way, &known.headers);
        if !network.faults.link_is_up() {
            return None;
        }
        let icrc = known.icrc.finish(written);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        if way.tunnelled {
            let (ip, udp) = (headers.ip(), headers.udp());
            bytes[begin..begin + ip.len()].copy_from_slice(ip);
            bytes[begin + ip.len()..transport].copy_from_slice(udp);
        }
        let sealed = Sealed {
            datagram: if way.tunnelled { begin } else { transport }..bytes.len(),
            transport: transport..bytes.len(),
            run: None,
            headers: *headers,
            shipment: known.shipment(),
        };
        network.counters.count(Counter::SentPackets, 1);
        network
            .counters
            .count(Counter::SentBytes, sealed.transport.len() as u64);
        self.commit(sealed);
        Some(())
    }

    /// Puts the packet at the end of the buffer into the box, unless it has an accident.
    fn commit(&mut self, sealed: Sealed) {
        let network = self.network;
        let Some(fate) = network.faults.fate(sealed.transport.len()) else {
            self.batch.put(sealed, 1);
            return;
        };
        if fate.lost {
            self.batch
                .bytes
                .truncate(sealed.transport.start - tunnel::OVERHEAD);
            return;
        }
        if let Some(bit) = fate.flipped {
            self.batch.bytes[sealed.transport.start + bit / 8] ^= 1 << (bit % 8);
        }
        let copies = if fate.doubled { 2 } else { 1 };
        if fate.overtaken == 0 && fate.latency.is_zero() {
            self.batch.put(sealed, copies);
            let overtaken = network.delay.pass();
            overtaken.into_iter().for_each(|packet| self.put(packet));
            return;
        }
        for _ in 0..copies {
            let packet = Packet {
                headers: sealed.headers,
                tunnelled: sealed.datagram != sealed.transport,
                bytes: self.batch.bytes[sealed.transport.clone()].into(),
                shipment: sealed.shipment,
            };
            let now = network.timers.now();
            if !network
                .delay
                .hold(packet, fate.overtaken, now, fate.latency)
            {
                network.counters.count(Counter::SendDiscarded, 1);
            }
        }
        self.batch
            .bytes
            .truncate(sealed.transport.start - tunnel::OVERHEAD);
        if let Some(next) = network.delay.next_due() {
            network
                .timers
                .note(super::network::DELAY, network.delay.alarm(), next);
        }
    }

    /// Puts in a packet that was held back.
    pub(super) fn put(&mut self, packet: Packet) {
        self.open();
        let begin = self.batch.bytes.len();
        if packet.tunnelled {
            packet.headers.emit(&mut self.batch.bytes);
        }
        let transport = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(&packet.bytes);
        let end = self.batch.bytes.len();
        let sealed = Sealed {
            datagram: begin..end,
            transport: transport..end,
            run: None,
            headers: packet.headers,
            shipment: packet.shipment,
        };
        self.batch.put(sealed, 1);
        if self.batch.is_full() {
            self.flush();
        }
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

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Batch {
    fn is_full(&self) -> bool {
        self.packets >= PACKETS || self.bytes.len() + self.runs_end >= BYTES
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.runs_end = 0;
        self.sealed.clear();
        self.packets = 0;
        self.pieces.clear();
        self.bursts.clear();
    }

    /// Puts in a packet, perhaps more than once.
    fn put(&mut self, sealed: Sealed, copies: usize) {
        self.sealed.extend(std::iter::repeat_n(sealed, copies));
        self.packets += copies;
    }

    /// Finds out what passes the system together.
    fn arrange(&mut self, network: &Network) {
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
    fn datagrams(&self, piece: &Piece) -> &[u8] {
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
    fn count(&self) -> usize {
        self.run.unwrap_or(1)
    }
}

impl Lately {
    /// What is to be known of packets of this way that have `len` bytes from BTH to pad; none if there is no such way.
    fn of(
        &mut self,
        network: &Network,
        path: &Path,
        queue_pair: u32,
        len: usize,
    ) -> Option<&Known> {
        let is_same = |known: &Option<Known>| {
            known.as_ref().is_some_and(|known| {
                (known.len, known.queue_pair) == (len, queue_pair) && known.path == *path
            })
        };
        let place = match self.known.iter().position(is_same) {
            Some(place) => place,
            None => {
                let way = network.way(path, queue_pair)?;
                let headers = way.route.headers(len);
                self.newest = (self.newest + 1) % self.known.len();
                self.known[self.newest] = Some(Known {
                    path: *path,
                    queue_pair,
                    way,
                    len,
                    headers,
                    icrc: headers.begin_icrc(),
                });
                self.newest
            }
        };
        self.known[place].as_ref()
    }
}

impl Known {
    fn shipment(&self) -> Shipment {
        Shipment {
            endpoint: self.way.endpoint,
            to: self.way.to,
            traffic_class: self.path.traffic_class,
            hop_limit: self.way.hop_limit,
            company: self.way.company,
        }
    }
}

/// Whether packets of the MTU go in bursts, if those may be sent, also where one goes alone.
pub(super) fn goes_in_pages(mtu: usize) -> bool {
    mtu >= LARGE
}

/// Packets that have the same shipment as one message; `segment` is the size of the first datagram.
fn burst<'a>(
    shipment: Shipment,
    payloads: &'a [IoSlice<'a>],
    segment: usize,
    segments: bool,
) -> Burst<'a> {
    let large = segments && shipment.company == Company::Any && segment >= LARGE;
    let is_alone = payloads.len() == 1 && payloads[0].len() == segment;
    Burst {
        payloads,
        segment: u16::try_from(segment).ok().filter(|_| !is_alone || large),
        to: shipment.to,
        traffic_class: shipment.traffic_class,
        hop_limit: shipment.hop_limit,
    }
}

impl Network {
    /// Sends a box's packets; each run of them is a burst.
    fn send(&self, batch: &Batch) {
        // Most often there is one, and an acknowledgement behind it.
        let mut payloads: SmallVec<[IoSlice<'_>; 2]> = SmallVec::new();
        payloads.reserve(batch.pieces.len());
        for piece in &batch.pieces {
            payloads.push(IoSlice::new(batch.datagrams(piece)));
        }
        let of = |pieces: &Range<usize>| &batch.sealed[batch.pieces[pieces.start].sealed];
        let socket_of = |pieces: &Range<usize>| of(pieces).shipment.endpoint;
        for all in (batch.bursts).chunk_by(|a, b| socket_of(a) == socket_of(b)) {
            let Some(endpoint) = self.own.get(socket_of(&all[0])) else {
                continue;
            };
            let socket = &endpoint.socket;
            let segments = self.segmentation != Segmentation::Never && socket.segments();
            let mut bursts: SmallVec<[Burst<'_>; 2]> = SmallVec::new();
            bursts.reserve(all.len());
            for pieces in all {
                let first = of(pieces);
                let segment = first.datagram.len();
                let payloads = &payloads[pieces.clone()];
                bursts.push(burst(first.shipment, payloads, segment, segments));
            }
            self.ship(socket, &bursts);
        }
    }

    /// How many packets go as one, from that on of the first run which is the `packet`th.
    fn burst(&self, sealed: &[Sealed], packet: usize) -> usize {
        let Some(first) = sealed.first() else {
            return 0;
        };
        let allowed = match (self.segmentation, first.shipment.company) {
            (Segmentation::Never, _) | (_, Company::None) => false,
            (Segmentation::Peers, Company::Numbered) => false,
            (Segmentation::Peers | Segmentation::Always, _) => true,
        };
        let socket = self.own.get(first.shipment.endpoint);
        if !allowed || !socket.is_some_and(|own| own.socket.segments()) {
            return 1;
        }
        let same = (sealed.iter()).take_while(|sealed| sealed.shipment == first.shipment);
        let sizes = same.flat_map(|s| std::iter::repeat_n(s.datagram.len(), s.count()));
        bursts::together(sizes.skip(packet))
    }

    /// Sends bursts by a socket. What the system has no room for after some tries is lost, as on any network.
    fn ship(&self, socket: &Socket, bursts: &[Burst<'_>]) {
        let (mut rest, mut tries) = (bursts, 0);
        while let Some(first) = rest.first() {
            match socket.send(rest) {
                Ok(sent) if sent > 0 => {
                    rest = &rest[sent.min(rest.len())..];
                    tries = 0;
                }
                Err(error) if is_shortage(&error) => {
                    tries += 1;
                    if tries > TRIES {
                        let lost: usize = rest.iter().map(Burst::datagrams).sum();
                        self.counters.count(Counter::SendDiscarded, lost as u64);
                        return;
                    }
                    thread::yield_now();
                }
                Err(error) if first.segment.is_some() => {
                    // The interface cannot take bursts apart (udp(7)); other reasons may be those of this one.
                    if error.raw_os_error() == Some(libc::EIO) {
                        socket.stop_segments();
                    }
                    self.ship_apart(socket, first);
                    rest = &rest[1..];
                }
                // Too long for the interface, no route, refused by a filter: that is of the first datagram.
                _ => {
                    self.counters.count(Counter::SendDiscarded, 1);
                    rest = &rest[1..];
                }
            }
        }
    }

    /// Sends each datagram of a burst by itself.
    fn ship_apart(&self, socket: &Socket, burst: &Burst<'_>) {
        let size = burst.segment.map_or(usize::MAX, usize::from);
        for datagram in burst
            .payloads
            .iter()
            .flat_map(|payload| payload.chunks(size))
        {
            let alone = Burst {
                payloads: &[IoSlice::new(datagram)],
                segment: None,
                ..*burst
            };
            self.ship(socket, &[alone]);
        }
    }
}

/// Whether the system may take the same datagram soon.
fn is_shortage(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
