#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};

use super::delay::Delay;
use super::outbox::{self, Batch, Outbox};
use super::socket::{Interface, Socket};
use super::{address, route};
use crate::capture::Capture;
use crate::config::{Config, Segmentation};
use crate::counters::{Counters, Tally};
use crate::engine::Timers;
use crate::fault::Faults;
use crate::proto::{Arrival, Brief, Counter, Mtu, Path, Time};
use crate::same_host::{Link, Neighbourhood, Said};
use crate::wire::Packet;
use crate::wire::ip::Headers;

/// How many addresses in 127/8 a process tries on each port.
const ATTEMPTS: u32 = 64;

/// Packets that are taken from shared memory at once.
const LETTERS: usize = 64;

/// How many batches are kept for the next use.
const POOL: usize = 8;

/// What the headers of a packet take beside its payload at most: those of IPv6 and UDP, BTH, XRCETH, RETH, immediate data
/// and the ICRC.
const HEADERS: usize = 40 + 8 + 12 + 4 + 16 + 4 + 4;

/// What those below a tunnelled packet take: of IPv4 and UDP.
const TUNNEL: usize = 20 + 8;

/// What a message in shared memory says of itself: the places of GIDs in the tables of the two processes. None: they do
/// not fit.
pub(crate) fn tag_of(from: usize, to: usize) -> Option<u16> {
    (from < 16 && to < 16).then_some(0x100 | (from as u16) << 4 | to as u16)
}

fn gids_of(tag: u16) -> (usize, usize) {
    (usize::from(tag >> 4 & 0xf), usize::from(tag & 0xf))
}

/// What came through shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery<'a> {
    Packet(Packet<'a>),
    Brief(&'a Brief<'a>),
}

/// A GID of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    /// The GID.
    pub(crate) address: Ipv6Addr,
    /// How packets from it travel.
    pub(crate) kind: GidKind,
    /// Which socket they go by.
    pub(crate) endpoint: usize,
}

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidKind {
    /// Over IPv4.
    Mapped,
    /// Over IPv6.
    Native,
    /// Over IPv6, in a tunnel over IPv4.
    Tunnelled,
}

/// A socket, and whose packets come by it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The socket.
    pub(crate) socket: Socket,
    /// The GID whose address it is bound to, or that the group was joined for.
    pub(crate) gid: u8,
    /// The GID whose packets come in a tunnel.
    pub(crate) tunnelled: Option<u8>,
}

/// All sockets that packets come by.
#[derive(Debug)]
pub(crate) struct Endpoints(Box<[Arc<Endpoint>]>);

impl Endpoints {
    /// Their sockets.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.0.iter().map(|endpoint| &endpoint.socket)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|endpoint| &**endpoint)
    }
}

/// The port's way to the network: its addresses and sockets.
#[derive(Debug)]
pub(crate) struct Network {
    pub(super) own: Vec<Arc<Endpoint>>,
    gids: Vec<Gid>,
    addresses: Vec<Ipv6Addr>,
    base: u16,
    slot: u8,
    mtu: Mtu,
    /// What the socket of a peer holds, in the kernel's way of counting.
    peer_buffer: usize,
    asked_buffer: usize,
    pub(super) segmentation: Segmentation,
    endpoints: RwLock<Arc<Endpoints>>,
    /// How often they changed.
    endpoints_changes: AtomicU64,
    groups: Mutex<HashMap<SocketAddr, (usize, Arc<Endpoint>)>>,
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
    neighbourhood: OnceLock<Arc<Neighbourhood>>,
}

