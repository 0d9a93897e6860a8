use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::proto::{
    Arrival, Completion, Counter, Event, Path, QueuePair, ReceiveRequest, SendRequest, State, Time,
};
use crate::wire::ip::{Headers, PORT, Route};
use crate::wire::{Packet, icrc};

use super::host::{ReceiveQueue, View};
use super::memory::Memory;
use super::network::{Fate, Network};
use super::random::splitmix;
use super::trace::{self, Brief, Clock, Lines};
use super::watch::Watch;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) node: usize,
    /// Which of the node's.
    pub(crate) slot: usize,
}

/// What a queue pair told.
#[derive(Debug)]
pub(crate) enum Happening {
    Sent(Completion),
    Received(Completion, Option<u32>),
    Raised(Event),
}

/// What came of an event.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A queue pair told something.
    At(Place, Happening),
    /// A time that was asked for has come.
    Wake(u64),
}

/// Where the world breaks its own rules: what no schedule may lead to.
#[derive(Debug)]
pub(crate) struct Breach(pub(crate) String);

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets that were sent.
    pub packets: u64,
    /// Packets that did not arrive, or arrived changed.
    pub lost: u64,
    /// Packets that arrived twice or late.
    pub disturbed: u64,
    /// Events that were worked off.
    pub events: u64,
}

/// Nodes, the network between them, and the time.
pub(crate) struct World<'t> {
    now: Time,
    /// Number of the next event: those at one time happen in the order in which they were made.
    order: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    nodes: Vec<Node>,
    network: Network,
    notices: Vec<Notice>,
    breach: Option<Breach>,
    /// How long a node waits before it answers packets together.
    batch: Duration,
    traffic: Traffic,
    digest: u64,
    buffers: Vec<Vec<u8>>,
    lines: Option<&'t mut Lines<'t>>,
}

struct Node {
    address: Ipv6Addr,
    memory: Memory,
    slots: Vec<Slot>,
    directory: HashMap<u32, usize>,
    shared: Vec<ReceiveQueue>,
    counters: [u64; Counter::COUNT],
}

struct Slot {
    queue_pair: QueuePair,
    receives: ReceiveQueue,
    from_shared: Option<usize>,
    /// When its next timer event comes.
    timer: Option<Time>,
    /// An event that lets it send is on the way.
    polled: bool,
    watch: Watch,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Time,
    order: u64,
    what: What,
}

/// Ordered for the queue's sake; two events never have the same number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrive { node: usize, packet: Vec<u8> },
    Timer { node: usize, slot: usize },
    Poll { node: usize, slot: usize },
    Wake { token: u64 },
}

/// More packets than this at one moment are a queue pair that does not stop.
const BURST: usize = 100_000;

impl<'t> World<'t> {
    pub(crate) fn new(network: Network, batch: Duration) -> Self {
        Self {
            now: Time::default(),
            order: 0,
            events: BinaryHeap::new(),
            nodes: Vec::new(),
            network,
            notices: Vec::new(),
            breach: None,
            batch,
            traffic: Traffic::default(),
            digest: 0,
            buffers: Vec::new(),
            lines: None,
        }
    }

