use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::Time;

use super::random::Random;

/// Properties of a simulated network. Probabilities are in packets per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Probability that a packet is lost.
    pub loss: u32,
    /// Probability that a packet arrives twice.
    pub duplicate: u32,
    /// Probability that a packet is delayed for some time in which later packets can overtake it.
    pub reorder: u32,
    /// Probability that a packet arrives with changed bytes.
    pub corrupt: u32,
    /// Delay of each packet, in addition to its transmission time.
    pub latency: Duration,
    /// Maximum additional delay of a packet. It does not change the order of packets.
    pub jitter: Duration,
    /// Maximum additional delay of an overtaken packet, or of the second arrival of a duplicated
    /// packet.
    pub hold: Duration,
    /// Transmission rate of a node, in bits per second.
    pub bandwidth: u64,
    /// Maximum number of bytes that wait in a node to be sent. Further packets are lost.
    pub backlog: u64,
}

impl Conditions {
    /// A network without losses, with 10 Gbit/s and 5 us of latency.
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

/// Effect of the simulated network on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The packet arrives.
    Deliver,
    /// The packet is lost.
    Lose,
    /// The packet arrives twice, the second time after the given delay.
    Duplicate(Duration),
    /// The packet arrives late by the given delay, in which later packets can overtake it.
    Hold(Duration),
    /// The packet arrives with flipped bits. The number determines which bits.
    Corrupt(u64),
}

/// Source of the [`Fate`] of each packet.
#[derive(Clone, Debug)]
pub(crate) enum Faults {
    /// Effects are drawn at random, with the given probabilities.
    Random(Conditions),
    /// Effects are given for some packets, by the number of the packet. All other packets are
    /// delivered.
    Script(Conditions, BTreeMap<u64, Fate>),
}

/// State of a node's outgoing connection to the network.
#[derive(Debug)]
struct Egress {
    /// Time at which the node will have transmitted its last packet.
    free: Time,
    /// Arrival time of the last packet that was not reordered.
    last: Time,
}

/// The network that connects the simulated nodes.
#[derive(Debug)]
pub(crate) struct Network {
    faults: Faults,
    random: Random,
    ways: Vec<Egress>,
    packets: u64,
    /// Numbers of the queue pairs to which the network loses all packets.
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

    /// Adds a node to the network.
    pub(crate) fn add_node(&mut self) {
        let start = Time::default();
        self.ways.push(Egress {
            free: start,
            last: start,
        });
    }

    /// Makes the network lose all further packets to the queue pair with the number `queue_pair`.
    pub(crate) fn cut(&mut self, queue_pair: u32) {
        self.cut.push(queue_pair);
    }

    /// Sends a packet of `bytes` bytes from the node `node` to the queue pair with the number
    /// `queue_pair`. Returns the effect of the network, and the arrival time if the packet is not
    /// lost.
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
        let bits = (bytes as u64 + ETHERNET_OVERHEAD) * 8;
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

/// Number of bytes around an IP packet on Ethernet: preamble, MAC header, frame check sequence, and
/// inter-packet gap.
const ETHERNET_OVERHEAD: u64 = 38;

fn chance(conditions: &Conditions, random: &mut Random) -> Fate {
    // A single random number decides about all faults, so a packet has only one. A network without
    // faults draws no other number here.
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