impl Network {
    /// Binds the sockets. An address and port that are taken are an error if they were asked for; else
    /// the next ones are tried.
    pub(crate) fn open(
        config: &Config,
        counters: Arc<Counters>,
        faults: Arc<Faults>,
        timers: Arc<Timers>,
    ) -> io::Result<Self> {
        let capture = config.capture.as_ref().map(Capture::create).transpose()?;
        let (sockets, slot) = bind(config)?;
        if config.segmentation != Segmentation::Never {
            for socket in &sockets {
                socket.coalesce();
            }
        }
        let interfaces = sockets
            .iter()
            .map(|socket| interface_mtu(socket.local().ip()));
        let carried = interfaces.min().unwrap_or_default();
        let mtu = config.mtu.unwrap_or_else(|| carried_mtu(carried));
        let tunnels = mtu.bytes() + HEADERS + TUNNEL <= carried;
        let (mut own, mut gids) = (Vec::new(), Vec::new());
        for (endpoint, socket) in sockets.into_iter().enumerate() {
            let gid = gids.len() as u8;
            let mut tunnelled = None;
            match socket.local() {
                SocketAddr::V4(local) => {
                    let mapped = local.ip().to_ipv6_mapped();
                    gids.push(Gid {
                        address: mapped,
                        kind: GidKind::Mapped,
                        endpoint,
                    });
                    if tunnels {
                        let carrying = address::unique_local(local);
                        tunnelled = Some(gid + 1);
                        gids.push(Gid {
                            address: carrying,
                            kind: GidKind::Tunnelled,
                            endpoint,
                        });
                    }
                }
                SocketAddr::V6(local) => {
                    gids.push(Gid {
                        address: *local.ip(),
                        kind: GidKind::Native,
                        endpoint,
                    });
                }
            }
            own.push(Arc::new(Endpoint {
                socket,
                gid,
                tunnelled,
            }));
        }
        let buffers = own.iter().map(|endpoint| endpoint.socket.receive_buffer());
        let receive_buffer = buffers
            .collect::<io::Result<Vec<usize>>>()?
            .into_iter()
            .min();
        Ok(Self {
            endpoints: RwLock::new(Arc::new(Endpoints(own.iter().cloned().collect()))),
            endpoints_changes: AtomicU64::new(0),
            own,
            addresses: gids.iter().map(|gid| gid.address).collect(),
            gids,
            base: config.port,
            slot,
            mtu,
            peer_buffer: unprivileged_buffer().min(receive_buffer.unwrap_or(0)),
            asked_buffer: config.receive_buffer,
            segmentation: config.segmentation,
            groups: Mutex::new(HashMap::new()),
            pool: Mutex::new(Vec::new()),
            delay: Delay::new(),
            counters,
            faults,
            timers,
            capture,
            neighbourhood: OnceLock::new(),
        })
    }

    /// The GID table.
    pub(crate) fn addresses(&self) -> &[Ipv6Addr] {
        &self.addresses
    }

    /// The number of a GID's network interface; 0 if there is none.
    pub(crate) fn interface(&self, gid: usize) -> u32 {
        let endpoint = self
            .gids
            .get(gid)
            .and_then(|gid| self.own.get(gid.endpoint));
        endpoint
            .and_then(|endpoint| Interface::of(endpoint.socket.local().ip()))
            .map_or(0, |interface| interface.index)
    }

    /// The slot of the NIC's port, which stands in bits 23 to 20 of its queue pairs' numbers.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// The port's active MTU.
    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// How many packets of a size a queue pair may have on the way: about half of what fits into the socket of a peer
    /// that may have as large a one as this process without privileges. The other half is for other queue pairs, and
    /// for what the kernel does not give back at once.
    pub(crate) fn window(&self, mtu: Mtu) -> u32 {
        let loopback = self
            .own
            .iter()
            .all(|own| own.socket.local().ip().is_loopback());
        let in_pages = loopback && outbox::goes_in_pages(mtu.bytes()) && self.segments();
        // The kernel counts the memory that a packet takes, and 256 bytes to describe it: pages, and a buffer for headers;
        // or a power of two with room for headers and for the 320 bytes at the end of every buffer.
        let taken = if in_pages {
            mtu.bytes() + HEADERS + 640 + 256
        } else {
            (mtu.bytes() + 128 + 320).next_power_of_two() + 256
        };
        let packets = self.peer_buffer / taken / 2;
        // What a network between two hosts holds is not known; 128 is what the kernel's driver sends.
        packets.clamp(8, if loopback { 512 } else { 128 }) as u32
    }

