#![forbid(unsafe_code)]
//! The outbox: adds the route and the ICRC to packets, and collects packets that are sent together.

mod batch;
mod route_cache;
mod send;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use super::delay::Packet;
use super::network::Network;
use super::route::Batching;
use super::{shared, tunnel};
use crate::address::MULTICAST;
use crate::proto::{Counter, Path, Run};
use crate::same_host::{DelayedPacket, Link, SendError};
use crate::transfer::Volume;
use crate::wire::Opcode;
use batch::{Encoded, FULL_BYTES, FULL_PACKETS, ICRC, PooledBatch, next_offset};

pub(super) use batch::{Batch, SendParameters};
pub(super) use send::uses_pages;

/// First byte of packets that are sent only through shared memory, never through a socket: the
/// opcode [`Opcode::SKIP`].
const SHARED_MEMORY_ONLY: u8 = Opcode::SKIP.to_byte();

/// Collection of packets that are sent together. Each packet gets its ICRC when it is added. All
/// packets are sent, in order, when the outbox is full, flushed, or dropped.
///
/// The packets of a queue pair must be flushed before the queue pair is unlocked. Otherwise packets
/// of another thread could overtake them.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    network: &'a Network,
    batch: PooledBatch<'a>,
    /// Link (shared memory with another process) through which packets are sent, or `None` if
    /// packets are sent by a socket.
    shared: Option<SharedPath>,
    /// State of datagrams that are sent through shared memory where possible. `None` if datagrams
    /// are sent by sockets only.
    datagrams: Option<Datagrams>,
    /// Set while wakeups of peer processes that share memory are deferred. This outbox then does
    /// not wake the peers, and the sending thread or the engine (background thread) wakes them
    /// later.
    is_quiet: bool,
    /// Set if the packets have been held back already, so that no injected latency applies.
    is_delayed: bool,
    /// Number and length of packets that were sent through shared memory and are not included in
    /// the device's counters yet.
    shares: SharedVolume,
}

/// Number and length of packets that were sent through shared memory. The sender's counters are
/// increased by these values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedVolume {
    pub(crate) packets: u64,
    /// Total length of the packets in bytes, from BTH to pad.
    pub(crate) bytes: u64,
    /// Number and length of the messages to which the packets belong.
    pub(crate) volume: Volume,
}

impl SharedVolume {
    /// Adds a packet to these counts of packets and bytes that were sent through shared memory.
    /// `packet` is the packet without the IP and UDP headers and the checksum (ICRC).
    fn add(&mut self, packet: &[u8]) {
        self.packets += 1;
        self.bytes += packet.len() as u64;
        let [first, flags, ..] = packet else {
            return;
        };
        if let Some(opcode) = Opcode::from_byte(*first) {
            let others = opcode.header_len() + usize::from(flags >> 4 & 3);
            let length = packet.len().saturating_sub(others);
            self.volume.add_packet(opcode, length);
        }
    }
}

/// Link (shared memory with another process) through which the packets of a queue pair are sent.
#[derive(Debug)]
struct SharedPath {
    link: Arc<Link>,
    /// Tag of the packets: the indices of their GIDs in the tables of the two processes.
    tag: u16,
    /// Number of the queue pair that sends the packets.
    queue_pair: u32,
    /// Set if packets were sent for which the peer process has not been woken yet.
    has_sent: bool,
}

/// Processes that an outbox (collection of packets) must still handle after sending datagrams: a
/// process to wake, and a process with which memory must still be shared. Datagrams of the same
/// outbox may go to different processes.
#[derive(Debug, Default)]
struct Datagrams {
    /// Link (shared memory) to the process to which the last datagrams were sent, and which must
    /// still be woken.
    last: Option<Arc<Link>>,
    /// Address of a process to which a datagram was sent by a socket because no memory is shared
    /// with the process yet.
    unknown: Option<SocketAddr>,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(network: &'a Network) -> Self {
        Self {
            network,
            batch: PooledBatch::empty(network),
            shared: None,
            datagrams: None,
            is_quiet: false,
            is_delayed: false,
            shares: SharedVolume::default(),
        }
    }

