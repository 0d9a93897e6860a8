#![forbid(unsafe_code)]
//! The port's connection to the network: its addresses and sockets.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};

use super::bind::bind;
use super::delay::{Delay, Held};
use super::endpoint::Endpoints;
use super::gid_table::{Entry, LocalAddress, Table};
use super::groups::JoinedGroups;
use super::hosts::Hosts;
use super::limits::{MAX_HEADERS, path_mtu, unprivileged_buffer};
use super::outbox::{self, Batch, Outbox};
use super::path_mtu_checks::PathMtuChecks;
use super::peers::Peers;
use super::route;
use super::socket::{InterfaceMonitor, Socket};
use super::trial::Trials;
use crate::address::Ports;
use crate::capture::Capture;
use crate::config::{Config, Segmentation};
use crate::counters::Counters;
use crate::fault::Faults;
use crate::proto::{Mtu, Path, Time};
use crate::same_host::{HostPeers, Link};
use crate::timers::Timers;
use crate::wire::ip::Headers;

/// Maximum number of bytes that a queue pair may have in flight to another host. The limit is lower
/// until measurements of round trips show that the network path holds so many bytes.
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of unused packet buffers that are kept for reuse by outboxes. Usually each thread
/// needs at most one buffer. Packets that injected faults delay keep their buffers, so more buffers
/// are needed then.
const MAX_POOLED_BUFFERS: usize = 64;

/// Length in bytes of the outer IPv4 and UDP headers of a tunnelled packet (IPv6 packet in a
/// datagram over IPv4). The headers must fit into the MTU of the network interface together with
/// the packet.
const OUTER_HEADERS: usize = 20 + 8;

/// The port's connection to the network: its GID table and its UDP sockets.
#[derive(Debug)]
pub(crate) struct Network {
    pub(super) table: Table,
    /// Source of the kernel's reports about changes of the host's addresses; `None` if the device
    /// ignores such changes.
    pub(super) changes: Option<InterfaceMonitor>,
    /// Set if packets are received at all addresses of the host. If not, packets are received only
    /// at the addresses that queue pairs have used.
    pub(super) receives_everywhere: AtomicBool,
    /// Set if the list of the host's addresses could not be read after the last report of a change.
    pub(super) must_list: AtomicBool,
    /// Addresses of the host that get no GID because their port is in use, and that were already
    /// reported to the user.
    pub(super) reported: Mutex<HashSet<IpAddr>>,
    pub(super) config: Config,
    pub(super) base: u16,
    slot: u8,
    /// UDP port to which packets for multicast groups are sent.
    pub(super) group_port: u16,
    mtu: Mtu,
    /// Size in bytes that the socket buffer of a peer is assumed to have, as the kernel counts it.
    /// Limits the number of packets in flight.
    peer_buffer: usize,
    pub(super) segmentation: Segmentation,
    pub(super) endpoints: RwLock<Arc<Endpoints>>,
    /// Number of times that `endpoints` has changed. Receivers compare the number to find out that
    /// their copy is outdated.
    pub(super) endpoints_changes: AtomicU64,
    pub(super) groups: Mutex<JoinedGroups>,
    #[expect(
        clippy::vec_box,
        reason = "a batch is large, and changes hands with every message"
    )]
    pool: Mutex<Vec<Box<Batch>>>,
    pub(super) delay: Delay,
    pub(super) counters: Arc<Counters>,
    pub(super) faults: Arc<Faults>,
    pub(super) timers: Arc<Timers>,
    capture: Option<Capture>,
    host_peers: OnceLock<Arc<HostPeers>>,
    pub(super) peers: Peers,
    pub(super) trials: Trials,
    pub(super) path_mtu_checks: PathMtuChecks,
    pub(super) hosts: Hosts,
}