    /// From now on every packet and completion is told.
    pub(crate) fn trace_to(&mut self, lines: &'t mut Lines<'t>) {
        self.lines = Some(lines);
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// A number that every packet and when it was sent went into: two runs with the same one did the same.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// What the queue pairs of all nodes counted.
    pub(crate) fn counters(&self) -> [u64; Counter::COUNT] {
        let mut sums = [0; Counter::COUNT];
        for node in &self.nodes {
            for (sum, count) in sums.iter_mut().zip(node.counters) {
                *sum += count;
            }
        }
        sums
    }

    pub(crate) fn add_node(&mut self, address: Ipv6Addr) -> usize {
        self.network.connect();
        self.nodes.push(Node {
            address,
            memory: Memory::default(),
            slots: Vec::new(),
            directory: HashMap::new(),
            shared: Vec::new(),
            counters: [0; Counter::COUNT],
        });
        self.nodes.len() - 1
    }

    /// A shared receive queue, by its number at the node.
    pub(crate) fn add_shared_queue(&mut self, node: usize) -> usize {
        let shared = &mut self.nodes[node].shared;
        shared.push(ReceiveQueue::new());
        shared.len() - 1
    }

    pub(crate) fn add_queue_pair(
        &mut self,
        node: usize,
        queue_pair: QueuePair,
        from_shared: Option<usize>,
    ) -> Place {
        let slots = &mut self.nodes[node].slots;
        let slot = slots.len();
        let number = queue_pair.number();
        slots.push(Slot {
            queue_pair,
            receives: ReceiveQueue::new(),
            from_shared,
            timer: None,
            polled: false,
            watch: Watch::default(),
        });
        self.nodes[node].directory.insert(number, slot);
        Place { node, slot }
    }

    pub(crate) fn address(&self, node: usize) -> Ipv6Addr {
        self.nodes[node].address
    }

    pub(crate) fn memory(&self, node: usize) -> &Memory {
        &self.nodes[node].memory
    }

    pub(crate) fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    pub(crate) fn queue_pair(&self, place: Place) -> &QueuePair {
        &self.nodes[place.node].slots[place.slot].queue_pair
    }

    pub(crate) fn queue_pair_mut(&mut self, place: Place) -> &mut QueuePair {
        &mut self.nodes[place.node].slots[place.slot].queue_pair
    }

    /// Takes away the receive requests of its own that a queue pair has not taken.
    pub(crate) fn drop_receives(&mut self, place: Place) {
        self.nodes[place.node].slots[place.slot].receives.clear();
    }

    pub(crate) fn post_receive(&mut self, place: Place, request: ReceiveRequest) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        slot.receives.push_back(request);
    }

    pub(crate) fn post_shared_receive(
        &mut self,
        node: usize,
        queue: usize,
        request: ReceiveRequest,
    ) {
        self.nodes[node].shared[queue].push_back(request);
    }

    /// Posts a send request; packets go out at once.
    pub(crate) fn post(&mut self, place: Place, request: SendRequest) {
        if self.lines.is_some() {
            let line = format!(
                "{} {} posts #{} {:?} {} B{}{}",
                Clock(self.now),
                self.name(place),
                request.id,
                request.operation,
                request.length,
                if request.fence { " fence" } else { "" },
                if request.signaled { "" } else { " unsignaled" },
            );
            self.tell(&line);
        }
        self.with(place, |queue_pair, view, _| queue_pair.post(request, view));
        self.transmit(place);
    }

    /// Moves a queue pair to a state.
    pub(crate) fn enter(&mut self, place: Place, state: State) {
        if self.lines.is_some() {
            let line = format!("{} {} enters {state:?}", Clock(self.now), self.name(place));
            self.tell(&line);
        }
        self.with(place, |queue_pair, view, now| {
            queue_pair.enter(state, now, view);
        });
        let watch = &mut self.nodes[place.node].slots[place.slot].watch;
        watch.drained(false);
        if matches!(state, State::Reset | State::Init) {
            watch.restart();
        }
        self.transmit(place);
    }