    /// Sets whether this outbox defers wakeups of peer processes that share memory. `is_quiet` is
    /// `true` to defer wakeups. The caller must then ensure that the peers are woken later.
    pub(crate) fn deferring_wakeups(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    /// Makes this outbox (collection of packets) send its packets without the injected latency,
    /// because the packets were already held back.
    pub(super) fn without_latency(mut self) -> Self {
        self.is_delayed = true;
        self
    }

    /// Returns whether this outbox (collection of packets) defers the wakeups of peer processes
    /// that share memory. If so, a caller that sends through a link must also defer the wakeup, by
    /// [`Link::flush_later`].
    pub(crate) fn defers_wakeups(&self) -> bool {
        self.is_quiet
    }

    /// Adds one packet to this outbox, and returns `true`. `write` appends the packet to the
    /// buffer, without the IP and UDP headers and the checksum, and returns the path of the packet.
    /// If the packet cannot be sent on its path, discards the packet and counts it as discarded.
    /// The transport later handles the packet like a lost packet.
    ///
    /// Returns `false` if `write` has returned `None`, because there is no packet. Also returns
    /// `false`, without calling `write`, if packets must go through shared memory that has no free
    /// space.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool {
        let shared = self.shared.as_ref();
        if shared.is_some_and(|shared| !shared.link.may_send(shared.queue_pair)) {
            return false;
        }
        self.batch.open();
        let begin = next_offset(self.batch.bytes.len());
        let transport = begin + tunnel::OVERHEAD;
        // Reserves space for the headers of a tunnel, because the path is not known before the
        // packet is written.
        self.batch.bytes.resize(transport, 0);
        let path = write(&mut self.batch.bytes);
        let Some(path) = &path else {
            self.batch.bytes.truncate(begin);
            return false;
        };
        let is_private = self.batch.bytes.get(transport) == Some(&SHARED_MEMORY_ONLY);
        if self.send_shared(transport).is_some() || self.share_datagram(transport, path).is_some() {
            self.batch.bytes.truncate(begin);
        } else if is_private {
            self.send_through_memory_only(transport, path);
            self.batch.bytes.truncate(begin);
        } else if self.complete(begin, path).is_none() {
            self.network.counters.count(Counter::SendDiscarded, 1);
            self.batch.bytes.truncate(begin);
        }
        if self.batch.is_full() {
            self.flush();
        }
        true
    }

    /// Adds the packets of `run` to this outbox, or only the first packets of `run`. The packets of
    /// a run are consecutive, have equal size, and belong to one message. Calls `write` with the
    /// number of packets and a buffer, which has a part of equal length for each packet. `write`
    /// must write each packet, without the IP and UDP headers and the checksum, to the beginning of
    /// its part.
    ///
    /// Returns `false`, and adds nothing, if `write` fails or if the packets cannot be sent
    /// together, for example because they go through shared memory. The caller must then add each
    /// packet separately.
    pub(crate) fn push_run(
        &mut self,
        run: &Run,
        write: impl FnOnce(usize, &mut [u8]) -> bool,
    ) -> bool {
        let network = self.network;
        if self.shared.is_some() || network.is_captured() {
            return false;
        }
        self.batch.open();
        let batch: &mut Batch = &mut self.batch;
        let (stride, begin) = (run.length + ICRC, next_offset(batch.runs_end));
        let room = (FULL_BYTES.saturating_sub(begin) / stride).min(FULL_PACKETS - batch.packets);
        let count = run.count.min(room);
        let known = (batch.known).of(network, &run.path, run.destination, run.length);
        let Some(known) = known.filter(|known| count > 1 && !known.way.tunnelled) else {
            return false;
        };
        let Some(lost) = network.faults.lost_in_run(stride, count) else {
            return false;
        };
        // The buffer is initialized only once, because all of it is overwritten later.
        batch.runs.resize(FULL_BYTES, 0);
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
        let (headers, parameters) = (known.headers, known.parameters());
        for packets in kept(lost, count) {
            let begin = begin + packets.start * stride;
            let run = Encoded {
                datagram: begin..begin + stride,
                transport: begin..begin + stride,
                run: Some(packets.len()),
                headers,
                parameters,
            };
            batch.put(run, 1);
        }
        batch.runs_end = end;
        if batch.is_full() {
            self.flush();
        }
        true
    }

    /// Flips a bit of a packet in this outbox, so that a test can check that the receiver drops the
    /// packet. `byte` is the index of the byte in the buffer for runs (consecutive packets of equal
    /// size).
    #[cfg(test)]
    pub(super) fn damage(&mut self, byte: usize) {
        self.batch.runs[byte] ^= 1;
    }

    /// Sends all packets of the outbox. Never blocks. If the kernel has no buffer space, yields to
    /// the scheduler a few times, and then discards the remaining packets.
    pub(crate) fn flush(&mut self) {
        if let Some(shared) = &mut self.shared
            && std::mem::take(&mut shared.has_sent)
        {
            let link = Arc::clone(&shared.link);
            self.wake(&link);
        }
        if let Some(last) = (self.datagrams.as_mut()).and_then(|datagrams| datagrams.last.take()) {
            self.wake(&last);
        }
        let network = self.network;
        let Some(batch) = self.batch.opened() else {
            return;
        };
        if batch.sealed.is_empty() {
            batch.clear();
            return;
        }
        let latency = network.faults.latency();
        if self.is_delayed || latency.is_zero() {
            network.transmit(batch);
        } else if let Some(batch) = self.batch.take() {
            network.hold(batch, latency);
        }
    }

