//! Rows of softroce between two hosts: network namespaces that are joined by a veth pair.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::{Ratio, Value};
use super::super::row::{Part, Row, Unit};
use super::super::run::{Path, Run};
use super::super::source::{Source, Tool};
use super::super::statistic::Statistic;
use super::{LARGE, WINDOW, perftest};
use crate::plan::Layer;
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{Echo, Send, Write};

/// MTU of Ethernet, which is usual.
const USUAL: usize = 1500;
/// MTU of jumbo frames.
const JUMBO: usize = 9000;

/// Returns perftest's writes of 64 KiB over a network with the MTU `link`, in packets with the MTU
/// `path`.
const fn writes(link: usize, path: usize) -> Run {
    Run::new(Write, Bandwidth, LARGE)
        .by(Path::Hosts(link))
        .mtu(path)
}

/// Returns the measurement of the sum of the writes of `count` processes.
const fn flows(count: usize) -> Part {
    Part::of(Source::Flows { count, size: LARGE })
}

/// Creates a row that compares writes with writes to a TCP connection over the same network.
macro_rules! beside_tcp {
    ($id:literal, $what:literal, ($link:expr, $path:expr), $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes($link, $path)),
            yardstick: &[Part::of(Source::Hosts(
                Tool::Yardstick,
                &["tcp", "--size", "65536"],
                $link,
            ))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Creates a row that compares writes under injected faults with writes without faults.
macro_rules! with_faults {
    ($id:literal, $what:literal, $variable:literal, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes(USUAL, 1024).under_variables(&[$variable])),
            yardstick: &[perftest(writes(USUAL, 1024))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

pub(super) const ROWS: &[Row] = &[
    beside_tcp!(
        "J1",
        "ib_write_bw 64 KiB of two hosts, MTU 1500 / TCP",
        (USUAL, 1024),
        0.8
    ),
    beside_tcp!(
        "J2",
        "ib_write_bw 64 KiB of two hosts, MTU 9000 / TCP",
        (JUMBO, 4096),
        1.0
    ),
    Row {
        id: "J3",
        what: "ib_send_lat 8 B of two hosts / UDP sockets",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8).by(Path::Hosts(USUAL)).mtu(1024)),
        // The yardstick is the whole round trip, and perftest reports half of it.
        yardstick: &[Part::times(
            0.5,
            Source::Hosts(Tool::Yardstick, &["udp", "--size", "8"], USUAL),
        )],
        goal: Ratio(AtMost(1.5)),
    },
    with_faults!(
        "J4a",
        "ib_write_bw 64 KiB of two hosts, 200 us / 0 us",
        "SOFTROCE_LATENCY=200us",
        0.8
    ),
    with_faults!(
        "J4b",
        "ib_write_bw 64 KiB of two hosts, 2 ms / 0 ms",
        "SOFTROCE_LATENCY=2ms",
        0.6
    ),
    with_faults!(
        "J5a",
        "ib_write_bw 64 KiB of two hosts, loss 0.1 % / 0",
        "SOFTROCE_LOSS=0.1%",
        0.7
    ),
    with_faults!(
        "J5b",
        "ib_write_bw 64 KiB of two hosts, loss 1 % / 0",
        "SOFTROCE_LOSS=1%",
        0.4
    ),
    Row {
        id: "J6a",
        what: "ib_write_bw 64 KiB of two hosts, sum of 8 / 1",
        unit: Unit::Bytes(LARGE),
        figure: flows(8),
        yardstick: &[flows(1)],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "J6b",
        what: "the slowest of the 8 / the fastest",
        unit: Unit::Count,
        figure: flows(8).at(Statistic::Counter("/fairness")),
        yardstick: &[],
        goal: Value(AtLeast(0.5)),
    },
    Row {
        id: "J7",
        what: "calls 32 B, 64 in flight, of two hosts / tonic",
        unit: Unit::Messages,
        figure: Part::of(Source::Ours(
            Layer::Rpc,
            Run::new(Echo, Bandwidth, 32)
                .with(WINDOW)
                .by(Path::Hosts(USUAL))
                .mtu(1024),
        )),
        yardstick: &[Part::of(Source::Hosts(
            Tool::Peers,
            &["tonic", "rate"],
            USUAL,
        ))],
        goal: Ratio(AtLeast(3.0)),
    },
];
