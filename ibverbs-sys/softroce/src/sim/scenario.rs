use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::proto::{AccessFlags, Attributes, Event, Mtu, Path, QueuePair, Service, State, Time};

use super::cells::Cells;
use super::generate::QUEUE_KEY;
use super::network::{Faults, Network};
use super::pool::{Pool, Queue};
use super::random::Random;
use super::requester::{PeerWindow, Requester, WindowState};
use super::run::Outcome;
use super::schedule::{Connection, Kind, Schedule};
use super::target::Target;
use super::trace::Lines;
use super::world::{Notice, Place, World};

/// A schedule while it runs.
pub(super) struct Scenario<'t> {
    pub(super) schedule: &'t Schedule,
    pub(super) world: World<'t>,
    pub(super) requesters: Vec<Requester>,
    pub(super) pools: Vec<Pool>,
    /// What each queue pair is.
    pub(super) roles: HashMap<Place, Role>,
    /// The words that all change, of each node.
    pub(super) cells: Vec<Cells>,
    /// The shared receive queues of each XRC connection: pools.
    xrc: HashMap<usize, [usize; 2]>,
    /// Connections of which an end failed.
    pub(super) broken: Vec<bool>,
    pub(super) outcome: Outcome,
    /// How often queue pairs were reset and connected again.
    pub(super) life: u32,
    ids: u64,
    random: Random,
}

/// What a queue pair has to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Role {
    /// It asks as this requester.
    pub(super) asks: Option<usize>,
    /// It is asked by this one.
    pub(super) asked_by: Option<usize>,
    /// It takes its receives from this pool.
    pub(super) pool: Option<usize>,
    /// Which events were raised.
    pub(super) raised: Vec<Event>,
}

/// What a moment that was asked for is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    /// A requester may post again.
    Post(usize),
    /// A pool gets a receive.
    Refill(usize),
    /// A requester's send queue is drained.
    Drain(usize),
    /// And goes on.
    Resume(usize),
}

const KINDS: u64 = 4;

impl Token {
    pub(super) fn number(self) -> u64 {
        let (kind, index) = match self {
            Self::Post(index) => (0, index),
            Self::Refill(index) => (1, index),
            Self::Drain(index) => (2, index),
            Self::Resume(index) => (3, index),
        };
        index as u64 * KINDS + kind
    }

    fn of(number: u64) -> Self {
        let index = (number / KINDS) as usize;
        match number % KINDS {
            0 => Self::Post(index),
            1 => Self::Refill(index),
            2 => Self::Drain(index),
            _ => Self::Resume(index),
        }
    }
}

/// More events, or a later time than this, are a run that does not end.
const MOST_EVENTS: u64 = 20_000_000;
const LATEST: Time = Time::from_nanos(10_000 * 1_000_000_000);

impl<'t> Scenario<'t> {
    /// Makes everything that the schedule names, connected and with receives posted.
    pub(super) fn new(schedule: &'t Schedule, lines: Option<&'t mut Lines<'t>>) -> Self {
        let faults = match &schedule.script {
            Some(script) => Faults::Script(schedule.conditions, script.clone()),
            None => Faults::Random(schedule.conditions),
        };
        let network = Network::new(faults, Random::new(schedule.seed, 1));
        let mut world = World::new(network, schedule.batch);
        if let Some(lines) = lines {
            world.trace_to(lines);
        }
        let mut scenario = Self {
            schedule,
            world,
            requesters: Vec::new(),
            pools: Vec::new(),
            roles: HashMap::new(),
            cells: Vec::new(),
            xrc: HashMap::new(),
            broken: vec![false; schedule.connections.len()],
            outcome: Outcome::default(),
            life: 0,
            ids: 0,
            random: Random::new(schedule.seed, 2),
        };
        for number in 0..schedule.nodes {
            let node = scenario.world.add_node(address(number, schedule.ipv6));
            scenario.cells.push(Cells::new(scenario.world.memory(node)));
        }
        let mut shared = HashMap::new();
        for number in 0..schedule.connections.len() {
            scenario.connect(number, &mut shared);
        }
        scenario
    }

