use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::proto::{AccessFlags, Attributes, Mtu, Path, QueuePair, Service, State};

use super::drafts::QUEUE_KEY;
use super::random::Random;
use super::receive_pool::{Queue, ReceivePool};
use super::requester::{PeerWindow, Requester, WindowState};
use super::scenario::{ExpectedState, Scenario};
use super::schedule::{Connection, Kind};
use super::target_memory::TargetMemory;
use super::world::QpId;

impl Scenario<'_> {
    pub(super) fn path_to(&self, node: usize) -> Path {
        Path {
            source: 0,
            destination: self.world.address(node),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    /// Creates and connects both queue pairs of the connection with the index `number`. Also
    /// creates the shared receive queue of a node that needs one. `shared` contains, for each node
    /// with a shared receive queue, the index of the pool that posts receives to this queue.
    pub(super) fn connect(&mut self, number: usize, shared: &mut HashMap<usize, usize>) {
        let connection = &self.schedule.connections[number];
        let services = match connection.kind {
            Kind::Reliable => [Service::ReliableConnection; 2],
            Kind::Unreliable => [Service::UnreliableConnection; 2],
            Kind::Datagram => [Service::UnreliableDatagram; 2],
            Kind::Extended => [Service::XrcInitiator, Service::XrcTarget],
        };
        let mut places = Vec::new();
        for (side, service) in services.into_iter().enumerate() {
            let node = connection.nodes[side];
            let pool = match connection.kind {
                Kind::Extended => None,
                _ if connection.shared_receive => {
                    let pool = *shared
                        .entry(node)
                        .or_insert_with(|| self.create_shared_queue(node));
                    let length = receive_length(connection);
                    let queue = &mut self.pools[pool];
                    queue.length = queue.length.max(length);
                    // The shared queue needs more receives for each connection, because an
                    // incomplete message may occupy one.
                    queue.depth += connection.receives;
                    queue.refill = queue.refill.max(connection.refill);
                    Some(pool)
                }
                _ => Some(self.pools.len()),
            };
            let from_shared = pool.and_then(|pool| match self.pools.get(pool)?.queue {
                Queue::Shared { number, .. } => Some(number),
                Queue::Own(_) => None,
            });
            let qpn = self.new_number();
            let queue_pair = QueuePair::new(qpn, service);
            let place = self.world.add_queue_pair(node, queue_pair, from_shared);
            if pool == Some(self.pools.len()) {
                let length = receive_length(connection);
                self.add_pool(Queue::Own(place), length, connection);
            }
            let role = ExpectedState {
                pool,
                ..ExpectedState::default()
            };
            self.roles.insert(place, role);
            places.push(place);
        }
        if connection.kind == Kind::Extended {
            let node = places[1].node;
            let queues = std::array::from_fn(|_| {
                let number = self.world.add_shared_queue(node);
                let queue = Queue::Shared { node, number };
                self.add_pool(queue, connection.largest as usize, connection)
            });
            self.xrc.insert(number, queues);
        }
        for side in 0..2 {
            self.set_up(number, side, [places[side], places[1 - side]]);
        }
        let first = self.requesters.len();
        self.add_requester(number, 0, [places[0], places[1]]);
        if connection.kind != Kind::Extended {
            self.add_requester(number, 1, [places[1], places[0]]);
            self.requesters[first].partner = Some(first + 1);
            self.requesters[first + 1].partner = Some(first);
        }
    }

    /// Returns a random queue pair number that no queue pair of the simulation has.
    fn new_number(&mut self) -> u32 {
        loop {
            let number = self.random.range(2, 0xff_fffe) as u32;
            let taken = self.roles.keys();
            let taken = taken.map(|&place| self.world.queue_pair(place).number());
            if taken.into_iter().all(|other| other != number) {
                return number;
            }
        }
    }

    /// Creates a shared receive queue at the simulated node with the index `node`, and a pool that
    /// posts receives to the queue. Returns the index of the pool.
    fn create_shared_queue(&mut self, node: usize) -> usize {
        let number = self.world.add_shared_queue(node);
        let random = Random::new(self.random.bits(), 0);
        let queue = Queue::Shared { node, number };
        self.pools.push(ReceivePool::new(queue, 0, 0, random));
        self.pools.len() - 1
    }

    fn add_pool(&mut self, queue: Queue, length: usize, connection: &Connection) -> usize {
        let random = Random::new(self.random.bits(), 0);
        let mut pool = ReceivePool::new(queue, length, connection.receives, random);
        pool.refill = connection.refill;
        self.pools.push(pool);
        self.pools.len() - 1
    }

    /// Connects one side of the connection with the index `number`: sets the attributes of its
    /// queue pair, and makes the queue pair ready to send. `side` is 0 or 1. `place` is the
    /// location of this queue pair, and `peer` the location of the queue pair on the other side.
    pub(super) fn set_up(&mut self, number: usize, side: usize, [place, peer]: [QpId; 2]) {
        let connection = &self.schedule.connections[number];
        let destination = self.world.queue_pair(peer).number();
        let path = self.path_to(peer.node);
        let connected = connection.kind != Kind::Datagram;
        let sequences = connection
            .sequences
            .map(|first| first + 0x55_5555 * self.life);
        self.world.enter(place, State::Init);
        *self.world.queue_pair_mut(place).attributes_mut() = Attributes {
            destination: if connected { destination } else { 0 },
            path: connected.then_some(path),
            path_mtu: if connected {
                connection.mtu
            } else {
                Mtu::Mtu4096
            },
            partition_key: 0xffff,
            queue_key: QUEUE_KEY,
            send_sequence: sequences[side],
            receive_sequence: sequences[1 - side],
            ack_timeout: Some(connection.ack_timeout),
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            min_rnr_timer: connection.rnr_timer,
            max_initiated: connection.reads,
            max_accepted: connection.reads,
            access: AccessFlags::REMOTE_WRITE
                | AccessFlags::REMOTE_READ
                | AccessFlags::REMOTE_ATOMIC,
            window: connection.window,
            max_window: 4 * connection.window,
            max_kept: connection.kept[side],
            signal_all: connection.signal_all,
            shared_receive: connection.shared_receive,
        };
        self.world.enter(place, State::ReadyToReceive);
        if self.world.queue_pair(place).service() != Service::XrcTarget {
            self.world.enter(place, State::ReadyToSend);
        }
    }

    fn add_requester(&mut self, number: usize, side: usize, [place, peer]: [QpId; 2]) {
        let connection = &self.schedule.connections[number];
        let r = self.requesters.len();
        if let Some(role) = self.roles.get_mut(&place) {
            role.asks = Some(r);
        }
        if let Some(role) = self.roles.get_mut(&peer) {
            role.asked_by = Some(r);
        }
        let mut random = Random::new(self.random.bits(), 0);
        let base = random.range(1, 1 << 40) * 8;
        // The target memory has room for the longest message. On an unreliable connection each
        // message has a location of its own, so the memory has room for all of them.
        let length = match connection.kind {
            Kind::Reliable | Kind::Extended => connection.largest as usize + 4096,
            Kind::Unreliable => 2 << 20,
            Kind::Datagram => 0,
        };
        let id = self.next_id();
        let memory = self.world.memory(peer.node);
        let target = TargetMemory::new(peer.node, memory, id, base, length);
        let mut windows = Vec::new();
        for _ in 0..random.range(0, 2) {
            windows.push(PeerWindow {
                state: WindowState::Free,
                key: memory.allocate_window(),
                range: 0..0,
            });
        }
        self.requesters.push(Requester {
            place,
            connection: number,
            side,
            partner: None,
            random,
            remaining: connection.requests[side],
            owes_largest: connection.has_largest && side == 0,
            budget: LARGE_MESSAGE_BYTES,
            posted: VecDeque::new(),
            undone: Vec::new(),
            target,
            windows,
            cursor: 0,
            seen: Default::default(),
            expected: VecDeque::new(),
            told: 0,
            ended: None,
            spoiled: false,
            resting: false,
        });
    }
}

/// Number of bytes that each simulated requester may send in large messages. One message of maximum
/// length is not counted. The limit keeps the time of a simulation short.
const LARGE_MESSAGE_BYTES: u64 = 1 << 20;

/// Returns the number of bytes that a receive needs for the longest message of the connection. For
/// a datagram, this includes 40 bytes for the network header (GRH).
fn receive_length(connection: &Connection) -> usize {
    match connection.kind {
        Kind::Datagram => connection.largest as usize + 40,
        _ => connection.largest as usize,
    }
}

pub(super) fn address(node: usize, ipv6: bool) -> Ipv6Addr {
    let last = node as u8 + 1;
    if ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())
    } else {
        Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped()
    }
}
