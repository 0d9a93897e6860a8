//! Test environment of the transport: two queue pairs with simulated machines, and a simulated wire
//! that can drop packets.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv6Addr;
use std::time::Duration;

use smallvec::smallvec;

use super::{
    AccessFlags, Arrival, Attributes, Completion, CompletionStatus, Counter, Event, Host,
    LocalFault, Memory, Mtu, Path, Payload, QueuePair, ReceiveRequest, Remote, RemoteFault,
    Segment, SendOperation, SendRequest, Sequence, Service, State, Time, Upcoming, WindowBinding,
    Withdrawal,
};
use crate::transfer::{
    Kind, Peer, RequestProperties, Transfer, TransferHost, choose, depends_on_memory,
};
use crate::wire::{Header, Packet};

/// A simulated machine for tests: memory, posted receives, and a record of all completions and
/// events of a queue pair.
#[derive(Debug)]
pub(crate) struct Machine {
    regions: RefCell<Vec<Region>>,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) xrc_receives: BTreeMap<u32, VecDeque<ReceiveRequest>>,
    pub(crate) sends: Vec<Completion>,
    pub(crate) received: Vec<(Completion, Option<u32>)>,
    pub(crate) events: Vec<Event>,
    /// Set if peers can map the memory of this machine.
    pub(crate) is_mappable: bool,
    /// Set if other processes are using the keys that are withdrawn.
    pub(crate) has_keys_in_use: bool,
    /// Location of the peer that the transport is given: in this process, on this host, or
    /// elsewhere.
    pub(crate) peer: Peer,
    counts: [u64; Counter::COUNT],
}

#[derive(Debug)]
struct Region {
    base: u64,
    access: AccessFlags,
    bytes: Vec<u8>,
    valid: bool,
    window: Option<u32>,
}

/// Distance between the addresses of consecutive memory regions (1 TiB), and address of the first
/// region.
const REGION_STRIDE: u64 = 1 << 40;

impl Default for Machine {
    fn default() -> Self {
        Self {
            regions: RefCell::default(),
            receives: VecDeque::new(),
            xrc_receives: BTreeMap::new(),
            sends: Vec::new(),
            received: Vec::new(),
            events: Vec::new(),
            is_mappable: false,
            has_keys_in_use: false,
            peer: Peer::Elsewhere,
            counts: [0; Counter::COUNT],
        }
    }
}

impl Machine {
    /// Registers a memory region that contains `bytes` and has all access rights. Returns the key
    /// of the region.
    pub(crate) fn register(&mut self, bytes: Vec<u8>) -> u32 {
        self.register_for(
            bytes,
            AccessFlags::LOCAL_WRITE
                | AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC
                | AccessFlags::FLUSH_GLOBAL,
        )
    }

    pub(crate) fn register_for(&mut self, bytes: Vec<u8>, access: AccessFlags) -> u32 {
        let mut regions = self.regions.borrow_mut();
        let key = regions.len() as u32 + 1;
        regions.push(Region {
            base: REGION_STRIDE * u64::from(key),
            access,
            bytes,
            valid: true,
            window: None,
        });
        key
    }

    /// Creates a memory window of this simulated machine, and returns the key of the window. The
    /// window is not bound to memory yet.
    pub(crate) fn window(&mut self) -> u32 {
        let key = self.register_for(Vec::new(), AccessFlags::empty());
        self.regions.borrow_mut()[key as usize - 1].valid = false;
        key
    }

    pub(crate) fn deregister(&mut self, key: u32) {
        self.regions.borrow_mut()[key as usize - 1].valid = false;
    }

    pub(crate) fn is_valid(&self, key: u32) -> bool {
        self.regions.borrow()[key as usize - 1].valid
    }

    pub(crate) fn bytes(&self, key: u32) -> Vec<u8> {
        self.regions.borrow()[key as usize - 1].bytes.clone()
    }

    /// Returns a copy of the bytes of each memory region of this simulated machine.
    pub(crate) fn content(&self) -> Vec<Vec<u8>> {
        let regions = self.regions.borrow();
        regions.iter().map(|region| region.bytes.clone()).collect()
    }

