use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::{Mtu, Sequence};

use super::network::{Conditions, Fate};
use super::random::Random;

/// Everything that happens in a run: who is connected, over what network, and what is asked. The
/// same schedule always runs the same way.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Decides what the rest leaves open.
    pub seed: u64,
    /// What the network does to packets.
    pub conditions: Conditions,
    /// Fates of single packets, by their number, instead of chance.
    pub script: Option<BTreeMap<u64, Fate>>,
    /// Requests may end in an exhausted retry count.
    pub harsh: bool,
    /// How many nodes there are.
    pub nodes: usize,
    /// Nodes have IPv6 addresses.
    pub ipv6: bool,
    /// How long a node collects packets before it answers.
    pub batch: Duration,
    /// Reliable queue pairs send what they can in briefs, and leave acknowledgements of briefs for so long, for what they send
    /// next. None: all is packets.
    pub briefs: Option<Duration>,
    /// Reliable queue pairs are reset in the end, and connected again for some more requests.
    pub again: bool,
    /// Who talks to whom.
    pub connections: Vec<Connection>,
}

/// What kind of queue pairs a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two reliable ones.
    Reliable,
    /// Two unreliable ones.
    Unreliable,
    /// Two that send each other datagrams.
    Datagram,
    /// An XRC initiator, and a target with two shared receive queues.
    Extended,
}

/// How the requests of a connection end, if not well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A write, read or atomic with a key that is none.
    UnknownKey,
    /// A write or read beyond the end of a region.
    OutOfBounds,
    /// An atomic at an address that is not a multiple of eight.
    Misaligned,
    /// A message that is longer than the receive.
    TooLong,
    /// A message into memory that the receiver gave no key of.
    BadReceive,
    /// A message from memory that the sender has no key of.
    BadGather,
    /// A read into memory that the reader has no key of.
    BadScatter,
    /// A key to invalidate that is none.
    BadInvalidate,
    /// Nothing reaches the two queue pairs any more.
    Cut,
    /// There is never a receive again.
    NoReceive,
}

impl Ending {
    /// All of them.
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

/// Two queue pairs that are connected, and what they ask of each other.
#[derive(Clone, Debug)]
pub struct Connection {
    /// What they are.
    pub kind: Kind,
    /// Where they are.
    pub nodes: [usize; 2],
    /// How many requests each posts.
    pub requests: [u32; 2],
    /// The largest message, in bytes.
    pub largest: u32,
    /// One request is of the largest size.
    pub has_largest: bool,
    /// The path MTU.
    pub mtu: Mtu,
    /// The first sequence number of each.
    pub sequences: [Sequence; 2],
    /// How many packets may be on the way.
    pub window: u32,
    /// How many reads and atomics may be under way.
    pub reads: u8,
    /// How long to wait for an acknowledgement.
    pub ack_timeout: Duration,
    /// How often to send again without an answer.
    pub retry_count: u8,
    /// How often to send again to a receiver that is not ready.
    pub rnr_retry: u8,
    /// The code of how long a requester waits for a receiver.
    pub rnr_timer: u8,
    /// How many requests are posted at once.
    pub depth: usize,
    /// How many receives are posted at once.
    pub receives: usize,
    /// How long after a receive was used a new one is posted.
    pub refill: Duration,
    /// Receives come from a queue that the queue pairs of a node share.
    pub shared_receive: bool,
    /// Every request is signaled.
    pub signal_all: bool,
    /// Send queues are drained on the way, and go on.
    pub drain: bool,
    /// How the first one's requests end.
    pub ending: Option<Ending>,
}

/// How long a requester waits for a receiver that is not ready, by the code's number (IBTA table 46).
const RNR_TIMERS_US: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
    327_680, 491_520,
];

/// How long a requester waits at timer code `code`.
pub(crate) fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMERS_US[usize::from(code & 31)].into())
}

/// How long a queue pair waits for an acknowledgement at the timeout `exponent`.
pub(crate) fn ack_delay(exponent: u32) -> Duration {
    Duration::from_nanos(4096 << exponent)
}

const MEBIBYTE: u32 = 1 << 20;

impl Schedule {
    /// The schedule of a seed.
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
            briefs: None,
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
        schedule.top_up(REQUESTS);
        if random.percent(40) {
            let ending = random.pick(&Ending::ALL);
            let number = random.below(reliable);
            schedule.connections[number].end_with(ending, &mut random);
        }
        // Drawn apart: without briefs a seed is what it was before there were any.
        let mut random = Random::new(seed, 3);
        if random.percent(30) {
            schedule.briefs = Some(Duration::from_nanos(random.magnitude(50_000)));
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
        // Also to itself: loopback.
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
        let each = REQUESTS / (2 * count as u32);
        let requests = std::array::from_fn(|_| random.range(each.into(), u64::from(each) + 10));
        let rnr_timer = random.range(1, 14) as u8;
        let rnr_retry = random.range(3, 7) as u8;
        let shared_receive = kind == Kind::Extended || random.percent(20);
        // A shared queue may be emptied again and again by others, an own one is filled in time.
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

    /// Adds requests until there are `least`.
    fn top_up(&mut self, least: u32) {
        let posts = |connection: &Connection| match connection.kind {
            Kind::Extended => connection.requests[0],
            _ => connection.requests.iter().sum(),
        };
        let count: u32 = self.connections.iter().map(posts).sum();
        self.connections[0].requests[0] += least.saturating_sub(count);
    }
}

/// How many requests a schedule of a seed has at least.
const REQUESTS: u32 = 200;

fn conditions(random: &mut Random, class: u64) -> Conditions {
    // Of a million: those who are lost and those who are changed make the losses.
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
    /// Makes it end so, and everything else fit to that.
    fn end_with(&mut self, ending: Ending, random: &mut Random) {
        self.ending = Some(ending);
        if matches!(
            ending,
            Ending::TooLong | Ending::BadReceive | Ending::NoReceive
        ) {
            // What the receiver does is about its own queue.
            self.shared_receive = false;
        }
        if ending == Ending::NoReceive {
            self.rnr_retry = random.range(0, 6) as u8;
            self.refill = Duration::ZERO;
        }
    }
}
