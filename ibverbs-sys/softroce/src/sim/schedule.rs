use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::{Mtu, Sequence};

use super::network::{Conditions, Fate};
use super::random::Random;

/// Complete definition of a simulation run: the network, the connections, and the requests. The
/// same schedule always gives the same run.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Seed of the random choices that the other fields do not determine.
    pub seed: u64,
    /// Properties of the network.
    pub conditions: Conditions,
    /// Effects of the network on single packets, by the number of the packet. If set, the network
    /// delivers all other packets unchanged.
    pub script: Option<BTreeMap<u64, Fate>>,
    /// Set if requests may fail because the retry count is exhausted.
    pub harsh: bool,
    /// Number of nodes.
    pub nodes: usize,
    /// Set if nodes have IPv6 addresses.
    pub ipv6: bool,
    /// Time for which a node collects packets before it sends responses.
    pub batch: Duration,
    /// Time for which the acknowledgement of a ring message (a short message without packet
    /// headers) is delayed, so that the next message can include it. If `None`, queue pairs send
    /// only packets.
    pub ring_messages: Option<Duration>,
    /// Set if reliable queue pairs are reset after the first requests, and connected again for more
    /// requests.
    pub again: bool,
    /// Connections between the nodes.
    pub connections: Vec<Connection>,
}

/// Kind of a simulated connection, by its transport service: reliable, unreliable, datagram or XRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two reliable connection queue pairs.
    Reliable,
    /// Two unreliable connection queue pairs.
    Unreliable,
    /// Two datagram queue pairs.
    Datagram,
    /// An XRC initiator, and a target with two shared receive queues.
    Extended,
}

/// Way in which a simulation makes the last request of a connection fail on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A write, read or atomic with a key that is not valid at the peer.
    UnknownKey,
    /// A write or read that continues beyond the end of a region.
    OutOfBounds,
    /// An atomic at an address that is not a multiple of eight.
    Misaligned,
    /// A message that is longer than the receive that it consumes.
    TooLong,
    /// A message to a receive whose memory has no valid key.
    BadReceive,
    /// A message whose memory has no valid key.
    BadGather,
    /// A read into memory that has no valid key.
    BadScatter,
    /// A send that invalidates a key that is not valid at the peer.
    BadInvalidate,
    /// The network loses all packets to both queue pairs.
    Cut,
    /// The receiver posts no more receives.
    NoReceive,
}

impl Ending {
    /// All ways in which a simulation can make the last request of a connection fail.
    pub const ALL: [Self; 10] = [
        Self::UnknownKey,
        Self::OutOfBounds,
        Self::Misaligned,
        Self::TooLong,
        Self::BadReceive,
        Self::BadGather,
        Self::BadScatter,
        Self::BadInvalidate,
        Self::Cut,
        Self::NoReceive,
    ];
}

/// Two connected queue pairs of a simulation, their settings, and the requests that they post.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Kind of the queue pairs.
    pub kind: Kind,
    /// Indices of the nodes of the two queue pairs.
    pub nodes: [usize; 2],
    /// Number of requests that each of the two queue pairs posts.
    pub requests: [u32; 2],
    /// Maximum message length in bytes.
    pub largest: u32,
    /// Set if one request must have the maximum length.
    pub has_largest: bool,
    /// The path MTU.
    pub mtu: Mtu,
    /// First sequence number of each queue pair.
    pub sequences: [Sequence; 2],
    /// Maximum number of packets of a queue pair that are unacknowledged.
    pub window: u32,
    /// Attribute [`max_kept`](crate::proto::Attributes::max_kept) of each of the two queue pairs,
    /// which limits the packets that they keep after a gap. A queue pair with the value 0 keeps
    /// none, like a device of another kind.
    pub kept: [u32; 2],
    /// Maximum number of reads and atomics of a queue pair that are outstanding.
    pub reads: u8,
    /// Acknowledgement timeout.
    pub ack_timeout: Duration,
    /// Maximum number of consecutive retransmissions without a response.
    pub retry_count: u8,
    /// Maximum number of consecutive retries after RNR NAKs.
    pub rnr_retry: u8,
    /// RNR timer code in RNR NAKs, which determines the waiting time.
    pub rnr_timer: u8,
    /// Maximum number of requests of a queue pair that are posted and not complete.
    pub depth: usize,
    /// Number of receives that are kept posted.
    pub receives: usize,
    /// Delay from the completion of a receive to the posting of the next receive.
    pub refill: Duration,
    /// Set if the queue pairs of a node take receives from a shared queue.
    pub shared_receive: bool,
    /// Set if every request is signaled.
    pub signal_all: bool,
    /// Set if send queues are drained during the run, and continue afterwards.
    pub drain: bool,
    /// Way in which the last request of the first queue pair is made to fail. `None` if no request
    /// is made to fail.
    pub ending: Option<Ending>,
}

