#![forbid(unsafe_code)]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::Range;
use std::thread;

use smallvec::SmallVec;

use super::delay::Packet;
use super::network::Network;
use super::socket::{BATCH, Datagram};
use super::tunnel;
use crate::proto::{Counter, Path};
use crate::wire::ip::Headers;

/// How often a batch is tried that the system has no room for.
const TRIES: u32 = 16;

/// Packets that are about to be sent. Each gets its ICRC when it is put in; they go, in this order, when the box is
/// full, flushed, or dropped.
///
/// A queue pair's packets must be flushed before its lock is released, or those of the next one who has the lock overtake
/// them.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    network: &'a Network,
    batch: Batch,
}

/// The packets of a box, all in one buffer that is used again.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    packets: Vec<Sealed>,
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Shipment {
    pub(super) endpoint: usize,
    pub(super) to: SocketAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: Option<u8>,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(network: &'a Network, batch: Batch) -> Self {
        Self { network, batch }
    }

    /// Puts in the packet that `write` appends, from BTH to pad, and says the way of; whether there was one.
    ///
    /// A packet that has no way is discarded and counted, as is one that the system does not take: the transport is
    /// made for that.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        let begin = self.batch.bytes.len();
        let transport = begin + tunnel::OVERHEAD;
        // Room for a tunnel's headers, whether there is one is not known before the packet is written.
        self.batch.bytes.resize(transport, 0);
        let path = write(&mut self.batch.bytes);
        if let Some(path) = &path
            && self.seal(begin, path).is_none()
        {
            self.network.counters.count(Counter::SendDiscarded, 1);
            self.batch.bytes.truncate(begin);
        }
        if path.is_none() {
            self.batch.bytes.truncate(begin);
        }
        if self.batch.packets.len() >= BATCH {
            self.flush();
        }
        path.is_some()
    }

    /// Sends all packets in the box. Never waits, but for the system to make room, and that not long.
    pub(crate) fn flush(&mut self) {
        let Self { network, batch } = self;
        let mut rest = &batch.packets[..];
        while let Some(first) = rest.first() {
            let of_endpoint =
                |packet: &&Sealed| packet.shipment.endpoint == first.shipment.endpoint;
            let run = rest.iter().take(BATCH).take_while(of_endpoint).count();
            let (packets, others) = rest.split_at(run);
            let datagrams: SmallVec<[Datagram<'_>; BATCH]> = packets
                .iter()
                .map(|packet| batch.datagram(packet))
                .collect();
            for packet in packets {
                network.capture(&packet.headers, &batch.bytes[packet.transport.clone()]);
            }
            network.ship(first.shipment.endpoint, &datagrams);
            rest = others;
        }
        batch.packets.clear();
        batch.bytes.clear();
    }

    /// Makes the bytes from `begin` on a packet of this way; none if there is no such way.
    fn seal(&mut self, begin: usize, path: &Path) -> Option<()> {
        let network = self.network;
        let bytes = &mut self.batch.bytes;
        let transport = begin + tunnel::OVERHEAD;
        let written = bytes.get(transport..)?;
        let destination = written.get(4..8)?;
        let queue_pair = u32::from_be_bytes(destination.try_into().ok()?) & 0xff_ffff;
        let way = network.way(path, queue_pair)?;
        if !network.faults.link_is_up() {
            return None;
        }
        let headers = way.route.headers(written.len());
        let icrc = headers.icrc(written);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        if way.tunnelled {
            let (ip, udp) = (headers.ip(), headers.udp());
            bytes[begin..begin + ip.len()].copy_from_slice(ip);
            bytes[begin + ip.len()..transport].copy_from_slice(udp);
        }
        let sealed = Sealed {
            datagram: if way.tunnelled { begin } else { transport }..bytes.len(),
            transport: transport..bytes.len(),
            headers,
            shipment: Shipment {
                endpoint: way.endpoint,
                to: way.to,
                traffic_class: path.traffic_class,
                hop_limit: way.hop_limit,
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
        if self.batch.packets.len() >= BATCH {
            self.flush();
        }
    }
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        self.flush();
        self.network.recycle(std::mem::take(&mut self.batch));
    }
}

impl Batch {
    fn datagram(&self, packet: &Sealed) -> Datagram<'_> {
        Datagram {
            bytes: &self.bytes[packet.datagram.clone()],
            to: packet.shipment.to,
            traffic_class: packet.shipment.traffic_class,
            hop_limit: packet.shipment.hop_limit,
        }
    }
}

impl Network {
    /// Sends datagrams by a socket. What the system has no room for after some tries is lost, as on any network.
    fn ship(&self, endpoint: usize, datagrams: &[Datagram<'_>]) {
        let Some(endpoint) = self.own.get(endpoint) else {
            return;
        };
        let (mut rest, mut tries) = (datagrams, 0);
        while !rest.is_empty() {
            match endpoint.socket.send(rest) {
                Ok(sent) if sent > 0 => {
                    rest = &rest[sent.min(rest.len())..];
                    tries = 0;
                }
                Err(error) if is_shortage(&error) => {
                    tries += 1;
                    if tries > TRIES {
                        self.counters
                            .count(Counter::SendDiscarded, rest.len() as u64);
                        return;
                    }
                    thread::yield_now();
                }
                // Too long for the interface, no route, refused by a filter: that is of the first datagram.
                _ => {
                    self.counters.count(Counter::SendDiscarded, 1);
                    rest = &rest[1..];
                }
            }
        }
    }
}

/// Whether the system may take the same datagram soon.
fn is_shortage(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}