    /// Whether packets may leave in bursts, by all sockets.
    fn segments(&self) -> bool {
        let wanted = self.segmentation != Segmentation::Never;
        wanted && self.own.iter().all(|own| own.socket.segments())
    }

    /// Whether packets can be sent this way at all: the local GID is there, and the peer's is of its kind.
    pub(crate) fn reaches(&self, path: &Path) -> bool {
        // Any number will do, of those that have a port.
        self.way(path, 0).is_some()
    }

    /// Where packets to a queue pair of this NIC arrive: index of the GID. None: they go elsewhere.
    pub(crate) fn neighbour(&self, path: &Path, queue_pair: u32) -> Option<u8> {
        let local = (self.addresses.iter()).position(|own| *own == path.destination)?;
        self.way(path, queue_pair)?;
        Some(local as u8)
    }

    /// The GRH of a packet to a queue pair of this NIC, from BTH to pad so long, as [`receive`](Self::receive) makes it.
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

    /// Has packets to processes that share memory go through it.
    pub(crate) fn share(&self, neighbourhood: Arc<Neighbourhood>) {
        let _ = self.neighbourhood.set(neighbourhood);
    }

    /// The addresses of the sockets.
    pub(crate) fn own_addresses(&self) -> Vec<SocketAddr> {
        let own = self.own.iter();
        own.map(|endpoint| endpoint.socket.local()).collect()
    }

    /// Where packets to a queue pair go.
    pub(crate) fn address(&self, path: &Path, queue_pair: u32) -> Option<SocketAddr> {
        Some(self.way(path, queue_pair)?.to)
    }

    /// The process that has a queue pair, if it shares memory with this one.
    pub(crate) fn link(&self, path: &Path, queue_pair: u32) -> Option<Arc<Link>> {
        let neighbourhood = self.neighbourhood.get()?;
        if !self.faults.spare_packets() {
            return None;
        }
        neighbourhood.link(self.address(path, queue_pair)?)
    }

    /// Takes packets that came through shared memory, and hands them on; how many there were.
    /// Names queue pairs that waited for room there, and have some now.
    pub(crate) fn receive_shared(
        &self,
        links: &[Arc<Link>],
        tally: &mut Tally,
        mut deliver: impl FnMut(&Arrival, &Delivery<'_>),
        mut go_on: impl FnMut(u32),
    ) -> usize {
        let mut count = 0;
        for link in links {
            let (mut packets, mut bytes) = (0, 0);
            let received = link.receive(LETTERS, |tag, said| {
                match self.admit_shared(link, tag, said) {
                    Ok((arrival, delivery)) => {
                        packets += 1;
                        bytes += match said {
                            Said::Packet(bytes) => bytes.len(),
                            Said::Brief(brief) => brief.bytes(),
                        } as u64;
                        deliver(&arrival, &delivery);
                    }
                    Err(Some(reason)) => self.counters.count(reason, 1),
                    Err(None) => {}
                }
            });
            if packets > 0 {
                tally.count(Counter::ReceivedPackets, packets);
                tally.count(Counter::ReceivedBytes, bytes);
            }
            count += received.unwrap_or(0);
            link.resume(&mut go_on);
        }
        count
    }

    fn admit_shared<'a>(
        &self,
        link: &Link,
        tag: u16,
        said: Said<'a>,
    ) -> Result<(Arrival, Delivery<'a>), Option<Counter>> {
        if !self.faults.link_is_up() {
            return Err(None);
        }
        let (from, to) = gids_of(tag);
        let source = *link.gids().get(from).ok_or(Counter::Malformed)?;
        let destination = *self.addresses.get(to).ok_or(Counter::Malformed)?;
        let delivery = match said {
            Said::Packet(bytes) => {
                Delivery::Packet(Packet::parse(bytes).map_err(|_| Counter::Malformed)?)
            }
            Said::Brief(brief) => Delivery::Brief(brief),
        };
        let arrival = Arrival {
            local: to as u8,
            source,
            destination,
            // Of connections nobody looks at it.
            route: [0; 40],
        };
        Ok((arrival, delivery))
    }