impl Network {
    /// Binds IP addresses and a UDP port for this process, and creates the network with them. If an
    /// address and port are in use, tries other ports of the port range. Also tries other addresses
    /// in 127/8, unless the configuration prescribes the addresses. Fails if no address and port
    /// are free.
    pub(crate) fn open(
        config: &Config,
        counters: Arc<Counters>,
        faults: Arc<Faults>,
        timers: Arc<Timers>,
    ) -> io::Result<Self> {
        let capture = config.capture.as_ref().map(Capture::create).transpose()?;
        // Begins before the addresses are listed, so that no change is missed.
        let follows = match config.addresses.is_empty() {
            true => config.interfaces.as_ref() != Some(&vec![]),
            // Loopback addresses do not change.
            false => config.addresses.iter().any(|ip| !ip.is_loopback()),
        };
        let changes = follows.then(|| InterfaceMonitor::watch().ok()).flatten();
        let bound = bind(config)?;
        let table = Table::new();
        // The port has the MTU of the addresses that it always has. Queue pairs of the others use
        // smaller packets if needed.
        let permanent = match config.addresses.len() {
            0 => 1,
            count => count,
        };
        let interfaces = bound
            .all
            .iter()
            .take(permanent)
            .map(LocalAddress::interface_mtu);
        let address_in_gid = interfaces.min().unwrap_or_default();
        let mtu = config.mtu.unwrap_or_else(|| path_mtu(address_in_gid));
        let tunnels = mtu.bytes() + MAX_HEADERS + OUTER_HEADERS <= address_in_gid;
        for (number, local_address) in bound.all.into_iter().enumerate() {
            let is_permanent = number < permanent;
            table.add(local_address, is_permanent && tunnels);
        }
        let mut network = Self {
            endpoints: RwLock::new(Arc::new(Endpoints::default())),
            endpoints_changes: AtomicU64::new(0),
            table,
            changes,
            receives_everywhere: AtomicBool::new(false),
            must_list: AtomicBool::new(false),
            reported: Mutex::default(),
            config: config.clone(),
            base: config.port,
            slot: bound.slot,
            group_port: bound.group_port,
            mtu,
            peer_buffer: 0,
            segmentation: config.segmentation,
            groups: Mutex::new(HashMap::new()),
            pool: Mutex::new(Vec::new()),
            delay: Delay::new(),
            counters,
            faults,
            timers,
            capture,
            host_peers: OnceLock::new(),
            peers: Peers::default(),
            trials: Trials::default(),
            path_mtu_checks: PathMtuChecks::default(),
            hosts: Hosts::default(),
        };
        let mut receive_buffer = usize::MAX;
        let permanent: Vec<u8> = (network.table.local_addresses().map(|(index, _)| index))
            .take(permanent)
            .collect();
        for index in permanent {
            network.open_socket(index)?;
            if let Some(socket) = network
                .local_address(index.into())
                .and_then(LocalAddress::socket)
            {
                receive_buffer = receive_buffer.min(socket.receive_buffer()?);
            }
        }
        network.peer_buffer = unprivileged_buffer().min(receive_buffer);
        *network.endpoints.get_mut() = Arc::new(network.sockets(&HashMap::new()));
        Ok(network)
    }

    /// Returns the IP address and UDP port of the GID with the index `index`, with the state of
    /// their socket. Returns `None` if there is no such GID.
    pub(super) fn local_address(&self, index: usize) -> Option<&LocalAddress> {
        Some(&self.table.get(index)?.local_address)
    }

    /// Returns the GID with the index `index`. Returns `None` if the entry is empty, or if the host
    /// does not have the address of the GID at present.
    pub(crate) fn gid(&self, index: usize) -> Option<Ipv6Addr> {
        let entry = self.table.get(index)?;
        entry
            .local_address
            .is_present()
            .then_some(entry.gid.address)
    }

    /// Returns whether the host has at least one of the IP addresses of this process's device at
    /// present. If the result is `false`, the port of the device is not active. The result can be
    /// `false` only if the user has configured the addresses.
    pub(crate) fn has_address(&self) -> bool {
        self.table
            .iter()
            .any(|entry| entry.local_address.is_present())
    }