    /// Returns the `length` bytes of the region `key` from `offset` on, as a scatter/gather
    /// element.
    pub(crate) fn segment(&self, key: u32, offset: u64, length: u32) -> Segment {
        Segment {
            address: REGION_STRIDE * u64::from(key) + offset,
            length,
            key,
        }
    }

    /// Returns the address and the remote key of the byte at `offset` of the region `key`.
    pub(crate) fn remote(&self, key: u32, offset: u64) -> Remote {
        Remote {
            address: REGION_STRIDE * u64::from(key) + offset,
            key,
        }
    }

    /// Posts a receive with the work request ID `id` and a new region of `length` bytes. Returns
    /// the key of the region.
    pub(crate) fn post_receive(&mut self, id: u64, length: u32) -> u32 {
        let (key, request) = self.receive_request(id, length);
        self.receives.push_back(request);
        key
    }

    pub(crate) fn receive_request(&mut self, id: u64, length: u32) -> (u32, ReceiveRequest) {
        let key = self.register_for(vec![0; length as usize], AccessFlags::LOCAL_WRITE);
        let request = ReceiveRequest {
            id,
            segments: smallvec![self.segment(key, 0, length)],
            length: length.into(),
        };
        (key, request)
    }

    pub(crate) fn counted(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// Returns the work request ID and the status of each send completion that this simulated
    /// machine has recorded.
    pub(crate) fn ends(&self) -> Vec<(u64, CompletionStatus)> {
        self.sends.iter().map(|c| (c.id, c.status)).collect()
    }

    /// Returns the work request ID and the status of each receive completion that this simulated
    /// machine has recorded.
    pub(crate) fn receive_ends(&self) -> Vec<(u64, CompletionStatus)> {
        let ends = self.received.iter();
        ends.map(|(c, _)| (c.id, c.status)).collect()
    }

    fn with<T>(
        &self,
        key: u32,
        address: u64,
        length: usize,
        access: AccessFlags,
        work: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let mut regions = self.regions.borrow_mut();
        let index = (key as usize).checked_sub(1)?;
        let region = regions.get(index)?;
        if !region.valid || !region.access.contains(access) {
            return None;
        }
        let mut offset = usize::try_from(address.checked_sub(region.base)?).ok()?;
        let mut index = index;
        if let Some(below) = region.window {
            if offset.checked_add(length)? > region.bytes.len() {
                return None;
            }
            let base = regions[below as usize - 1].base;
            offset += usize::try_from(regions[index].base.checked_sub(base)?).ok()?;
            index = below as usize - 1;
        }
        let end = offset.checked_add(length)?;
        regions[index].bytes.get_mut(offset..end).map(work)
    }

    /// Returns the memory ranges that contain `length` bytes of a message, beginning with byte
    /// `offset` of the message. `list` is the scatter/gather list of the message. Each tuple has
    /// the address of a range, its key, the total length of the ranges before it, and its length.
    fn pieces(
        list: &[Segment],
        offset: u32,
        length: usize,
    ) -> Result<Vec<(u64, u32, usize, usize)>, LocalFault> {
        let mut pieces = Vec::new();
        let (mut skip, mut done) = (offset as usize, 0);
        for segment in list {
            if done == length {
                break;
            }
            let room = segment.length as usize;
            if skip >= room {
                skip -= room;
                continue;
            }
            let part = (room - skip).min(length - done);
            pieces.push((segment.address + skip as u64, segment.key, done, part));
            done += part;
            skip = 0;
        }
        if done < length {
            return Err(LocalFault::Protection);
        }
        Ok(pieces)
    }

    fn atomic(
        &self,
        key: u32,
        address: u64,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<u64, RemoteFault> {
        self.with(key, address, 8, AccessFlags::REMOTE_ATOMIC, |bytes| {
            let before = u64::from_ne_bytes(bytes.try_into().expect("eight"));
            bytes.copy_from_slice(&change(before).to_ne_bytes());
            before
        })
        .ok_or(RemoteFault::Access)
    }
}

impl Memory for Machine {
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        for (address, key, begin, length) in Self::pieces(list, offset, out.len())? {
            let part = &mut out[begin..begin + length];
            self.with(key, address, length, AccessFlags::empty(), |bytes| {
                part.copy_from_slice(bytes);
            })
            .ok_or(LocalFault::Protection)?;
        }
        Ok(())
    }

    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        for (address, key, begin, length) in Self::pieces(list, offset, data.len())? {
            let part = &data[begin..begin + length];
            self.with(key, address, length, AccessFlags::LOCAL_WRITE, |bytes| {
                bytes.copy_from_slice(part);
            })
            .ok_or(LocalFault::Protection)?;
        }
        Ok(())
    }

    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        if length == 0 {
            return Ok(());
        }
        self.with(key, address, length as usize, access, |_| ())
            .ok_or(RemoteFault::Access)
    }

    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        self.with(key, address, out.len(), AccessFlags::REMOTE_READ, |bytes| {
            out.copy_from_slice(bytes);
        })
        .ok_or(RemoteFault::Access)
    }

    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.with(
            key,
            address,
            data.len(),
            AccessFlags::REMOTE_WRITE,
            |bytes| {
                bytes.copy_from_slice(data);
            },
        )
        .ok_or(RemoteFault::Access)
    }

    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault> {
        self.atomic(
            key,
            address,
            |before| {
                if before == compare { swap } else { before }
            },
        )
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault> {
        self.atomic(key, address, |before| before.wrapping_add(add))
    }

    fn write_word(&self, key: u32, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        self.write_remote(key, address, &bytes)
    }

    fn flush(
        &self,
        key: u32,
        range: Option<(u64, u32)>,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        let (address, length) = range.unwrap_or_else(|| {
            let regions = self.regions.borrow();
            let region = regions.get((key as usize).wrapping_sub(1));
            (region.map_or(0, |region| region.base), 0)
        });
        self.with(key, address, length as usize, access, |_| ())
            .ok_or(RemoteFault::Access)
    }

    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        let mut regions = self.regions.borrow_mut();
        let below = regions
            .get((binding.region as usize).wrapping_sub(1))
            .filter(|region| region.valid)
            .is_some();
        let index = (binding.window as usize).wrapping_sub(1);
        match regions.get_mut(index) {
            Some(window) if below && !window.valid => {
                *window = Region {
                    base: binding.address,
                    access: binding.access,
                    bytes: vec![0; binding.length as usize],
                    valid: true,
                    window: Some(binding.region),
                };
                Ok(())
            }
            _ => Err(LocalFault::Bind),
        }
    }

    fn withdraw(&self, _: u32) -> Withdrawal {
        match self.has_keys_in_use {
            true => Withdrawal::Pending {
                delay: Duration::from_micros(1),
            },
            false => Withdrawal::Complete,
        }
    }

    fn invalidate(&self, key: u32) -> Result<(), LocalFault> {
        self.invalidate_remote(key).map_err(|_| LocalFault::Bind)
    }

    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault> {
        let mut regions = self.regions.borrow_mut();
        match regions.get_mut((key as usize).wrapping_sub(1)) {
            Some(region) if region.valid => {
                region.valid = false;
                Ok(())
            }
            _ => Err(RemoteFault::Access),
        }
    }
}

