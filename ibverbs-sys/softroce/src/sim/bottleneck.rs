use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::proto::{CompletionStatus, Counter, Mtu, Time};

use super::network::{Conditions, Faults, Load, Network};
use super::random::Random;
use super::stream::{Flow, Parameters, Stream};
use super::world::{Happening, Notice, World};

/// Parameters of one row of [`bottleneck_table`]: the number of connections that share a link, the
/// round trip time, and the maximum length of the link's packet queue.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Number of connections, each from a node of its own.
    flows: u32,
    /// Round trip time without waiting in the queue, in microseconds.
    round_trip: u64,
    /// Maximum number of bytes that wait in the queue of the link.
    queue: u64,
}

/// Result of one row of [`bottleneck_table`]: the bytes that each connection has transferred, and
/// statistics of the link that the connections share.
#[derive(Clone, Debug)]
struct Shares {
    /// Number of bytes that each connection has transferred in the measured time, by the index of
    /// the connection.
    bytes: Vec<u64>,
    load: Load,
    retransmitted: u64,
}

/// Length in bytes of each message that the measured connections write.
const MESSAGE: u32 = 64 << 10;

/// Number of messages that each measured connection keeps in its send queue, so that the connection
/// always has data to send.
const DEPTH: usize = 64;

/// Time between the beginnings of two consecutive connections. Each new connection must compete
/// with the earlier ones for the link.
const STAGGER: Duration = Duration::from_micros(500);

/// Time between the beginning of the last connection and the beginning of the measurement. In this
/// time, the connections adapt their windows to each other.
const SETTLE: Duration = Duration::from_millis(50);

/// Simulated time in which the bytes that the connections transfer are counted.
const MEASURED: Duration = Duration::from_millis(100);

/// Transmission rate of the access link of each node, in bits per second. This rate is higher than
/// the rate of the shared link, so even a single connection can fill the queue of the shared link.
const ACCESS: u64 = 25_000_000_000;

/// Index of the first sender among the simulated nodes. All senders share the network link of this
/// node.
const LINK: usize = 1;

const KIB: u64 = 1 << 10;

const ROWS: &[Row] = &[
    row(1, 10, 64 * KIB),
    row(1, 10, 1024 * KIB),
    row(1, 200, 256 * KIB),
    row(1, 2000, 1024 * KIB),
    row(2, 10, 64 * KIB),
    row(2, 200, 256 * KIB),
    row(2, 2000, 1024 * KIB),
    row(8, 10, 64 * KIB),
    row(8, 10, 256 * KIB),
    row(8, 10, 1024 * KIB),
    row(8, 200, 256 * KIB),
    row(8, 2000, 1024 * KIB),
    row(32, 10, 256 * KIB),
    row(32, 200, 256 * KIB),
    row(32, 200, 1024 * KIB),
];

const fn row(flows: u32, round_trip: u64, queue: u64) -> Row {
    Row {
        flows,
        round_trip,
        queue,
    }
}

/// Returns a table that shows how connections share one link: their rates, losses and waiting
/// times, for different numbers of connections, round trip times and queue lengths. The values
/// depend only on the transport (protocol code), so the table shows the effect of a change of the
/// congestion control.
pub fn bottleneck_table() -> String {
    let mut table = String::from(
        "Reliable connections that write 64 KiB messages over one link of 10 Gbit/s, with a path MTU\n\
         of 1024 and an acknowledgement timeout of 67 ms. Each connection is that of a node of its own,\n\
         with a link of 25 Gbit/s to the queue of the common link. Packets that find the queue full are\n\
         lost. Measured over 100 ms, from 50 ms after the begin of the last connection on: the sum of\n\
         the rates, the shares of the slowest and the fastest connection in percent of an equal share,\n\
         Jain's fairness index in percent, the packets that are lost and that are sent again per 1000\n\
         packets, and the mean time that a packet waits in the queue.\n\n\
         flows round trip us queue KiB  Mbit/s  slowest fastest  Jain  lost again  waits us\n",
    );
    for row in ROWS {
        // Writing to a string cannot fail.
        let _ = write!(
            table,
            "{:>5} {:>13} {:>9}",
            row.flows,
            row.round_trip,
            row.queue / KIB
        );
        match measure(row) {
            Some(shares) => shares.write_to(&mut table),
            None => table.push_str(" failed"),
        }
        table.push('\n');
    }
    table
}