    /// Whether packets are written to a file.
    pub(crate) fn is_captured(&self) -> bool {
        self.capture.is_some()
    }

    /// Which way a packet to a queue pair goes.
    pub(super) fn way(&self, path: &Path, queue_pair: u32) -> Option<route::Way> {
        let gid = self.gids.get(usize::from(path.source))?;
        let local = self.own.get(gid.endpoint)?.socket.local();
        route::way(gid, local, self.base, path, queue_pair)
    }

    /// A box to put packets into that are to be sent.
    pub(crate) fn outbox(&self) -> Outbox<'_> {
        Outbox::new(self)
    }

    pub(super) fn batch(&self) -> Box<Batch> {
        self.pool.lock().pop().unwrap_or_default()
    }

    pub(super) fn recycle(&self, batch: Box<Batch>) {
        let mut pool = self.pool.lock();
        if pool.len() < POOL {
            pool.push(batch);
        }
    }

    /// All sockets that packets come by, now.
    pub(crate) fn endpoints(&self) -> Arc<Endpoints> {
        Arc::clone(&self.endpoints.read())
    }

    /// How often they changed until now.
    pub(super) fn endpoints_changes(&self) -> u64 {
        self.endpoints_changes.load(Ordering::Acquire)
    }

    /// Sends what was held back and is due, by an accident that was arranged. The timer for it was noted for `noted`.
    pub(crate) fn send_delayed(&self, now: Time, noted: Time) {
        Timers::called(self.delay.alarm(), noted);
        self.send_until(now);
        if let Some(next) = self.delay.next_due() {
            self.timers.note(DELAY, self.delay.alarm(), next);
        }
    }

    /// Sends all that was held back, due or not.
    pub(crate) fn send_held(&self) {
        self.send_until(Time::from_nanos(u64::MAX));
    }

    fn send_until(&self, time: Time) {
        let due = self.delay.take_due(time);
        if !due.is_empty() {
            let mut outbox = self.outbox();
            due.into_iter().for_each(|packet| outbox.put(packet));
        }
    }

    /// Joins a multicast group; once for every time it is left again.
    pub(crate) fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        let wanted = self.group_addresses(group);
        if wanted.is_empty() {
            let message = format!("{group} is no multicast group that the port's GIDs reach");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut groups = self.groups.lock();
        let mut added = Vec::new();
        for (at, own) in wanted {
            if groups.contains_key(&at) {
                continue;
            }
            let interface = own.socket.local().ip();
            let socket = Socket::join(at, interface, self.asked_buffer)?;
            if self.segmentation != Segmentation::Never {
                socket.coalesce();
            }
            let endpoint = Endpoint {
                socket,
                gid: own.gid,
                tunnelled: own.tunnelled,
            };
            added.push((at, Arc::new(endpoint)));
        }
        for (at, endpoint) in added {
            groups.insert(at, (0, endpoint));
        }
        for (at, _) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&at) {
                *members += 1;
            }
        }
        self.publish(&groups);
        Ok(())
    }

    /// Leaves a multicast group.
    pub(crate) fn leave(&self, group: Ipv6Addr) {
        let mut groups = self.groups.lock();
        for (at, _) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&at) {
                *members -= 1;
                if *members == 0 {
                    groups.remove(&at);
                }
            }
        }
        self.publish(&groups);
    }

    /// The addresses that a group's packets come to.
    fn group_addresses(&self, group: Ipv6Addr) -> Vec<(SocketAddr, &Arc<Endpoint>)> {
        let of = |own: &Arc<Endpoint>| match own.socket.local() {
            SocketAddr::V4(local) => {
                let ip = address::ipv4_group(group)?;
                Some(SocketAddr::V4(SocketAddrV4::new(ip, local.port())))
            }
            SocketAddr::V6(local) => group.is_multicast().then(|| {
                let interface = Interface::of(IpAddr::V6(*local.ip())).map_or(0, |i| i.index);
                SocketAddr::V6(SocketAddrV6::new(group, local.port(), 0, interface))
            }),
        };
        self.own
            .iter()
            .filter_map(|own| Some((of(own)?, own)))
            .collect()
    }

    fn publish(&self, groups: &HashMap<SocketAddr, (usize, Arc<Endpoint>)>) {
        let of_groups = groups.values().map(|(_, endpoint)| endpoint);
        let all = self.own.iter().chain(of_groups).cloned().collect();
        *self.endpoints.write() = Arc::new(Endpoints(all));
        self.endpoints_changes.fetch_add(1, Ordering::Release);
        // The engine waits for the sockets that were there when it fell asleep.
        self.timers.sleeper().ring();
    }

    /// Writes a packet to the capture, if there is one.
    pub(super) fn capture(&self, headers: &Headers, packet: &[u8]) {
        if let Some(capture) = &self.capture
            && let Err(error) =
                capture.record(SystemTime::now(), &[headers.ip(), headers.udp(), packet])
        {
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "softroce: the capture ends here: {error}");
        }
    }
}