    /// Returns the GIDs whose addresses the host has at present, with their indices.
    pub(crate) fn gids(&self) -> impl Iterator<Item = (u8, Ipv6Addr)> {
        let all = (0..).zip(self.table.iter());
        all.filter_map(|(index, entry)| {
            let is_present = entry.local_address.is_present();
            is_present.then_some((index, entry.gid.address))
        })
    }

    /// Returns at most `count` GIDs from the beginning of the table, including those whose
    /// addresses the host does not have at present.
    pub(crate) fn first_gids(&self, count: usize) -> Vec<Ipv6Addr> {
        let first = self.table.iter().take(count);
        first.map(|entry| entry.gid.address).collect()
    }

    /// Returns the index of the network interface that has the address of the GID at index `gid` of
    /// the table. If the host has lost the address, returns the index of the interface that had it.
    /// Returns 0 if there is no such interface.
    pub(crate) fn interface(&self, gid: usize) -> u32 {
        self.local_address(gid).map_or(0, LocalAddress::interface)
    }

    /// Returns the name of the network interface that has the address of the GID at index `gid` of
    /// the table. If the host has lost the address, returns the name of the interface that had it.
    /// Returns `None` if there is no such interface.
    pub(crate) fn interface_name(&self, gid: usize) -> Option<String> {
        self.local_address(gid)?.interface_name()
    }

    /// Returns the slot of this NIC: the index of the process's UDP port in the port range. Bits 23
    /// to 16 of the NIC's queue pair numbers contain the slot.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns the port's active MTU, as `ibv_query_port` reports it.
    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Returns the largest path MTU that packets of the GID with the index `gid` can have.
    pub(crate) fn mtu_of(&self, gid: u8) -> Mtu {
        match self.local_address(gid.into()) {
            Some(local_address) if !local_address.local.ip().is_loopback() => {
                self.mtu.min(local_address.mtu())
            }
            _ => self.mtu,
        }
    }

    /// Returns the limits on the number of packets that a queue pair may have in flight. The start
    /// of the range is the initial limit, and the end is the highest limit. `gid` is the index of
    /// the queue pair's GID, and `mtu` the path MTU.
    ///
    /// The initial limit is about half of the packets that fit into the socket buffer of an
    /// unprivileged peer. The other half is left for other queue pairs, and for memory that the
    /// kernel does not free immediately. On a path to another host, the queue pair raises its limit
    /// if measured round trips show that the path can hold more packets.
    pub(crate) fn windows(&self, gid: u8, mtu: Mtu) -> RangeInclusive<u32> {
        let local_address = self.local_address(gid.into());
        let loopback =
            local_address.is_some_and(|local_address| local_address.local.ip().is_loopback());
        let in_pages =
            loopback && outbox::uses_pages(mtu.bytes()) && self.sends_bursts(local_address);
        // The kernel counts the memory of a packet, and 256 bytes for its description. The memory
        // is either pages and a buffer for headers; or a power of two with room for headers and for
        // the 320 bytes at the end of every buffer.
        let taken = if in_pages {
            mtu.bytes() + MAX_HEADERS + 640 + 256
        } else {
            (mtu.bytes() + 128 + 320).next_power_of_two() + 256
        };
        let packets = self.peer_buffer / taken / 2;
        // The capacity of a network between two hosts is unknown. The kernel's RoCE driver keeps at
        // most 128 packets in flight.
        let packets = packets.clamp(8, if loopback { 512 } else { 128 });
        let most = if loopback { 0 } else { MAX_BYTES / mtu.bytes() };
        packets as u32..=packets.max(most) as u32
    }

    /// Returns whether the socket of the address `local_address` can send bursts (messages that the
    /// kernel splits into several datagrams, `UDP_SEGMENT`).
    fn sends_bursts(&self, local_address: Option<&LocalAddress>) -> bool {
        let wanted = self.segmentation != Segmentation::Never;
        wanted
            && local_address
                .and_then(LocalAddress::socket)
                .is_some_and(Socket::sends_bursts)
    }

