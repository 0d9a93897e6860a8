//! The comparisons of rdma-rpc with rdma-core, and with other RPC frameworks over TCP.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::{Difference, Ratio};
use super::super::row::{Row, Term, Unit};
use super::super::run::Run;
use super::super::source::Source;
use super::super::statistic::Statistic;
use super::{BUSY_DEPTH_64, DEPTH_64, MIB, ours};
use crate::plan::Layer;
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{Bulk, Echo, Item, Send};

const fn of_rpc(run: Run) -> Term {
    Term::of(Source::Ours(Layer::Rpc, run))
}

const fn peer(args: &'static [&'static str]) -> Term {
    Term::of(Source::Peer(args))
}

/// Returns a term (a number to be measured): the rate of RPC calls with an argument and a result of
/// 32 bytes. `rdma-bench` measures the rate, with the further arguments `args`.
const fn echo_rate(args: &'static [&'static str]) -> Term {
    of_rpc(Run::new(Echo, Bandwidth, 32).with(args))
}

/// A term (a number to be measured): the latency of RPC calls of 32 bytes while bulk memory of 64
/// MiB is transferred on the same connection.
const BESIDE_BULK: Term = of_rpc(Run::new(Echo, Latency, 32).with(&["--beside", "67108864"]));

/// Defines a comparison (a row of the judge's table) of the rate of rdma-rpc's calls, with 64 calls
/// in flight on one connection, with the rate of another RPC framework.
macro_rules! calls_beside {
    ($id:literal, $what:literal, $framework:literal, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Messages,
            figure: echo_rate(DEPTH_64),
            yardstick: &[peer(&[$framework, "rate"])],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Defines a comparison (a row of the judge's table) of the rate of calls with the rate of messages
/// over TCP. The calls have 1 MiB of bulk memory, and 64 calls are in flight on one connection. The
/// messages have the same length as the bulk memory.
macro_rules! bulks_beside {
    ($id:literal, $what:literal, $framework:literal, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Messages,
            figure: of_rpc(Run::new(Bulk, Bandwidth, MIB).with(DEPTH_64)),
            yardstick: &[peer(&[$framework, "rate", "-s", "1048576"])],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// The comparisons of rdma-rpc with reference values, such as the results of other RPC frameworks,
/// each with its goal. The comparisons are named `F1`, `F2a` and so on.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "F1",
        what: "call 32 B, polling - 1.5 send round trips, core",
        unit: Unit::Microseconds,
        figure: of_rpc(Run::new(Echo, Latency, 32).with(&["--completion", "busy"])),
        // The test reports half of a round trip.
        yardstick: &[Term::times(
            3.0,
            Source::Ours(Layer::Core, Run::new(Send, Latency, 32)),
        )],
        goal: Difference(AtMost(0.300)),
    },
    calls_beside!("F2a", "calls 32 B, 64 in flight / tonic", "tonic", 10.0),
    calls_beside!("F2b", "calls 32 B, 64 in flight / tarpc", "tarpc", 4.0),
    calls_beside!("F2c", "calls 32 B, 64 in flight / capnp-rpc", "capnp", 4.0),
    Row {
        id: "F3",
        what: "calls 32 B, 64 in flight / send_bw 32 B, core",
        unit: Unit::Messages,
        figure: echo_rate(BUSY_DEPTH_64),
        yardstick: &[ours(Run::new(Send, Bandwidth, 32).with(DEPTH_64))],
        goal: Ratio(AtLeast(0.4)),
    },
    Row {
        id: "F4",
        what: "calls 32 B, 64 in flight, 64 connections / one",
        unit: Unit::Messages,
        figure: echo_rate(&["-t", "64", "-q", "64"]),
        yardstick: &[echo_rate(DEPTH_64)],
        goal: Ratio(AtLeast(0.7)),
    },
    Row {
        id: "F5",
        what: "call 32 B by events / echo of tokio over TCP",
        unit: Unit::Microseconds,
        figure: of_rpc(Run::new(Echo, Latency, 32).with(&["--completion", "event"])),
        yardstick: &[peer(&["tcp", "latency"])],
        goal: Ratio(AtMost(1.15)),
    },
    Row {
        id: "F6",
        what: "streamed items 64 B / tonic",
        unit: Unit::Messages,
        figure: of_rpc(Run::new(Item, Bandwidth, 64)),
        yardstick: &[peer(&["tonic", "items", "-s", "64"])],
        goal: Ratio(AtLeast(10.0)),
    },
    bulks_beside!(
        "F7a",
        "bulk calls 1 MiB, 64 in flight / tonic",
        "tonic",
        8.0
    ),
    bulks_beside!(
        "F7b",
        "bulk calls 1 MiB, 64 in flight / echo of tokio over TCP",
        "tcp",
        2.0
    ),
    Row {
        id: "F8a",
        what: "call 32 B --beside 64M, p99 - alone - 2 copies",
        unit: Unit::Microseconds,
        figure: BESIDE_BULK.with(Statistic::P99),
        yardstick: &[
            of_rpc(Run::new(Echo, Latency, 32)).with(Statistic::P99),
            Term::times(
                2.0,
                Source::Yardstick(&["memcpy", "-s", "65536", "--latency"]),
            ),
        ],
        goal: Difference(AtMost(0.0)),
    },
    Row {
        id: "F8b",
        what: "bulk calls 64 MiB during calls of 32 B / alone",
        unit: Unit::Bytes(64 * MIB),
        figure: BESIDE_BULK.with(Statistic::Beside),
        yardstick: &[of_rpc(
            Run::new(Bulk, Bandwidth, 64 * MIB).with(&["-t", "1"]),
        )],
        goal: Ratio(AtLeast(0.7)),
    },
];
