//! The comparisons of softroce between two simulated hosts: network namespaces joined by a veth
//! pair.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::{Ratio, Value};
use super::super::row::{Row, Term, Unit};
use super::super::run::{Path, Run};
use super::super::source::{Source, Tool};
use super::super::statistic::Statistic;
use super::{DEPTH_64, LARGE, perftest};
use crate::plan::Layer;
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{Echo, Send, Write};

/// The usual MTU of Ethernet in bytes, for the network between the two simulated hosts.
const ETHERNET_MTU: usize = 1500;
/// The MTU of Ethernet with jumbo frames in bytes, for the network between the two simulated hosts.
const JUMBO_MTU: usize = 9000;

/// Returns the bandwidth test of writes of 64 KiB between two simulated hosts. `link` is the MTU of
/// their network in bytes, `path` is the path MTU of the connection in bytes.
const fn writes(link: usize, path: usize) -> Run {
    Run::new(Write, Bandwidth, LARGE)
        .path(Path::Hosts(link))
        .mtu(path)
}

/// Returns a term (a number to be measured): the sum of the rates at which `count` processes of one
/// simulated host write to the other host at the same time.
const fn flows(count: usize) -> Term {
    Term::of(Source::Flows { count, size: LARGE })
}

/// Defines a comparison (a row of the judge's table) of perftest's writes with writes to a TCP
/// connection, over the same network between two simulated hosts.
macro_rules! beside_tcp {
    ($id:literal, $what:literal, ($link:expr, $path:expr), $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes($link, $path)),
            yardstick: &[Term::of(Source::Hosts(
                Tool::Yardstick,
                &["tcp", "--size", "65536"],
                $link,
            ))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Defines a comparison (a row of the judge's table) of writes while packets are lost or reordered
/// with writes without such faults.
macro_rules! with_faults {
    ($id:literal, $what:literal, $variable:literal, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes(ETHERNET_MTU, 1024).with_variables(&[$variable])),
            yardstick: &[perftest(writes(ETHERNET_MTU, 1024))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

pub(super) const ROWS: &[Row] = &[
    beside_tcp!(
        "J1",
        "ib_write_bw 64 KiB, two hosts, MTU 1500 / TCP",
        (ETHERNET_MTU, 1024),
        0.8
    ),
    beside_tcp!(
        "J2",
        "ib_write_bw 64 KiB, two hosts, MTU 9000 / TCP",
        (JUMBO_MTU, 4096),
        1.0
    ),
    Row {
        id: "J3",
        what: "ib_send_lat 8 B, two hosts / UDP sockets",
        unit: Unit::Microseconds,
        figure: perftest(
            Run::new(Send, Latency, 8)
                .path(Path::Hosts(ETHERNET_MTU))
                .mtu(1024),
        ),
        // The yardstick is the whole round trip; perftest reports half of a round trip.
        yardstick: &[Term::times(
            0.5,
            Source::Hosts(Tool::Yardstick, &["udp", "--size", "8"], ETHERNET_MTU),
        )],
        goal: Ratio(AtMost(1.5)),
    },
    with_faults!(
        "J4a",
        "ib_write_bw 64 KiB, two hosts, latency 200 us / 0",
        "SOFTROCE_LATENCY=200us",
        0.8
    ),
    with_faults!(
        "J4b",
        "ib_write_bw 64 KiB, two hosts, latency 2 ms / 0",
        "SOFTROCE_LATENCY=2ms",
        0.6
    ),
    with_faults!(
        "J5a",
        "ib_write_bw 64 KiB, two hosts, loss 0.1 % / 0",
        "SOFTROCE_LOSS=0.1%",
        0.7
    ),
    with_faults!(
        "J5b",
        "ib_write_bw 64 KiB, two hosts, loss 1 % / 0",
        "SOFTROCE_LOSS=1%",
        0.4
    ),
    Row {
        id: "J6a",
        what: "ib_write_bw 64 KiB, two hosts, 8 flows / 1",
        unit: Unit::Bytes(LARGE),
        figure: flows(8),
        yardstick: &[flows(1)],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "J6b",
        what: "slowest / fastest of the 8 flows of J6a",
        unit: Unit::Count,
        figure: flows(8).with(Statistic::Counter("/fairness")),
        yardstick: &[],
        goal: Value(AtLeast(0.5)),
    },
    Row {
        id: "J7",
        what: "calls 32 B, 64 in flight, two hosts / tonic",
        unit: Unit::Messages,
        figure: Term::of(Source::Ours(
            Layer::Rpc,
            Run::new(Echo, Bandwidth, 32)
                .with(DEPTH_64)
                .path(Path::Hosts(ETHERNET_MTU))
                .mtu(1024),
        )),
        yardstick: &[Term::of(Source::Hosts(
            Tool::Peers,
            &["tonic", "rate"],
            ETHERNET_MTU,
        ))],
        goal: Ratio(AtLeast(3.0)),
    },
];