    /// Makes the packets of this outbox a [trial](super::trial): a burst that tests whether the
    /// peer accepts packets that the kernel has split. Without this call, the packets would be sent
    /// as a burst only after a successful trial.
    pub(super) fn make_trial(&mut self) {
        for sealed in self
            .batch
            .opened()
            .iter_mut()
            .flat_map(|batch| &mut batch.sealed)
        {
            sealed.parameters.batching = Batching::Trial;
        }
    }

    /// Makes this outbox send packets through `link` (memory shared with the peer process) instead
    /// of a socket. Applies to all packets that are added from now on. The queue pair with the
    /// number `queue_pair` must send all these packets. `tag` contains the indices of the packets'
    /// source and destination GIDs, for the peer process.
    pub(crate) fn use_link(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        self.shared = Some(SharedPath {
            link: Arc::clone(link),
            tag,
            queue_pair,
            has_sent: false,
        });
    }

    /// Makes this outbox send datagrams through memory that is shared with their receivers, instead
    /// of a socket. Applies to all datagrams that are added from now on. If no memory is shared
    /// with a receiver, or if the memory has no free space, the datagram is sent by a socket.
    pub(crate) fn share_datagrams(&mut self) {
        self.datagrams.get_or_insert_default();
    }

    /// Returns the number and length of packets that were sent through shared memory since the last
    /// call.
    pub(crate) fn take_shared_volume(&mut self) -> SharedVolume {
        std::mem::take(&mut self.shares)
    }

    /// Removes and returns the address of a process to which datagrams were sent by a socket,
    /// because no memory is shared with the process yet. The caller can then request shared memory
    /// for later datagrams. Returns `None` if there is no such process.
    pub(crate) fn take_unlinked_peer(&mut self) -> Option<SocketAddr> {
        self.datagrams.as_mut()?.unknown.take()
    }

    /// Sends a datagram through memory that is shared with the receiver. The datagram begins at
    /// offset `begin` of the outbox's buffer. Returns `Some` if the datagram was sent, and `None`
    /// if it must be sent by a socket.
    fn share_datagram(&mut self, begin: usize, path: &Path) -> Option<()> {
        let datagrams = self.datagrams.as_mut()?;
        let network = self.network;
        let written = self.batch.bytes.get(begin..)?;
        let number = destination_queue_pair(written).filter(|&number| number != MULTICAST)?;
        let way = network.way(path, number)?;
        let Some(link) = network.link_to(way.to) else {
            datagrams.unknown = Some(way.to);
            return None;
        };
        let mut route = way.route;
        if !way.tunnelled {
            route.flow_label = 0;
        }
        let tag = shared::tag(path, &link).filter(|_| link.has_room())?;
        let sent = link.send(tag, shared::annotation(&route), written);
        sent.ok()?;
        self.shares.add(written);
        match datagrams.last.replace(link) {
            Some(before)
                if (datagrams.last.as_ref()).is_some_and(|link| !Arc::ptr_eq(link, &before)) =>
            {
                self.wake(&before);
            }
            _ => {}
        }
        Some(())
    }

    fn wake(&self, link: &Link) {
        if self.is_quiet {
            link.flush_later();
        } else {
            link.flush();
        }
    }

    /// Sends the packet that begins at offset `begin` of the packet buffer through shared memory.
    /// [`use_link`](Self::use_link) must have set the shared memory before. Returns `None`, and
    /// sends nothing, if no shared memory was set or the peer process has ended.
    fn send_shared(&mut self, begin: usize) -> Option<()> {
        let shared = self.shared.as_mut()?;
        let written = self.batch.bytes.get(begin..)?;
        match shared.link.send(shared.tag, 0, written) {
            Ok(()) => shared.has_sent = true,
            Err(SendError::Full) => {
                let kept = DelayedPacket {
                    bytes: written.into(),
                    annotation: 0,
                };
                shared.link.delay_packet(shared.tag, kept);
            }
            Err(SendError::Dead) => return None,
        }
        self.shares.add(written);
        Some(())
    }

    /// Sends a packet on `path` through shared memory, even while injected faults require that
    /// other packets go through sockets. Used for packets that inform the peer of requests that
    /// were executed in shared memory ([`Opcode::SKIP`]). The packet begins at offset `begin` of
    /// the packet buffer. If no memory is shared with the peer, counts the packet as discarded.
    #[cold]
    fn send_through_memory_only(&mut self, begin: usize, path: &Path) {
        let Some(written) = self.batch.bytes.get(begin..) else {
            return;
        };
        let sent = destination_queue_pair(written)
            .filter(|_| self.network.faults.link_is_up())
            .and_then(|queue_pair| self.network.private_link(path, queue_pair))
            .and_then(|link| {
                let tag = shared::tag(path, &link)?;
                match link.send(tag, 0, written) {
                    Ok(()) => link.flush(),
                    Err(SendError::Full) => link.delay_packet(
                        tag,
                        DelayedPacket {
                            bytes: written.into(),
                            annotation: 0,
                        },
                    ),
                    Err(SendError::Dead) => return None,
                }
                Some(())
            });
        if sent.is_some() {
            self.shares.add(written);
        } else {
            self.network.counters.count(Counter::SendDiscarded, 1);
        }
    }