impl Shares {
    fn write_to(&self, table: &mut String) {
        let count = self.bytes.len() as u64;
        let sum: u64 = self.bytes.iter().sum();
        let percent = |bytes: u64| bytes * count * 100 / sum.max(1);
        let squares: u128 = self
            .bytes
            .iter()
            .map(|&bytes| u128::from(bytes).pow(2))
            .sum();
        let jain = u128::from(sum).pow(2) * 100 / (u128::from(count) * squares).max(1);
        let packets = self.load.packets.max(1);
        let _ = write!(
            table,
            " {:>7} {:>8} {:>7} {:>5} {:>5} {:>5} {:>9}",
            u128::from(sum) * 8000 / MEASURED.as_nanos(),
            percent(self.bytes.iter().copied().min().unwrap_or(0)),
            percent(self.bytes.iter().copied().max().unwrap_or(0)),
            jain,
            self.load.overflows * 1000 / packets,
            self.retransmitted * 1000 / packets,
            self.load.waited.as_micros() / u128::from(packets),
        );
    }
}

/// Simulates the connections of one table row, `row`. Returns the number of bytes that each
/// connection has transferred over the shared link, and the statistics of the link. Returns `None`
/// if a message fails.
fn measure(row: &Row) -> Option<Shares> {
    let conditions = Conditions {
        latency: Duration::from_micros(row.round_trip / 2),
        jitter: Duration::from_micros(1),
        backlog: row.queue,
        ..Conditions::CLEAN
    };
    let network = Network::new(Faults::Random(conditions), Random::new(1, 1));
    let mut world = World::new(network, Duration::ZERO, None);
    let parameters = Parameters {
        flow: Flow::Write,
        mtu: Mtu::Mtu1024,
        message: MESSAGE,
        max_window: (16 << 20) / 1024,
        max_kept: (16 << 20) / 1024,
        timeout: 14,
    };
    let target = world.add_node(Ipv4Addr::new(10, 0, 1, 1).to_ipv6_mapped());
    let mut streams = Vec::new();
    for number in 1..=row.flows {
        let node = world.add_node(Ipv4Addr::new(10, 0, 0, number as u8).to_ipv6_mapped());
        world.network().share_link(node, LINK, ACCESS);
        let stream = Stream::connect(&mut world, [node, target], number, parameters);
        world.wake_after(STAGGER * (number - 1), streams.len() as u64);
        streams.push(stream);
    }
    let begin = Time::default() + STAGGER * (row.flows - 1) + SETTLE;
    let end = begin + MEASURED;
    let mut bytes = vec![0; streams.len()];
    let mut before = None;
    let mut notices = Vec::new();
    while world.now() < end {
        world.take_notices(&mut notices);
        for notice in notices.drain(..) {
            match notice {
                Notice::Wake(number) => {
                    let stream = streams.get_mut(usize::try_from(number).ok()?)?;
                    for _ in 0..DEPTH {
                        stream.post(&mut world);
                    }
                }
                Notice::At(place, Happening::Sent(done)) => {
                    if done.status != CompletionStatus::Success {
                        return None;
                    }
                    let is_own = |stream: &Stream| stream.requester() == place;
                    let number = streams.iter().position(is_own)?;
                    if world.now() >= begin {
                        bytes[number] += u64::from(MESSAGE);
                    }
                    streams[number].post(&mut world);
                }
                Notice::At(..) => {}
            }
        }
        if before.is_none() && world.now() >= begin {
            before = Some(totals(&mut world));
        }
        if !matches!(world.step(), Ok(true)) {
            return None;
        }
    }
    let (load, retransmitted) = totals(&mut world);
    let (load_before, retransmitted_before) = before?;
    Some(Shares {
        bytes,
        load: Load {
            packets: load.packets - load_before.packets,
            overflows: load.overflows - load_before.overflows,
            waited: load.waited.saturating_sub(load_before.waited),
        },
        retransmitted: retransmitted - retransmitted_before,
    })
}

/// Returns the statistics of the link that all connections share, and the number of retransmitted
/// packets of the connections.
fn totals(world: &mut World<'_>) -> (Load, u64) {
    let retransmitted = world.counters()[Counter::Retransmitted as usize];
    (world.network().load(LINK), retransmitted)
}