/// Waiting times after an RNR NAK in microseconds, indexed by the timer code (IBTA
/// 9.7.5.2.8, table 45).
const RNR_TIMERS_US: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
    327_680, 491_520,
];

/// Returns the time for which a requester waits after an RNR NAK (negative acknowledgement of a
/// receiver that is not ready). The NAK contains the timer code `code`, which encodes this time.
pub(crate) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMERS_US[usize::from(code & 31)].into())
}

/// Returns the acknowledgement timeout with the exponent `exponent`: 4.096 us * 2^`exponent`.
pub(crate) fn ack_delay(exponent: u32) -> Duration {
    Duration::from_nanos(4096 << exponent)
}

/// Number of bytes in a mebibyte.
const MEBIBYTE: u32 = 1 << 20;

impl Schedule {
    /// Generates the random schedule of a simulation (the network, connections and requests) that
    /// the seed `seed` determines.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let class = random.range(0, 9);
        let harsh = class >= 8;
        let conditions = conditions(&mut random, class);
        let nodes = random.range(2, 4) as usize;
        let mut schedule = Self {
            seed,
            conditions,
            script: None,
            harsh,
            nodes,
            ipv6: random.percent(30),
            batch: match random.range(0, 2) {
                0 => Duration::ZERO,
                _ => Duration::from_nanos(random.magnitude(20_000)),
            },
            ring_messages: None,
            again: random.percent(25),
            connections: Vec::new(),
        };
        let reliable = random.range(2, 4) as usize;
        let kinds = [
            (Kind::Unreliable, random.percent(30)),
            (Kind::Datagram, random.percent(30)),
            (Kind::Extended, random.percent(30)),
        ];
        let others = kinds
            .into_iter()
            .filter(|(_, is)| *is)
            .map(|(kind, _)| kind);
        let kinds: Vec<Kind> = std::iter::repeat_n(Kind::Reliable, reliable)
            .chain(others)
            .collect();
        let mut big = random.below(reliable);
        if random.percent(10) {
            big = reliable;
        }
        for (number, &kind) in kinds.iter().enumerate() {
            let is_big = number == big || random.percent(5);
            let connection = schedule.connection(&mut random, kind, kinds.len(), is_big);
            schedule.connections.push(connection);
        }
        schedule.add_requests(MIN_REQUESTS);
        if random.percent(40) {
            let ending = random.pick(&Ending::ALL);
            let number = random.below(reliable);
            schedule.connections[number].set_ending(ending, &mut random);
        }
        // These numbers come from separate streams, so the rest of a seed's schedule does not
        // depend on ring messages and on kept packets.
        let mut random = Random::new(seed, 3);
        if random.percent(30) {
            schedule.ring_messages = Some(Duration::from_nanos(random.magnitude(50_000)));
        }
        let mut random = Random::new(seed, 4);
        for connection in &mut schedule.connections {
            let most = 4 * connection.window;
            connection.kept = std::array::from_fn(|_| random.pick(&[0, 2, 9, most, most]));
        }
        schedule
    }

    fn connection(
        &self,
        random: &mut Random,
        kind: Kind,
        count: usize,
        is_big: bool,
    ) -> Connection {
        let first = random.below(self.nodes);
        // In some cases both queue pairs are on the same node.
        let second = match random.percent(10) {
            true => first,
            false => (first + 1 + random.below(self.nodes - 1)) % self.nodes,
        };
        let small_mtu = if self.harsh && is_big { 2 } else { 0 };
        let mtus = [
            Mtu::Mtu256,
            Mtu::Mtu512,
            Mtu::Mtu1024,
            Mtu::Mtu2048,
            Mtu::Mtu4096,
        ];
        let mtu = random.pick(&mtus[small_mtu..]);
        let largest = match (kind, is_big) {
            (Kind::Datagram, _) => mtu.bytes() as u32,
            (_, true) => MEBIBYTE,
            (_, false) => random.pick(&[64, 4096, 16_384, 65_536]),
        };
        let each = MIN_REQUESTS / (2 * count as u32);
        let requests = std::array::from_fn(|_| random.range(each.into(), u64::from(each) + 10));
        let rnr_timer = random.range(1, 14) as u8;
        let rnr_retry = random.range(3, 7) as u8;
        let shared_receive = kind == Kind::Extended || random.percent(20);
        // Other queue pairs may empty a shared queue repeatedly. A queue pair's own queue is
        // refilled in time.
        let rnr_retry = if shared_receive { 7 } else { rnr_retry };
        let refill = match random.range(0, 3) {
            0 => Duration::ZERO,
            1 if rnr_retry == 7 => rnr_delay(rnr_timer) * random.range(1, 3) as u32,
            _ => rnr_delay(rnr_timer) * random.range(1, 40) as u32 / 100,
        };
        Connection {
            kind,
            nodes: [first, second],
            requests: requests.map(|count| count as u32),
            largest,
            has_largest: is_big,
            mtu,
            sequences: std::array::from_fn(|_| match random.percent(70) {
                true => Sequence::new(0xff_ffff - random.magnitude(2000) as u32),
                false => Sequence::new(random.bits() as u32),
            }),
            window: random.pick(&[1, 2, 5, 16, 32, 64, 128, 128, 256]),
            kept: [0; 2],
            reads: random.pick(&[1, 1, 2, 4, 8, 16]),
            ack_timeout: ack_delay(match self.harsh && random.percent(30) {
                true => random.range(7, 12) as u32,
                false => random.range(14, 17) as u32,
            }),
            retry_count: match self.harsh {
                true => random.range(0, 7) as u8,
                false => 7,
            },
            rnr_retry,
            rnr_timer,
            depth: random.range(1, 24) as usize,
            receives: random.range(1, 16) as usize,
            refill,
            shared_receive,
            signal_all: random.percent(20),
            drain: kind == Kind::Reliable && random.percent(20),
            ending: None,
        }
    }

    /// Adds requests to the first connection of this schedule, until all connections together post
    /// at least `least` requests.
    fn add_requests(&mut self, least: u32) {
        let posts = |connection: &Connection| match connection.kind {
            Kind::Extended => connection.requests[0],
            _ => connection.requests.iter().sum(),
        };
        let count: u32 = self.connections.iter().map(posts).sum();
        self.connections[0].requests[0] += least.saturating_sub(count);
    }
}