    /// A queue pair told that its send queue is drained: it may send no request until it enters another state.
    pub(crate) fn drained(&mut self, place: Place) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        if slot.queue_pair.state() == State::SendQueueDrained {
            slot.watch.drained(true);
        }
    }

    /// Asks for a notice after `delay`.
    pub(crate) fn wake_after(&mut self, delay: Duration, token: u64) {
        self.schedule(self.now + delay, What::Wake { token });
    }

    /// Lets the next event happen; false if there is none.
    pub(crate) fn step(&mut self) -> Result<bool, Breach> {
        let Some(Reverse(event)) = self.events.pop() else {
            return Ok(false);
        };
        self.now = event.at;
        self.traffic.events += 1;
        match event.what {
            What::Arrive { node, packet } => {
                self.arrive(node, &packet);
                self.buffers.push(packet);
            }
            What::Timer { node, slot } => self.timer(Place { node, slot }),
            What::Poll { node, slot } => {
                self.nodes[node].slots[slot].polled = false;
                self.transmit(Place { node, slot });
            }
            What::Wake { token } => self.notices.push(Notice::Wake(token)),
        }
        match self.breach.take() {
            Some(breach) => Err(breach),
            None => Ok(true),
        }
    }

    /// Takes what has been told since the last call.
    pub(crate) fn take_notices(&mut self, into: &mut Vec<Notice>) {
        if self.lines.is_some() {
            for place in 0..self.notices.len() {
                if let Notice::At(at, what) = &self.notices[place] {
                    let what = trace::happening(what);
                    let line = format!("{} {} {what}", Clock(self.now), self.name(*at));
                    self.tell(&line);
                }
            }
        }
        into.append(&mut self.notices);
    }

    fn name(&self, place: Place) -> String {
        let number = self.queue_pair(place).number();
        format!("node {} qp {number:#x}", place.node)
    }

    fn tell(&mut self, line: &str) {
        if let Some(lines) = &mut self.lines {
            lines(line);
        }
    }

    fn schedule(&mut self, at: Time, what: What) {
        let order = self.order;
        self.order += 1;
        self.events.push(Reverse(Scheduled { at, order, what }));
    }

    fn with<T>(
        &mut self,
        place: Place,
        work: impl FnOnce(&mut QueuePair, &mut View<'_>, Time) -> T,
    ) -> T {
        let node = &mut self.nodes[place.node];
        let slot = &mut node.slots[place.slot];
        let mut view = View {
            place,
            queue_pair: slot.queue_pair.number(),
            memory: &node.memory,
            own: &mut slot.receives,
            shared: &mut node.shared,
            from_shared: slot.from_shared,
            notices: &mut self.notices,
            counters: &mut node.counters,
        };
        work(&mut slot.queue_pair, &mut view, self.now)
    }

    fn arrive(&mut self, node: usize, bytes: &[u8]) {
        let Some((headers, packet)) = accept(bytes) else {
            return;
        };
        let found = &self.nodes[node];
        let number = packet.header.bth.destination;
        let Some(&slot) = found.directory.get(&number) else {
            self.break_rule(format!(
                "a packet for queue pair {number:#x} came to node {node}"
            ));
            return;
        };
        let route = headers.route();
        let arrival = Arrival {
            local: 0,
            source: route.source,
            destination: route.destination,
            route: headers.global_route(),
        };
        let place = Place { node, slot };
        if self.lines.is_some() {
            let line = format!("{} node {node}   <- {}", Clock(self.now), Brief(&packet));
            self.tell(&line);
        }
        self.nodes[node].slots[slot].watch.arrived(&packet);
        self.with(place, |queue_pair, view, now| {
            queue_pair.receive(now, &arrival, &packet, view);
        });
        if self.batch.is_zero() {
            self.transmit(place);
        } else if !self.nodes[node].slots[slot].polled {
            self.nodes[node].slots[slot].polled = true;
            self.schedule(self.now + self.batch, What::Poll { node, slot });
        }
    }

    fn timer(&mut self, place: Place) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        if slot.timer != Some(self.now) {
            // An earlier one has replaced it.
            return;
        }
        slot.timer = None;
        if slot
            .queue_pair
            .next_timeout()
            .is_some_and(|at| at <= self.now)
        {
            self.with(place, |queue_pair, view, now| {
                queue_pair.handle_timeout(now, view);
            });
        }
        self.transmit(place);
    }

    /// Sends what a queue pair has to send.
    fn transmit(&mut self, place: Place) {
        for sent in 0.. {
            if sent == BURST {
                self.break_rule(format!("{} never stops sending", self.name(place)));
                return;
            }
            let mut transport = self.buffers.pop().unwrap_or_default();
            transport.clear();
            let path = self.with(place, |queue_pair, view, now| {
                queue_pair.poll_transmit(now, view, &mut transport)
            });
            match path {
                Some(path) => self.send(place, &path, &transport),
                None if transport.is_empty() => {}
                None => self.break_rule(format!("{} left bytes", self.name(place))),
            }
            self.buffers.push(transport);
            if path.is_none() {
                break;
            }
        }
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let Some(timeout) = slot.queue_pair.next_timeout() else {
            return;
        };
        let at = timeout.max(self.now);
        if slot.timer.is_none_or(|timer| at < timer) {
            slot.timer = Some(at);
            let Place { node, slot } = place;
            self.schedule(at, What::Timer { node, slot });
        }
    }

    /// Sends one packet, BTH to pad.
    fn send(&mut self, place: Place, path: &Path, transport: &[u8]) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let packet = match Packet::parse(transport) {
            Ok(packet) => packet,
            Err(error) => {
                let name = self.name(place);
                self.break_rule(format!("{name} sent what is no packet: {error}"));
                return;
            }
        };
        if let Err(rule) = slot.watch.sent(&packet, slot.queue_pair.attributes()) {
            let name = self.name(place);
            self.break_rule(format!("{name} sent {}: {rule}", Brief(&packet)));
            return;
        }
        let number = packet.header.bth.destination;
        let receiver = |node: &Node| node.address == path.destination;
        let Some(receiver) = self.nodes.iter().position(receiver) else {
            self.break_rule(format!("{} sent to {}", self.name(place), path.destination));
            return;
        };
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        emit(self.nodes[place.node].address, path, transport, &mut bytes);
        let (fate, arrival) = self.network.send(self.now, place.node, number, bytes.len());
        self.account(&packet, fate);
        if self.lines.is_some() {
            let line = format!(
                "{} node {} ->   {}{}",
                Clock(self.now),
                place.node,
                Brief(&packet),
                trace::fate(fate)
            );
            self.tell(&line);
        }
        match fate {
            Fate::Lose => {
                self.buffers.push(bytes);
                return;
            }
            Fate::Duplicate(later) => {
                let node = receiver;
                let packet = bytes.clone();
                self.schedule(arrival + later, What::Arrive { node, packet });
            }
            Fate::Corrupt(how) => corrupt(&mut bytes, how),
            Fate::Deliver | Fate::Hold(_) => {}
        }
        let (node, packet) = (receiver, bytes);
        self.schedule(arrival, What::Arrive { node, packet });
    }

    fn account(&mut self, packet: &Packet<'_>, fate: Fate) {
        self.traffic.packets += 1;
        match fate {
            Fate::Lose | Fate::Corrupt(_) => self.traffic.lost += 1,
            Fate::Duplicate(_) | Fate::Hold(_) => self.traffic.disturbed += 1,
            Fate::Deliver => {}
        }
        let bth = &packet.header.bth;
        let said = u64::from(bth.destination) << 40
            ^ u64::from(bth.sequence) << 16
            ^ u64::from(bth.opcode.to_byte()) << 8
            ^ packet.payload.len() as u64;
        let mut state = self.digest ^ said ^ self.now.as_nanos().rotate_left(20);
        self.digest = splitmix(&mut state);
    }

    fn break_rule(&mut self, rule: String) {
        // The first says most.
        self.breach.get_or_insert(Breach(rule));
    }
}

