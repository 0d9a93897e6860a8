use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::proto::{CompletionStatus, Mtu, Time};

use super::network::{Conditions, Faults, Network};
use super::random::Random;
use super::stream::{Flow, Parameters, Stream};
use super::world::{Happening, Notice, World};

/// Loss rates of the columns of [`goodput_table`], in lost packets per million: 10,000 is a loss of
/// 1 percent.
const LOSSES: [u32; 5] = [0, 1000, 10_000, 30_000, 100_000];

/// Number of simulations whose results are averaged for each value of [`goodput_table`]. Each
/// simulation has its own random seed, so a single unlucky loss has less effect.
const SEEDS: u64 = 3;

/// Maximum number of requests in the send queue at the same time. With several requests in the
/// queue, the connection always has data to send.
const DEPTH: usize = 16;

/// Parameters of one row of [`goodput_table`]: the messages, the path MTU, the limit of the
/// sender's packet queue in bytes, and the behavior of the peer.
#[derive(Clone, Copy, Debug)]
struct Row {
    flow: Flow,
    mtu: Mtu,
    message: u32,
    messages: u64,
    /// Maximum number of bytes that wait in a node to be sent. Further packets are lost.
    backlog: u64,
    /// Set if the peer keeps the packets after a gap.
    keeps: bool,
}

/// Returns a table of the goodput at different loss rates, in Mbit/s of virtual time. The values
/// depend only on the transport (protocol code). So the table changes if a change of the transport
/// improves or worsens the recovery from losses.
pub fn goodput_table() -> String {
    let mut table = String::from(
        "Goodput in Mbit/s of one reliable connection: 10 Gbit/s, 5 us each way, a window of 128\n\
         packets, an acknowledgement timeout of 4.2 ms, 16 requests in the queue; by the share of\n\
         packets that is lost each way. In the next rows no more than 64 KiB wait for the link, and\n\
         what is more is lost too. In the last rows the peer keeps no packets after a gap.\n\n\
         operation  message    MTU        0 %     0.1 %       1 %       3 %      10 %\n",
    );
    for row in rows() {
        let name = match row.flow {
            Flow::Send => "send",
            Flow::Write => "write",
            Flow::Read => "read",
        };
        // Writing to a string cannot fail.
        let _ = write!(table, "{name:<9} {:>8} {:>6}", row.message, row.mtu.bytes());
        for loss in LOSSES {
            let _ = write!(table, " {:>9}", megabits(&row, loss));
        }
        table.push('\n');
    }
    table
}

fn rows() -> Vec<Row> {
    let row = |flow, mtu, message, backlog| Row {
        flow,
        mtu,
        message,
        messages: (2 << 20) / u64::from(message).max(4096),
        backlog,
        keeps: true,
    };
    let mut rows = Vec::new();
    for flow in [Flow::Send, Flow::Write, Flow::Read] {
        for (mtu, message) in [
            (Mtu::Mtu1024, 64),
            (Mtu::Mtu1024, 65_536),
            (Mtu::Mtu4096, 65_536),
            (Mtu::Mtu4096, 1 << 20),
        ] {
            rows.push(row(flow, mtu, message, u64::MAX));
        }
    }
    for flow in [Flow::Write, Flow::Read] {
        rows.push(row(flow, Mtu::Mtu4096, 65_536, 64 << 10));
    }
    for (flow, mtu, message) in [
        (Flow::Send, Mtu::Mtu1024, 64),
        (Flow::Write, Mtu::Mtu1024, 65_536),
        (Flow::Write, Mtu::Mtu4096, 65_536),
    ] {
        rows.push(Row {
            keeps: false,
            ..row(flow, mtu, message, u64::MAX)
        });
    }
    rows
}

/// Returns the goodput of the messages of `row` in Mbit/s at the loss rate `loss`, or "failed" if a
/// message failed.
fn megabits(row: &Row, loss: u32) -> String {
    let mut time = Duration::ZERO;
    for seed in 0..SEEDS {
        match run(row, loss, seed) {
            Some(taken) => time += taken,
            None => return "failed".to_owned(),
        }
    }
    let bits = SEEDS * row.messages * u64::from(row.message) * 8;
    let rate = u128::from(bits) * 1000 / time.as_nanos().max(1);
    rate.to_string()
}

/// Simulates the messages of `row` at the loss rate `loss`, and returns the virtual time until all
/// of them are complete. Returns `None` if a message fails. `seed` determines which packets are
/// lost.
fn run(row: &Row, loss: u32, seed: u64) -> Option<Duration> {
    let conditions = Conditions {
        loss,
        backlog: row.backlog,
        ..Conditions::CLEAN
    };
    let network = Network::new(Faults::Random(conditions), Random::new(seed, 1));
    let mut world = World::new(network, Duration::ZERO, None);
    let nodes =
        [1, 2].map(|number| world.add_node(Ipv4Addr::new(10, 0, 0, number).to_ipv6_mapped()));
    let parameters = Parameters {
        flow: row.flow,
        mtu: row.mtu,
        message: row.message,
        max_window: 128,
        max_kept: if row.keeps { 128 } else { 0 },
        timeout: 10,
    };
    let mut stream = Stream::connect(&mut world, nodes, 1, parameters);
    for _ in 0..DEPTH {
        stream.post_receive(&mut world);
        stream.post(&mut world);
    }
    let mut done = 0;
    let mut notices = Vec::new();
    loop {
        world.take_notices(&mut notices);
        for notice in notices.drain(..) {
            let Notice::At(place, what) = notice else {
                continue;
            };
            match what {
                Happening::Sent(end) if end.status != CompletionStatus::Success => return None,
                Happening::Sent(_) => {
                    done += 1;
                    if stream.posted() < row.messages {
                        stream.post(&mut world);
                    }
                }
                Happening::Received(..) if place == stream.responder() => {
                    stream.post_receive(&mut world);
                }
                Happening::Received(..) | Happening::Raised(_) => {}
            }
        }
        if done == row.messages {
            return Some(world.now() - Time::default());
        }
        if !matches!(world.step(), Ok(true)) {
            return None;
        }
    }
}