/// Minimum number of requests of a generated schedule, so that each run contains many combinations
/// of requests and faults.
const MIN_REQUESTS: u32 = 200;

fn conditions(random: &mut Random, class: u64) -> Conditions {
    // The numbers are per million packets. Lost and changed packets together make up the losses.
    let (most, disturbed) = match class {
        0 | 1 => (0, 0),
        2..=6 => (random.magnitude(100_000), 50_000),
        7 => (100_000, 100_000),
        _ => (random.range(100_000, 300_000), 100_000),
    };
    let corrupt = match random.percent(50) {
        true => random.range(0, most / 2),
        false => 0,
    };
    let mut disturbance = || match random.percent(60) {
        true => random.magnitude(disturbed) as u32,
        false => 0,
    };
    Conditions {
        loss: (most - corrupt) as u32,
        corrupt: corrupt as u32,
        duplicate: disturbance(),
        reorder: disturbance(),
        latency: Duration::from_nanos(random.range(500, 20_000)),
        jitter: Duration::from_nanos(random.magnitude(10_000)),
        hold: Duration::from_nanos(random.range(1000, 100_000)),
        bandwidth: random.pick(&[40, 100, 400]) * 1_000_000_000,
        backlog: match class {
            2.. if random.percent(15) => random.range(64 << 10, 1 << 20),
            _ => u64::MAX,
        },
    }
}

impl Connection {
    /// Makes the last request of this connection fail in the way `ending`. Also changes the
    /// settings of receives and retries that would prevent this failure.
    fn set_ending(&mut self, ending: Ending, random: &mut Random) {
        self.ending = Some(ending);
        if matches!(
            ending,
            Ending::TooLong | Ending::BadReceive | Ending::NoReceive
        ) {
            // In these cases the receiver does something with its own receive queue.
            self.shared_receive = false;
        }
        if ending == Ending::NoReceive {
            self.rnr_retry = random.range(0, 6) as u8;
            self.refill = Duration::ZERO;
        }
    }
}
