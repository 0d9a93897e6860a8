use std::collections::HashMap;
use std::time::Duration;

use crate::proto::{Event, Path, State, Time};

use super::network::{Faults, Network};
use super::random::Random;
use super::receive_pool::{Queue, ReceivePool};
use super::requester::Requester;
use super::run::Outcome;
use super::schedule::Schedule;
use super::setup::address;
use super::shared_words::SharedWords;
use super::trace::Lines;
use super::world::{Notice, QpId, World};

/// State of a running [`Schedule`]: the simulated world (nodes and network), and the expected state
/// of this world.
pub(super) struct Scenario<'t> {
    pub(super) schedule: &'t Schedule,
    pub(super) world: World<'t>,
    pub(super) requesters: Vec<Requester>,
    pub(super) pools: Vec<ReceivePool>,
    /// State of each queue pair as the model expects it.
    pub(super) roles: HashMap<QpId, ExpectedState>,
    /// For each node, the memory words that several requesters change by atomic operations.
    pub(super) cells: Vec<SharedWords>,
    /// Indices of the two pools that post receives for each XRC connection, by the index of the
    /// connection. An XRC target has two shared receive queues.
    pub(super) xrc: HashMap<usize, [usize; 2]>,
    /// For each connection, set once one of its queue pairs has failed.
    pub(super) broken: Vec<bool>,
    /// Time at which the network cut a connection, by the index of the connection.
    pub(super) cut: HashMap<usize, Time>,
    pub(super) outcome: Outcome,
    /// Number of times that the queue pairs were reset and connected again.
    pub(super) life: u32,
    ids: u64,
    pub(super) random: Random,
}

/// Expected state of a simulated queue pair: the requesters at both ends of the connection, the
/// receives, and the events that the queue pair has raised.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpectedState {
    /// Index of the requester that posts to this queue pair.
    pub(super) asks: Option<usize>,
    /// Index of the requester on the other side of the connection, which sends to this queue pair.
    pub(super) asked_by: Option<usize>,
    /// Index of the pool that posts receives for this queue pair.
    pub(super) pool: Option<usize>,
    /// Asynchronous events that the queue pair has raised so far.
    pub(super) raised: Vec<Event>,
    /// Number of receives of a shared queue that this queue pair has flushed.
    pub(super) flushed_shared: u32,
}

/// Action of the simulated program that is scheduled for a later time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    /// The requester with this index must continue posting.
    Post(usize),
    /// The pool with this index must post a receive.
    Refill(usize),
    /// The requester with this index must drain its send queue.
    Drain(usize),
    /// The requester with this index must leave the state "send queue drained".
    Resume(usize),
}

/// Number of variants of [`Token`]. Used to encode a token as the number of a wakeup: the index in
/// the token, times this constant, plus the number of the token's variant.
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

/// Maximum number of events in a run. A run with more events is assumed never to end, and fails.
const MAX_EVENTS: u64 = 20_000_000;
/// Maximum simulated time of a run. A run that takes longer is assumed never to end, and fails.
const LATEST: Time = Time::from_nanos(10_000 * 1_000_000_000);