impl TransferHost for Machine {
    fn transfer(&self, request: &SendRequest, upcoming: &Upcoming) -> Transfer {
        choose(&RequestProperties::of(request, upcoming), self.peer)
    }
}

impl Host for Machine {
    fn is_mappable(&self, request: &SendRequest) -> bool {
        self.is_mappable && depends_on_memory(Kind::of(request), request.length)
    }

    fn excludes_packets(&self, request: &SendRequest, upcoming: &Upcoming) -> bool {
        self.transfer(request, upcoming).excludes_packets()
    }

    fn next_receive(&mut self, xrc_srq: Option<u32>) -> Option<ReceiveRequest> {
        match xrc_srq {
            None => self.receives.pop_front(),
            Some(number) => self.xrc_receives.get_mut(&number)?.pop_front(),
        }
    }

    fn has_xrc_srq(&self, number: u32) -> bool {
        self.xrc_receives.contains_key(&number)
    }

    fn complete_send(&mut self, completion: Completion) {
        self.sends.push(completion);
    }

    fn complete_receive(&mut self, completion: Completion, xrc_srq: Option<u32>) {
        self.received.push((completion, xrc_srq));
    }

    fn raise(&mut self, event: Event) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter, by: u64) {
        self.counts[counter as usize] += by;
    }
}