    /// Returns whether packets can be sent on `path`: the local GID exists, and the peer's GID is
    /// of the same kind.
    pub(crate) fn can_send_on(&self, path: &Path) -> bool {
        // The queue pair number does not matter here, as long as its slot has a port.
        self.way(path, 0).is_some()
    }

    /// Returns the index of the GID of this process that is the destination of `path`. `queue_pair`
    /// is the number of the destination queue pair. Returns `None` if the destination is not a GID
    /// of this process, or if packets cannot be sent on the path. Several processes of a host can
    /// have the same GID, so the caller must check that this NIC has the queue pair.
    pub(crate) fn host_peer(&self, path: &Path, queue_pair: u32) -> Option<u8> {
        let local = self.table.position(path.destination)?;
        self.way(path, queue_pair)?;
        Some(local)
    }

    /// Returns the global routing header (GRH) that a datagram on `path` to a queue pair of this
    /// NIC would have on arrival. Used for datagrams that are delivered without packets. `length`
    /// is the packet length in bytes, without the IP and UDP headers and the checksum (ICRC).
    pub(crate) fn global_route(
        &self,
        path: &Path,
        queue_pair: u32,
        length: usize,
    ) -> Option<[u8; 40]> {
        let way = self.way(path, queue_pair)?;
        let mut route = way.route;
        if !way.tunnelled {
            route.flow_label = 0;
        }
        Some(route.headers(length).global_route())
    }

    /// Sets the directory of peer processes that share memory with this process. From now on,
    /// packets to these processes are sent through the shared memory.
    pub(crate) fn share(&self, host_peers: Arc<HostPeers>) {
        let _ = self.host_peers.set(host_peers);
    }

    /// Returns the peer processes that share memory with this process, or `None` if this process
    /// does not share memory.
    pub(super) fn host_peers(&self) -> Option<&HostPeers> {
        self.host_peers.get().map(|host_peers| &**host_peers)
    }

    /// Returns the number of IP addresses of this process whose UDP sockets are open.
    pub(crate) fn open_addresses(&self) -> usize {
        let local_address = self.table.local_addresses();
        local_address
            .filter(|(_, local_address)| local_address.socket().is_some())
            .count()
    }

