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
use crate::proto::{Counter, Path};
use crate::same_host::{Failure, Kept, Link};
use crate::wire::icrc;
use crate::wire::ip::Headers;

/// How often a batch is tried that the system has no room for.
const TRIES: u32 = 16;

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

/// The packets of a box, all in one buffer that is used again.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    packets: Vec<Sealed>,
    /// Which of them pass the system together.
    runs: Vec<Range<usize>>,
    /// Of packets before: the next one is likely to be as one of the last two.
    known: [Option<Known>; 2],
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

/// A packet that is ready.
#[derive(Clone, Debug)]
struct Sealed {
    /// The datagram's bytes.
    datagram: Range<usize>,
    /// Those from BTH to ICRC.
    transport: Range<usize>,
    headers: Headers,
    shipment: Shipment,
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
        if batch.packets.is_empty() {
            batch.bytes.clear();
            return;
        }
        let mut begin = 0;
        while let Some(first) = batch.packets.get(begin) {
            let run = begin..begin + network.burst(&batch.packets[begin..]);
            if first.shipment.company == Company::Numbered {
                batch.number(run.clone());
            }
            begin = run.end;
            batch.runs.push(run);
        }
        if network.is_captured() {
            for packet in &batch.packets {
                network.capture(&packet.headers, &batch.bytes[packet.transport.clone()]);
            }
        }
        network.send(batch);
        batch.packets.clear();
        batch.runs.clear();
        batch.bytes.clear();
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
        let len = written.len();
        let is_same = |known: &&Known| {
            (known.len, known.queue_pair) == (len, queue_pair) && known.path == *path
        };
        let known = match batch.known.iter().flatten().find(is_same) {
            Some(known) => known,
            None => {
                let way = network.way(path, queue_pair)?;
                let headers = way.route.headers(len);
                batch.newest ^= 1;
                batch.known[batch.newest].insert(Known {
                    path: *path,
                    queue_pair,
                    way,
                    len,
                    headers,
                    icrc: headers.begin_icrc(),
                })
            }
        };
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
            headers: *headers,
            shipment: Shipment {
                endpoint: way.endpoint,
                to: way.to,
                traffic_class: path.traffic_class,
                hop_limit: way.hop_limit,
                company: way.company,
            },
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
            self.batch.packets.push(sealed);
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
            self.batch
                .packets
                .extend(std::iter::repeat_n(sealed, copies));
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
        self.batch.packets.push(Sealed {
            datagram: begin..end,
            transport: transport..end,
            headers: packet.headers,
            shipment: packet.shipment,
        });
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
        self.packets.len() >= PACKETS || self.bytes.len() >= BYTES
    }

    /// Makes packets ones that the system numbers from 0 on: their headers, and their ICRC, which may be wrong by an accident
    /// and then stays wrong.
    fn number(&mut self, run: Range<usize>) {
        for (number, packet) in self.packets[run].iter_mut().enumerate().skip(1) {
            let number = number as u16;
            let (covered, end) = (packet.transport.len() - 4, packet.transport.end);
            packet.headers.set_identification(number);
            let difference = icrc::of_identification(number, covered).to_le_bytes();
            for (byte, difference) in self.bytes[end - 4..end].iter_mut().zip(difference) {
                *byte ^= difference;
            }
        }
    }
}

/// Whether packets of the MTU go in bursts, if those may be sent, also where one goes alone.
pub(super) fn goes_in_pages(mtu: usize) -> bool {
    mtu >= LARGE
}

/// Packets that have the same shipment as one message.
fn burst<'a>(shipment: Shipment, payloads: &'a [IoSlice<'a>], segments: bool) -> Burst<'a> {
    let segment = payloads.first().map_or(0, |first| first.len());
    let large = segments && shipment.company == Company::Any && segment >= LARGE;
    Burst {
        payloads,
        segment: u16::try_from(segment)
            .ok()
            .filter(|_| payloads.len() > 1 || large),
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
        payloads.reserve(batch.packets.len());
        for packet in &batch.packets {
            payloads.push(IoSlice::new(&batch.bytes[packet.datagram.clone()]));
        }
        let of = |run: &Range<usize>| batch.packets[run.start].shipment;
        for runs in (batch.runs).chunk_by(|a, b| of(a).endpoint == of(b).endpoint) {
            let Some(endpoint) = self.own.get(of(&runs[0]).endpoint) else {
                continue;
            };
            let socket = &endpoint.socket;
            let segments = self.segmentation != Segmentation::Never && socket.segments();
            let mut bursts: SmallVec<[Burst<'_>; 2]> = SmallVec::new();
            bursts.reserve(runs.len());
            for run in runs {
                bursts.push(burst(of(run), &payloads[run.clone()], segments));
            }
            self.ship(socket, &bursts);
        }
    }

    /// How many packets, from the first on, go as one.
    fn burst(&self, packets: &[Sealed]) -> usize {
        let Some(first) = packets.first() else {
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
        let same = packets
            .iter()
            .take_while(|packet| packet.shipment == first.shipment);
        bursts::together(same.map(|packet| packet.datagram.len()))
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
                        let lost: usize = rest.iter().map(|burst| burst.payloads.len()).sum();
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
        for payloads in burst.payloads.chunks(1) {
            let alone = Burst {
                payloads,
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
