use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::Time;

use super::random::Random;

/// What a network does to packets; the chances are in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Packets that never arrive.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets that others overtake.
    pub reorder: u32,
    /// Packets that arrive changed.
    pub corrupt: u32,
    /// How long a packet takes, beside the time its bits take.
    pub latency: Duration,
    /// How much longer it may take; packets stay in order.
    pub jitter: Duration,
    /// How long a packet that is overtaken, or a second copy, is held back at most.
    pub hold: Duration,
    /// How fast a node sends, in bits a second.
    pub bandwidth: u64,
    /// How many bytes of a node may wait to be sent; a packet that finds more is lost.
    pub backlog: u64,
}

impl Conditions {
    /// A network that loses nothing: 10 Gbit/s, 5 us.
    pub const CLEAN: Self = Self {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
        latency: Duration::from_micros(5),
        jitter: Duration::ZERO,
        hold: Duration::from_micros(20),
        bandwidth: 10_000_000_000,
        backlog: u64::MAX,
    };
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Deliver,
    /// It does not arrive.
    Lose,
    /// It arrives, and so much later once more.
    Duplicate(Duration),
    /// It arrives so much later than those before and behind it.
    Hold(Duration),
    /// It arrives with some bits flipped: which ones follow from the number.
    Corrupt(u64),
}

/// Who decides about packets.
#[derive(Clone, Debug)]
pub(crate) enum Faults {
    /// Chance.
    Random(Conditions),
    /// A list: the n-th packet of all has this fate, others arrive.
    Script(Conditions, BTreeMap<u64, Fate>),
}

/// The way out of one node.
#[derive(Debug)]
struct Egress {
    /// When its last packet has left.
    free: Time,
    /// When the last packet that kept its place arrives.
    last: Time,
}

/// What connects the nodes.
#[derive(Debug)]
pub(crate) struct Network {
    faults: Faults,
    random: Random,
    ways: Vec<Egress>,
    packets: u64,
    /// Queue pairs that no packet reaches any more.
    cut: Vec<u32>,
}

impl Network {
    pub(crate) fn new(faults: Faults, random: Random) -> Self {
        Self {
            faults,
            random,
            ways: Vec::new(),
            packets: 0,
            cut: Vec::new(),
        }
    }

    /// One more node.
    pub(crate) fn connect(&mut self) {
        let start = Time::default();
        self.ways.push(Egress {
            free: start,
            last: start,
        });
    }

    /// From now on nothing reaches this queue pair.
    pub(crate) fn cut(&mut self, queue_pair: u32) {
        self.cut.push(queue_pair);
    }

    /// A packet of `bytes` leaves `node` for `queue_pair`: what becomes of it, and when it arrives if it does.
    pub(crate) fn send(
        &mut self,
        now: Time,
        node: usize,
        queue_pair: u32,
        bytes: usize,
    ) -> (Fate, Time) {
        let number = self.packets;
        self.packets += 1;
        let (conditions, fate) = match &self.faults {
            Faults::Random(conditions) => {
                let fate = chance(conditions, &mut self.random);
                (conditions, fate)
            }
            Faults::Script(conditions, script) => {
                let fate = script.get(&number).copied();
                (conditions, fate.unwrap_or(Fate::Deliver))
            }
        };
        let bits = (bytes as u64 + ETHERNET) * 8;
        let wire = Duration::from_nanos(bits * 1_000_000_000 / conditions.bandwidth);
        let jitter = conditions.jitter.as_nanos() as u64;
        let jitter = match jitter {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.random.range(0, most)),
        };
        let way = &mut self.ways[node];
        let waiting = (way.free - now).as_nanos() * u128::from(conditions.bandwidth);
        if waiting > u128::from(conditions.backlog) * 8 * 1_000_000_000 {
            return (Fate::Lose, now);
        }
        way.free = way.free.max(now) + wire;
        let arrival = (way.free + conditions.latency + jitter).max(way.last);
        if self.cut.contains(&queue_pair) {
            return (Fate::Lose, arrival);
        }
        match fate {
            Fate::Hold(hold) => (fate, arrival + hold),
            _ => {
                way.last = arrival;
                (fate, arrival)
            }
        }
    }
}

/// Bytes around an IP packet: preamble, MAC header, check sequence, gap.
const ETHERNET: u64 = 38;

fn chance(conditions: &Conditions, random: &mut Random) -> Fate {
    // One number decides, so that a packet has one fate and a clean network draws no more.
    let mut number = random.range(0, 999_999) as u32;
    let mut is = |chance: u32| {
        let hit = number < chance;
        number = number.wrapping_sub(chance);
        hit
    };
    let mut hold = || Duration::from_nanos(random.range(0, conditions.hold.as_nanos() as u64));
    if is(conditions.loss) {
        Fate::Lose
    } else if is(conditions.duplicate) {
        Fate::Duplicate(hold())
    } else if is(conditions.reorder) {
        Fate::Hold(hold())
    } else if is(conditions.corrupt) {
        Fate::Corrupt(random.bits())
    } else {
        Fate::Deliver
    }
}