/// The key of the timer for packets that are held back; queue pairs have theirs below 2^24.
pub(crate) const DELAY: u32 = 1 << 24;

/// The sockets, and the slot of the port that they have.
fn bind(config: &Config) -> io::Result<(Vec<Socket>, u8)> {
    let buffer = config.receive_buffer;
    if config.addresses.is_empty() {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for (slot, port) in slots(config.port) {
            for attempt in 0..ATTEMPTS {
                let ip = address::candidate(process::id(), attempt);
                match Socket::bind(SocketAddrV4::new(ip, port).into(), buffer) {
                    Ok(socket) => return Ok((vec![socket], slot)),
                    Err(error) => last = naming(error, ip.into(), port),
                }
            }
        }
        return Err(last);
    }
    // All slots are free to try only where peers look for them.
    let loopback = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if ip.is_loopback());
    let tried = if config.addresses.iter().all(loopback) {
        address::SLOTS.into()
    } else {
        1
    };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for (slot, port) in slots(config.port).take(tried) {
        let bound = config.addresses.iter().map(|&ip| {
            let address = match ip {
                IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
                IpAddr::V6(ip) => {
                    let local = ip.is_unicast_link_local();
                    let interface = local.then(|| Interface::of(ip.into())).flatten();
                    SocketAddrV6::new(ip, port, 0, interface.map_or(0, |i| i.index)).into()
                }
            };
            Socket::bind(address, buffer).map_err(|error| naming(error, ip, port))
        });
        match bound.collect() {
            Ok(sockets) => return Ok((sockets, slot)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The slots and their ports.
fn slots(base: u16) -> impl Iterator<Item = (u8, u16)> {
    (0..address::SLOTS).filter_map(move |slot| Some((slot, address::port_of_slot(base, slot)?)))
}

/// An error that says what could not be bound.
fn naming(error: io::Error, ip: IpAddr, port: u16) -> io::Error {
    let kind = error.kind();
    io::Error::new(
        kind,
        format!("binding {}: {error}", SocketAddr::new(ip, port)),
    )
}

/// The largest receive buffer that a process without privileges may have.
fn unprivileged_buffer() -> usize {
    let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse::<usize>().ok());
    // The kernel doubles what it is asked for.
    limit.map_or(usize::MAX, |limit| limit.saturating_mul(2))
}

/// The bytes that the interface of an address carries in a packet.
fn interface_mtu(address: IpAddr) -> usize {
    let interface = Interface::of(address);
    let mtu = interface.and_then(|interface| {
        fs::read_to_string(format!("/sys/class/net/{}/mtu", interface.name)).ok()
    });
    let usual = if address.is_loopback() { 1 << 16 } else { 1500 };
    mtu.and_then(|mtu| mtu.trim().parse().ok()).unwrap_or(usual)
}

/// The largest MTU whose packets an interface carries whole that carries so many bytes.
fn carried_mtu(bytes: usize) -> Mtu {
    [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512]
        .into_iter()
        .find(|mtu| mtu.bytes() + HEADERS <= bytes)
        .unwrap_or(Mtu::Mtu256)
}