/// One side of a connection in a test: a queue pair, and the simulated machine with its memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) queue_pair: QueuePair,
    pub(crate) machine: Machine,
    pub(crate) sent: usize,
}

/// Direction of a packet on the simulated wire, named by the node that sends the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    A,
    B,
}

/// Effect of the simulated network on a packet: delivery, loss or duplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireEffect {
    Deliver,
    Drop,
    Duplicate,
}

/// Two connected nodes, whose packets go over the simulated wire.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) now: Time,
    pub(crate) a: Node,
    pub(crate) b: Node,
}

/// Returns attributes of a connection whose peer is the queue pair with the number `destination`.
/// The two nodes of a pair have the numbers 1 and 2.
pub(crate) fn attributes(destination: u32) -> Attributes {
    Attributes {
        destination,
        path: Some(path()),
        path_mtu: Mtu::Mtu256,
        queue_key: 0x1234,
        send_sequence: Sequence::new(0xff_fff0 + destination),
        receive_sequence: Sequence::new(0xff_fff0 + 3 - destination),
        ack_timeout: Some(Duration::from_millis(1)),
        retry_count: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        max_initiated: 4,
        max_accepted: 4,
        access: AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::FLUSH_GLOBAL,
        ..Attributes::default()
    }
}

pub(crate) fn path() -> Path {
    Path {
        source: 0,
        destination: Ipv6Addr::LOCALHOST,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    }
}

pub(crate) fn arrival() -> Arrival {
    Arrival {
        local: 0,
        source: Ipv6Addr::LOCALHOST,
        destination: Ipv6Addr::LOCALHOST,
        route: std::array::from_fn(|byte| byte as u8),
        slot: None,
        private: true,
    }
}

/// Creates a request with the work request ID `id`, whose data is in the segments `list`. The
/// request is signaled: it generates a completion even if it succeeds.
pub(crate) fn request(id: u64, operation: SendOperation, list: &[Segment]) -> SendRequest {
    SendRequest {
        id,
        operation,
        payload: Payload::Gathered(list.into()),
        length: list.iter().map(|segment| segment.length).sum(),
        xrc_srq: None,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

/// Creates the operation of a send without immediate data that invalidates no key.
pub(crate) fn send() -> SendOperation {
    SendOperation::Send {
        immediate: None,
        invalidate: None,
    }
}

/// Returns `length` bytes of a pattern that does not repeat.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

impl Node {
    pub(crate) fn new(number: u32, service: Service) -> Self {
        Self {
            queue_pair: QueuePair::new(number, service),
            machine: Machine::default(),
            sent: 0,
        }
    }

    /// Creates a node whose queue pair has the number `number` and is in the state RTR (ready to
    /// receive).
    pub(crate) fn ready_to_receive(number: u32, service: Service) -> Self {
        let mut node = Self::new(number, service);
        *node.queue_pair.attributes_mut() = attributes(3 - number);
        node.enter(State::Init);
        node.enter(State::ReadyToReceive);
        node
    }

    /// Creates a simulated node whose queue pair has the number `number` and is in the state RTS
    /// (ready to send).
    pub(crate) fn ready_to_send(number: u32, service: Service) -> Self {
        let mut node = Self::ready_to_receive(number, service);
        node.enter(State::ReadyToSend);
        node
    }

    pub(crate) fn enter(&mut self, state: State) {
        let now = Time::default();
        self.queue_pair.enter(state, now, &mut self.machine);
    }

    pub(crate) fn post(&mut self, request: SendRequest) {
        self.queue_pair.post(request, &mut self.machine);
    }

    /// Posts a send of the bytes `bytes` to the queue pair of this node, in a new memory region.
    /// `id` is the work request ID.
    pub(crate) fn post_send(&mut self, id: u64, bytes: Vec<u8>) {
        let length = bytes.len() as u32;
        let key = self.machine.register(bytes);
        let list = [self.machine.segment(key, 0, length)];
        self.post(request(id, send(), &list));
    }

    /// Makes the queue pair send its next packet, and returns the bytes of the packet, or `None` if
    /// no packet may be sent now.
    pub(crate) fn transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let path = self
            .queue_pair
            .poll_transmit(now, &mut self.machine, &mut out);
        assert_eq!(path.is_some(), !out.is_empty());
        self.sent += out.len().min(1);
        path.map(|_| out)
    }

    /// Makes the queue pair send all packets that it may send now, and returns the bytes of each.
    pub(crate) fn transmit_all(&mut self, now: Time) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.transmit(now)).collect()
    }

    /// Delivers the packet with the bytes `bytes` to the queue pair of this node.
    pub(crate) fn receive(&mut self, now: Time, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a packet");
        self.queue_pair
            .receive(now, &arrival(), &packet, &mut self.machine);
    }

    /// Delivers a packet that the test has made, with the header `header` and the payload
    /// `payload`, to the queue pair of this node.
    pub(crate) fn receive_made(&mut self, header: Header, payload: &[u8]) {
        let packet = Packet { header, payload };
        self.queue_pair
            .receive(Time::default(), &arrival(), &packet, &mut self.machine);
    }
}