/// Puts the headers below in front, and the ICRC behind.
fn emit(source: Ipv6Addr, path: &Path, transport: &[u8], out: &mut Vec<u8>) {
    let route = Route {
        source,
        destination: path.destination,
        source_port: 0xc000,
        destination_port: PORT,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
    };
    let headers = route.headers(transport.len());
    headers.emit(out);
    out.extend_from_slice(transport);
    out.extend_from_slice(&headers.icrc(transport).to_le_bytes());
}

/// The packet in these bytes, if they are as they were sent.
fn accept(bytes: &[u8]) -> Option<(Headers, Packet<'_>)> {
    let (headers, rest) = Headers::parse(bytes)?;
    let (transport, found) = icrc::split(rest)?;
    if headers.icrc(transport) != found {
        return None;
    }
    Some((headers, Packet::parse(transport).ok()?))
}

/// Flips up to three bits, or those within four bytes: a CRC of 32 bits finds each of these.
fn corrupt(bytes: &mut [u8], mut how: u64) {
    let bits = bytes.len() * 8;
    if how & 1 == 0 {
        for _ in 0..=(how >> 1) % 3 {
            let bit = (splitmix(&mut how) % bits as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    } else {
        let first = (splitmix(&mut how) % (bytes.len() as u64 - 3)) as usize;
        let pattern = (splitmix(&mut how) as u32 | 1).to_le_bytes();
        for (byte, flip) in bytes[first..].iter_mut().zip(pattern) {
            *byte ^= flip;
        }
    }
}