    /// Returns the IP addresses and UDP ports of this process. Includes IP addresses that have been
    /// removed from the host.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.table
            .local_addresses()
            .map(|(_, local_address)| local_address.local)
    }

    /// Returns the socket address to which packets on `path` to the queue pair with the number
    /// `queue_pair` are sent. Returns `None` if packets cannot be sent on the path.
    pub(crate) fn address(&self, path: &Path, queue_pair: u32) -> Option<SocketAddr> {
        Some(self.way(path, queue_pair)?.to)
    }

    /// Returns the memory that this process shares with the process of the queue pair at the other
    /// end of `path`, as a [`Link`]. `queue_pair` is the number of that queue pair. Returns `None`
    /// if no memory is shared. Also returns `None` while injected faults require that all packets
    /// go through sockets.
    pub(crate) fn link(&self, path: &Path, queue_pair: u32) -> Option<Arc<Link>> {
        if !self.faults.allows_other_paths() {
            return None;
        }
        self.private_link(path, queue_pair)
    }

    /// Returns the memory that this process shares with the process of the queue pair at the other
    /// end of `path`. `queue_pair` is the number of that queue pair. Returns `None` if no memory is
    /// shared.
    ///
    /// Returns the memory even while injected faults require that other packets go through sockets.
    /// Used to report requests that were executed in the shared memory: a peer accepts such reports
    /// only through the shared memory.
    pub(super) fn private_link(&self, path: &Path, queue_pair: u32) -> Option<Arc<Link>> {
        self.link_to(self.address(path, queue_pair)?)
    }

    /// Returns the link (shared memory with another process) to the process whose socket has the
    /// address `address`. Returns `None` if there is no live link.
    pub(super) fn link_to(&self, address: SocketAddr) -> Option<Arc<Link>> {
        self.host_peers.get()?.link(address)
    }

    /// Returns whether packets are written to a capture file (`SOFTROCE_PCAP`).
    pub(crate) fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Returns the route of packets on `path` to the queue pair with the number `queue_pair`: the
    /// socket, the destination address and the headers. Returns `None` if packets cannot be sent on
    /// the path.
    pub(super) fn way(&self, path: &Path, queue_pair: u32) -> Option<route::PacketRoute> {
        let Entry { gid, local_address } = self.table.get(path.source.into())?;
        let ports_of = |host| {
            let mut local_address = self
                .table
                .iter()
                .map(|entry| entry.local_address.local.ip());
            if local_address.any(|local_address| local_address == host) {
                return (Ports::Slots, true);
            }
            self.hosts.ports(host, || self.timers.coarse_now())
        };
        let ports = route::LocalPorts {
            base: self.base,
            groups: self.group_port,
        };
        route::way(gid, local_address.local, ports, path, queue_pair, ports_of)
    }

    /// Creates an empty outbox: a collection of packets that are sent together.
    pub(crate) fn outbox(&self) -> Outbox<'_> {
        Outbox::new(self)
    }

    pub(super) fn batch(&self) -> Box<Batch> {
        self.pool.lock().pop().unwrap_or_default()
    }

    pub(super) fn recycle(&self, batch: Box<Batch>) {
        let mut pool = self.pool.lock();
        if pool.len() < MAX_POOLED_BUFFERS {
            pool.push(batch);
        }
    }

    /// Returns the endpoints of the device, one for each socket that currently receives packets:
    /// the sockets of IP addresses and of multicast groups.
    pub(crate) fn endpoints(&self) -> Arc<Endpoints> {
        Arc::clone(&self.endpoints.read())
    }

    /// Returns how often the set of sockets has changed. A cached copy of the set is valid while
    /// the number does not change.
    pub(super) fn endpoints_changes(&self) -> u64 {
        self.endpoints_changes.load(Ordering::Acquire)
    }

    /// Sends the packets that injected faults have held back until the time `now`, and sets the
    /// NIC's timer for the next ones. Called when the timer has expired. `noted` is the time for
    /// which the timer was set when it expired. First marks the timer as not set, unless the timer
    /// is now set for another time.
    pub(crate) fn send_delayed(&self, now: Time, noted: Time) {
        Timers::clear(self.delay.alarm(), noted);
        self.send_until(now);
        self.schedule_delayed();
    }

    /// Sets the NIC's timer for the next delayed packet: a packet that an injected fault holds
    /// back, to be sent later.
    pub(super) fn schedule_delayed(&self) {
        if let Some(next) = self.delay.next_due() {
            self.timers.schedule(DELAY_TIMER, self.delay.alarm(), next);
        }
    }

    /// Sends all packets that injected faults have held back, including those that are not due.
    /// Called when a queue pair is destroyed, because the peer may wait for these packets.
    pub(crate) fn send_held(&self) {
        self.send_until(Time::from_nanos(u64::MAX));
    }

    fn send_until(&self, time: Time) {
        self.delay.send_due(time, |due| {
            let mut outbox = self.outbox().without_latency();
            for held in due {
                match held {
                    Held::Overtaken { packet, .. } => outbox.put(packet),
                    Held::Batch(mut batch) => {
                        outbox.flush();
                        self.transmit(&mut batch);
                        self.recycle(batch);
                    }
                }
            }
        });
    }

    /// Writes a packet with its headers to the capture file (`SOFTROCE_PCAP`), if packets are
    /// captured.
    pub(super) fn capture(&self, headers: &Headers, packet: &[u8]) {
        if let Some(capture) = &self.capture
            && let Err(error) =
                capture.record(SystemTime::now(), &[headers.ip(), headers.udp(), packet])
        {
            // The error is ignored: standard error may be closed.
            let _ = writeln!(io::stderr(), "softroce: the capture ends here: {error}");
        }
    }
}

/// Key of the timer for packets that injected faults hold back. Differs from the keys of queue
/// pairs' timers, which are queue pair numbers, below 2^24.
pub(crate) const DELAY_TIMER: u32 = 1 << 24;