impl Pair {
    /// Creates a pair of connected queue pairs with the numbers 1 and 2, each on its own simulated
    /// machine. Both are in the state RTS (ready to send).
    pub(crate) fn new(service: Service) -> Self {
        Self::of(
            Node::ready_to_send(1, service),
            Node::ready_to_send(2, service),
        )
    }

    pub(crate) fn of(a: Node, b: Node) -> Self {
        Self {
            now: Time::default(),
            a,
            b,
        }
    }

    /// Simulates the connection of the two nodes: delivers packets, and advances the time to the
    /// next timeout, until nothing is left to do.
    pub(crate) fn run(&mut self) {
        self.run_with(|_, _| WireEffect::Deliver);
    }

    /// Delivers packets, and advances the time when no packet is left, until nothing happens any
    /// more. `effect` decides for each packet whether the simulated network delivers, drops or
    /// duplicates it.
    pub(crate) fn run_with(
        &mut self,
        mut effect: impl FnMut(Direction, &Packet<'_>) -> WireEffect,
    ) {
        for _ in 0..100_000 {
            let moved = self.turn(Direction::A, &mut effect) | self.turn(Direction::B, &mut effect);
            if moved {
                continue;
            }
            let due = [&self.a, &self.b].map(|node| node.queue_pair.next_timeout());
            let Some(due) = due.into_iter().flatten().min() else {
                return;
            };
            self.now = self.now.max(due);
            for node in [&mut self.a, &mut self.b] {
                node.queue_pair.handle_timeout(self.now, &mut node.machine);
            }
        }
        panic!("it does not end");
    }

    /// Delivers all packets that the sender of the direction `from` can send now, but not the
    /// responses to these packets.
    pub(crate) fn deliver(&mut self, from: Direction) {
        self.turn(from, &mut |_, _| WireEffect::Deliver);
    }

    fn turn(
        &mut self,
        from: Direction,
        effect: &mut impl FnMut(Direction, &Packet<'_>) -> WireEffect,
    ) -> bool {
        let (source, target) = match from {
            Direction::A => (&mut self.a, &mut self.b),
            Direction::B => (&mut self.b, &mut self.a),
        };
        let packets = source.transmit_all(self.now);
        for bytes in &packets {
            let packet = Packet::parse(bytes).expect("a packet");
            let copies = match effect(from, &packet) {
                WireEffect::Drop => 0,
                WireEffect::Deliver => 1,
                WireEffect::Duplicate => 2,
            };
            for _ in 0..copies {
                target.receive(self.now, bytes);
            }
        }
        !packets.is_empty()
    }
}