impl<'t> Scenario<'t> {
    /// Creates the nodes, the network and the connected queue pairs that the schedule defines. A
    /// trace of the packets is passed to `lines`.
    pub(super) fn new(schedule: &'t Schedule, lines: Option<&'t mut Lines<'t>>) -> Self {
        let faults = match &schedule.script {
            Some(script) => Faults::Script(schedule.conditions, script.clone()),
            None => Faults::Random(schedule.conditions),
        };
        let network = Network::new(faults, Random::new(schedule.seed, 1));
        let mut world = World::new(network, schedule.batch, schedule.ring_messages);
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
            cut: HashMap::new(),
            outcome: Outcome::default(),
            life: 0,
            ids: 0,
            random: Random::new(schedule.seed, 2),
        };
        for number in 0..schedule.nodes {
            let node = scenario.world.add_node(address(number, schedule.ipv6));
            let words = SharedWords::new(scenario.world.memory(node));
            scenario.cells.push(words);
        }
        let mut shared = HashMap::new();
        for number in 0..schedule.connections.len() {
            scenario.connect(number, &mut shared);
        }
        scenario
    }

    /// Simulates the schedule from start to end, and checks all results. The error describes the
    /// first wrong result.
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
            // In some runs no receive is posted for the first message.
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
            self.post_requests(r)?;
        }
        self.run_until_idle()?;
        let all: Vec<_> = (0..self.requesters.len()).collect();
        self.finish(&all)?;
        if self.schedule.again {
            self.reset_and_rerun()?;
        }
        Ok(())
    }

    /// Simulates until no event is left. Checks each completion and each event of a queue pair, and
    /// handles each wakeup of the simulated program.
    pub(super) fn run_until_idle(&mut self) -> Result<(), String> {
        let mut notices = Vec::new();
        loop {
            self.world.take_notices(&mut notices);
            for notice in notices.drain(..) {
                self.notice(notice)?;
            }
            let goes_on = self.world.step().map_err(|breach| breach.0)?;
            if !goes_on {
                // The last event may have caused notices.
                self.world.take_notices(&mut notices);
                if notices.is_empty() {
                    return Ok(());
                }
                for notice in notices.drain(..) {
                    self.notice(notice)?;
                }
            }
            let events = self.world.traffic().events;
            if events > MAX_EVENTS || self.world.now() > LATEST {
                return Err(format!("livelock: {events} events, and no end"));
            }
        }
    }

    fn notice(&mut self, notice: Notice) -> Result<(), String> {
        match notice {
            Notice::At(place, happening) => self.check_happening(place, happening)?,
            Notice::Wake(token) => match Token::of(token) {
                Token::Post(r) => {
                    self.requesters[r].resting = false;
                    self.post_requests(r)?;
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
                        self.post_requests(r)?;
                    }
                }
            },
        }
        Ok(())
    }

    /// Returns a request ID that was not used before in this run.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Returns a random delay that is short compared with the timeouts of requesters.
    pub(super) fn short_delay(&mut self) -> Duration {
        Duration::from_nanos(self.random.magnitude(300_000))
    }

    /// Posts a receive to the queue of the [`ReceivePool`] with the index `pool`, if fewer than
    /// [`depth`](ReceivePool::depth) receives are posted.
    pub(super) fn refill(&mut self, pool: usize) {
        let id = self.next_id();
        if let Queue::Own(place) = self.pools[pool].queue {
            // A receive that is posted to a queue pair in the error state would be flushed
            // immediately, so none is posted.
            self.pools[pool].stopped |= self.world.queue_pair(place).state() == State::Error;
        }
        self.pools[pool].refill(&mut self.world, id);
    }

    /// Returns the number of one of the two shared receive queues of an XRC target: the target to
    /// which the simulated requester with the index `r` sends. `which` selects the queue, and is 0
    /// or 1.
    pub(super) fn xrc_queue(&self, r: usize, which: u32) -> u32 {
        let pools = self.xrc[&self.requesters[r].connection];
        match self.pools[pools[which as usize]].queue {
            Queue::Shared { number, .. } => number as u32,
            Queue::Own(_) => 0,
        }
    }

    /// Returns the index of the [`ReceivePool`] for the shared receive queue with the number
    /// `number` of the node `node`, or `None` if this queue has no pool.
    pub(super) fn shared_pool(&self, node: usize, number: u32) -> Option<usize> {
        let number = number as usize;
        let queue = Queue::Shared { node, number };
        self.pools.iter().position(|pool| pool.queue == queue)
    }

    /// Returns the network path from the simulated requester with the index `r` to its peer, and
    /// the number of the peer's queue pair.
    pub(super) fn path_of(&self, r: usize) -> (Path, u32) {
        let attributes = self.world.queue_pair(self.requesters[r].place).attributes();
        let partner = self.requesters[r].partner.unwrap_or(r);
        let place = self.requesters[partner].place;
        let path = attributes.path.unwrap_or_else(|| self.path_to(place.node));
        (path, self.world.queue_pair(place).number())
    }
}