    /// Adds the headers and the ICRC to a packet, and adds the packet to the outbox. The packet
    /// begins at offset `begin` of the buffer. Returns `None` if the packet cannot be sent on
    /// `path`, or if an injected fault has taken the network link down.
    fn complete(&mut self, begin: usize, path: &Path) -> Option<()> {
        let network = self.network;
        let batch: &mut Batch = &mut self.batch;
        let bytes = &mut batch.bytes;
        let transport = begin + tunnel::OVERHEAD;
        let written = bytes.get(transport..)?;
        let queue_pair = destination_queue_pair(written)?;
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
        let sealed = Encoded {
            datagram: if way.tunnelled { begin } else { transport }..bytes.len(),
            transport: transport..bytes.len(),
            run: None,
            headers: *headers,
            parameters: known.parameters(),
        };
        network.counters.count(Counter::SentPackets, 1);
        network
            .counters
            .count(Counter::SentBytes, sealed.transport.len() as u64);
        self.commit(sealed);
        Some(())
    }

    /// Applies injected faults to the packet `sealed`, whose bytes are the last in the packet
    /// buffer. Then adds the packet to the packets that are to be sent. A fault may also drop the
    /// packet or hold it back.
    fn commit(&mut self, sealed: Encoded) {
        let network = self.network;
        let Some(packet_faults) = network.faults.packet_faults(sealed.transport.len()) else {
            self.batch.put(sealed, 1);
            return;
        };
        if packet_faults.lost {
            self.batch
                .bytes
                .truncate(sealed.transport.start - tunnel::OVERHEAD);
            return;
        }
        if let Some(bit) = packet_faults.flipped {
            self.batch.bytes[sealed.transport.start + bit / 8] ^= 1 << (bit % 8);
        }
        let copies = if packet_faults.doubled { 2 } else { 1 };
        if packet_faults.overtaken == 0 {
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
                parameters: sealed.parameters,
            };
            let (now, latency) = (network.timers.now(), network.faults.latency());
            if !(network.delay).hold(packet, packet_faults.overtaken, now, latency) {
                network.counters.count(Counter::SendDiscarded, 1);
            }
        }
        self.batch
            .bytes
            .truncate(sealed.transport.start - tunnel::OVERHEAD);
        network.schedule_delayed();
    }

    /// Adds `packet` to this outbox. An injected fault has held the packet back until now. The
    /// packet already has its headers and its checksum (ICRC).
    pub(super) fn put(&mut self, packet: Packet) {
        self.batch.open();
        let begin = self.batch.bytes.len();
        if packet.tunnelled {
            packet.headers.emit(&mut self.batch.bytes);
        }
        let transport = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(&packet.bytes);
        let end = self.batch.bytes.len();
        let sealed = Encoded {
            datagram: begin..end,
            transport: transport..end,
            run: None,
            headers: packet.headers,
            parameters: packet.parameters,
        };
        self.batch.put(sealed, 1);
        if self.batch.is_full() {
            self.flush();
        }
    }
}

/// Returns the ranges of consecutive packets that are not lost, among `count` packets (at most 64).
/// `lost` has a set bit for each packet that is lost, the lowest bit for the first packet.
fn kept(lost: u64, count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let is_lost = |&packet: &usize| lost >> packet & 1 == 1;
        let begin = (next..count).find(|packet| !is_lost(packet))?;
        let end = (begin..count).find(is_lost).unwrap_or(count);
        next = end;
        Some(begin..end)
    })
}

/// Returns the destination queue pair number in a packet's BTH, or `None` if the packet is too
/// short.
fn destination_queue_pair(packet: &[u8]) -> Option<u32> {
    let destination = packet.get(4..8)?;
    Some(u32::from_be_bytes(destination.try_into().ok()?) & 0xff_ffff)
}

impl Drop for Outbox<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn the_kept_packets_of_a_run_are_those_that_are_not_lost() {
        let ranges = |lost, count| {
            let kept = kept(lost, count).map(|range| (range.start, range.end));
            kept.collect::<Vec<_>>()
        };
        assert_eq!(ranges(0, 64), [(0, 64)]);
        assert_eq!(ranges(u64::MAX, 64), []);
        assert_eq!(ranges(0b1001_0001, 8), [(1, 4), (5, 7)]);
        assert_eq!(ranges(1 << 63 | 1, 64), [(1, 63)]);
    }
}
