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
    /// Maximum additional delay of a packet. The delay does not change the order of packets.
    pub jitter: Duration,
    /// Maximum additional delay of an overtaken packet, or of the second arrival of a duplicated
    /// packet.
    pub hold: Duration,
    /// Transmission rate of a link, in bits per second. Each node has a link of its own, unless
    /// nodes are made to share one.
    pub bandwidth: u64,
    /// Maximum number of bytes that wait in the queue of a link. Further packets are lost.
    pub backlog: u64,
}

impl Conditions {
    /// A network that loses and changes no packet, with 10 Gbit/s and 5 us of latency.
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

/// Source of the [`Fate`] of each packet: random numbers, or a script.
#[derive(Clone, Debug)]
pub(crate) enum Faults {
    /// Effects are drawn at random, with the given probabilities.
    Random(Conditions),
    /// Effects are given for some packets, by the number of the packet. All other packets are
    /// delivered.
    Script(Conditions, BTreeMap<u64, Fate>),
}

/// State of a simulated link, on which one node or several nodes send their packets to the network.
#[derive(Debug)]
struct Link {
    /// Time at which the link will have transmitted its last packet.
    free: Time,
    /// Arrival time of the last packet that was not reordered.
    last: Time,
    load: Load,
}

/// State of an access link, on which a single simulated node sends its packets to the queue of a
/// shared link.
#[derive(Debug)]
struct Access {
    bandwidth: u64,
    /// Time at which the link will have transmitted its last packet.
    free: Time,
}

/// Statistics of a link: the packets that were sent on it, and their waiting times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Number of packets that were sent, including those that found the queue of the link full.
    pub(crate) packets: u64,
    /// Number of packets that were lost because the queue of the link was full.
    pub(crate) overflows: u64,
    /// Sum of the times that packets have waited in the queue of the link.
    pub(crate) waited: Duration,
}

/// The network that connects the simulated nodes, delays packets, and determines their [`Fate`].
#[derive(Debug)]
pub(crate) struct Network {
    faults: Faults,
    random: Random,
    links: Vec<Link>,
    /// Index of the link of each node.
    link_of: Vec<usize>,
    /// Access links of the nodes that share a link.
    access: BTreeMap<usize, Access>,
    packets: u64,
    /// Numbers of the queue pairs to which the network loses all packets.
    cut: Vec<u32>,
}

impl Network {
    pub(crate) fn new(faults: Faults, random: Random) -> Self {
        Self {
            faults,
            random,
            links: Vec::new(),
            link_of: Vec::new(),
            access: BTreeMap::new(),
            packets: 0,
            cut: Vec::new(),
        }
    }

    /// Adds a simulated node to the network. The node sends its packets on a new link that only
    /// this node uses.
    pub(crate) fn add_node(&mut self) {
        let start = Time::default();
        self.link_of.push(self.links.len());
        self.links.push(Link {
            free: start,
            last: start,
            load: Load::default(),
        });
    }

    /// Makes the node `node` send its packets on the link of the node `other`, so that the packets
    /// of both nodes wait in one queue. The packets of `node` reach this queue on an access link,
    /// which transmits `bandwidth` bits per second and loses nothing.
    pub(crate) fn share_link(&mut self, node: usize, other: usize, bandwidth: u64) {
        let access = Access {
            bandwidth,
            free: Time::default(),
        };
        self.access.insert(node, access);
        self.link_of[node] = self.link_of[other];
    }

    /// Transmits a packet of `bytes` bytes on the access link of the node `node`. Returns the time
    /// at which the packet arrives at the queue of the shared link, or `None` if the node has no
    /// access link.
    pub(crate) fn access(&mut self, now: Time, node: usize, bytes: usize) -> Option<Time> {
        let access = self.access.get_mut(&node)?;
        access.free = access.free.max(now) + transmission(bytes, access.bandwidth);
        Some(access.free)
    }

    /// Returns the statistics of the link on which the simulated node `node` sends its packets:
    /// packets, losses and waiting times.
    pub(crate) fn load(&self, node: usize) -> Load {
        self.links[self.link_of[node]].load
    }

    /// Makes the network lose all further packets to the queue pair with the number `queue_pair`.
    pub(crate) fn cut(&mut self, queue_pair: u32) {
        self.cut.push(queue_pair);
    }

    /// Sends a packet of `bytes` bytes from the node `node` to the queue pair with the number
    /// `queue_pair`. Returns the [`Fate`] of the packet, for example lost or duplicated, and its
    /// arrival time, which has no meaning for a lost packet.
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
        let wire = transmission(bytes, conditions.bandwidth);
        let jitter = conditions.jitter.as_nanos() as u64;
        let jitter = match jitter {
            0 => Duration::ZERO,
            most => Duration::from_nanos(self.random.range(0, most)),
        };
        let link = &mut self.links[self.link_of[node]];
        let wait = link.free - now;
        link.load.packets += 1;
        if wait.as_nanos() * u128::from(conditions.bandwidth)
            > u128::from(conditions.backlog) * 8 * 1_000_000_000
        {
            link.load.overflows += 1;
            return (Fate::Lose, now);
        }
        link.load.waited += wait;
        link.free = link.free.max(now) + wire;
        let arrival = (link.free + conditions.latency + jitter).max(link.last);
        if self.cut.contains(&queue_pair) {
            return (Fate::Lose, arrival);
        }
        match fate {
            Fate::Hold(hold) => (fate, arrival + hold),
            _ => {
                link.last = arrival;
                (fate, arrival)
            }
        }
    }
}

/// Number of bytes per IP packet that Ethernet adds: preamble, MAC header, frame check sequence,
/// and inter-packet gap. These bytes count for the transmission time of a packet.
const ETHERNET_OVERHEAD: u64 = 38;

/// Returns the transmission time of a packet of `bytes` bytes on a link of `bandwidth` bits per
/// second.
fn transmission(bytes: usize, bandwidth: u64) -> Duration {
    let bits = (bytes as u64 + ETHERNET_OVERHEAD) * 8;
    Duration::from_nanos(bits * 1_000_000_000 / bandwidth)
}

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