    /// Runs until nothing happens any more, and checks everything.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        let result = self.play();
        let now = self.world.now();
        result.map_err(|what| format!("at {} us: {what}", now.as_nanos() / 1000))?;
        self.outcome.traffic = self.world.traffic();
        self.outcome.counters = self.world.counters();
        self.outcome.digest = self.world.digest();
        self.outcome.time = now - Time::default();
        Ok(self.outcome)
    }

    fn play(&mut self) -> Result<(), String> {
        let pools = 0..self.pools.len();
        for pool in pools {
            // Now and then the first message finds no receive.
            let empty = self.pools[pool].refill > Duration::ZERO && self.random.percent(30);
            for _ in 0..self.pools[pool].depth {
                if empty {
                    let delay = self.pools[pool].refill;
                    self.world.wake_after(delay, Token::Refill(pool).number());
                } else {
                    self.refill(pool);
                }
            }
        }
        for r in 0..self.requesters.len() {
            let connection = &self.schedule.connections[self.requesters[r].connection];
            if connection.drain {
                let delay = Duration::from_nanos(self.random.magnitude(500_000));
                self.world.wake_after(delay, Token::Drain(r).number());
            }
            self.pump(r)?;
        }
        self.settle_down()?;
        let all: Vec<_> = (0..self.requesters.len()).collect();
        self.finish(&all)?;
        if self.schedule.again {
            self.revive()?;
        }
        Ok(())
    }

    /// Lets events happen until there are none.
    pub(super) fn settle_down(&mut self) -> Result<(), String> {
        let mut notices = Vec::new();
        loop {
            self.world.take_notices(&mut notices);
            for notice in notices.drain(..) {
                self.notice(notice)?;
            }
            let goes_on = self.world.step().map_err(|breach| breach.0)?;
            if !goes_on {
                // The last ones may have been told by what was just done.
                self.world.take_notices(&mut notices);
                if notices.is_empty() {
                    return Ok(());
                }
                for notice in notices.drain(..) {
                    self.notice(notice)?;
                }
            }
            let events = self.world.traffic().events;
            if events > MOST_EVENTS || self.world.now() > LATEST {
                return Err(format!("livelock: {events} events, and no end"));
            }
        }
    }

    fn notice(&mut self, notice: Notice) -> Result<(), String> {
        match notice {
            Notice::At(place, happening) => self.happened(place, happening)?,
            Notice::Wake(token) => match Token::of(token) {
                Token::Post(r) => {
                    self.requesters[r].resting = false;
                    self.pump(r)?;
                }
                Token::Refill(pool) => self.refill(pool),
                Token::Drain(r) => {
                    let place = self.requesters[r].place;
                    if self.world.queue_pair(place).state() == State::ReadyToSend {
                        self.world.enter(place, State::SendQueueDrained);
                    }
                }
                Token::Resume(r) => {
                    let place = self.requesters[r].place;
                    if self.world.queue_pair(place).state() == State::SendQueueDrained {
                        self.world.enter(place, State::ReadyToSend);
                        self.pump(r)?;
                    }
                }
            },
        }
        Ok(())
    }

    /// A number that no request had before.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// A time before something happens, short against what requesters wait for.
    pub(super) fn moment(&mut self) -> Duration {
        Duration::from_nanos(self.random.magnitude(300_000))
    }

    /// Posts one more receive where they are too few.
    pub(super) fn refill(&mut self, pool: usize) {
        let id = self.next_id();
        if let Queue::Own(place) = self.pools[pool].queue {
            // A receive that is posted to a queue pair in error is flushed at once; here it is not posted.
            self.pools[pool].stopped |= self.world.queue_pair(place).state() == State::Error;
        }
        self.pools[pool].fill(&mut self.world, id);
    }

    /// The number of the `which`-th shared receive queue of a requester's XRC target.
    pub(super) fn xrc_queue(&self, r: usize, which: u32) -> u32 {
        let pools = self.xrc[&self.requesters[r].connection];
        match self.pools[pools[which as usize]].queue {
            Queue::Shared { number, .. } => number as u32,
            Queue::Own(_) => 0,
        }
    }

    /// The pool of a node's shared receive queue.
    pub(super) fn shared_pool(&self, node: usize, number: u32) -> Option<usize> {
        let number = number as usize;
        let queue = Queue::Shared { node, number };
        self.pools.iter().position(|pool| pool.queue == queue)
    }

    /// The way to a requester's peer.
    pub(super) fn way_of(&self, r: usize) -> (Path, u32) {
        let attributes = self.world.queue_pair(self.requesters[r].place).attributes();
        let partner = self.requesters[r].partner.unwrap_or(r);
        let place = self.requesters[partner].place;
        let path = attributes.path.unwrap_or_else(|| self.path_to(place.node));
        (path, self.world.queue_pair(place).number())
    }

    fn path_to(&self, node: usize) -> Path {
        Path {
            source: 0,
            destination: self.world.address(node),
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    fn connect(&mut self, number: usize, shared: &mut HashMap<usize, usize>) {
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
                        .or_insert_with(|| self.shared_queue(node));
                    let length = receive_length(connection);
                    let queue = &mut self.pools[pool];
                    queue.length = queue.length.max(length);
                    queue.depth = queue.depth.max(connection.receives);
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
            let role = Role {
                pool,
                ..Role::default()
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

    /// A number that no queue pair has.
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

    /// The pool of a new shared queue.
    fn shared_queue(&mut self, node: usize) -> usize {
        let number = self.world.add_shared_queue(node);
        let random = Random::new(self.random.bits(), 0);
        let queue = Queue::Shared { node, number };
        self.pools.push(Pool::new(queue, 0, 0, random));
        self.pools.len() - 1
    }

    fn add_pool(&mut self, queue: Queue, length: usize, connection: &Connection) -> usize {
        let random = Random::new(self.random.bits(), 0);
        let mut pool = Pool::new(queue, length, connection.receives, random);
        pool.refill = connection.refill;
        self.pools.push(pool);
        self.pools.len() - 1
    }

    /// Sets a queue pair's attributes and makes it ready to send.
    pub(super) fn set_up(&mut self, number: usize, side: usize, [place, peer]: [Place; 2]) {
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
            signal_all: connection.signal_all,
            shared_receive: connection.shared_receive,
        };
        self.world.enter(place, State::ReadyToReceive);
        if self.world.queue_pair(place).service() != Service::XrcTarget {
            self.world.enter(place, State::ReadyToSend);
        }
    }

    fn add_requester(&mut self, number: usize, side: usize, [place, peer]: [Place; 2]) {
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
        // Room for every message, or of unreliable ones for the sum of them.
        let length = match connection.kind {
            Kind::Reliable | Kind::Extended => connection.largest as usize + 4096,
            Kind::Unreliable => 2 << 20,
            Kind::Datagram => 0,
        };
        let id = self.next_id();
        let memory = self.world.memory(peer.node);
        let target = Target::new(peer.node, memory, id, base, length);
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
            budget: BUDGET,
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

/// Bytes that a requester may post in large messages, but for one of the largest.
const BUDGET: u64 = 1 << 20;

/// Room for the longest message, and in front of a datagram for its GRH.
fn receive_length(connection: &Connection) -> usize {
    match connection.kind {
        Kind::Datagram => connection.largest as usize + 40,
        _ => connection.largest as usize,
    }
}

fn address(node: usize, ipv6: bool) -> Ipv6Addr {
    let last = node as u8 + 1;
    if ipv6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())
    } else {
        Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped()
    }
}
