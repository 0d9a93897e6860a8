//! The comparisons of rdma-async with rdma-core and with TCP.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::{Difference, Ratio, Value};
use super::super::row::{Row, Term, Unit};
use super::super::run::Run;
use super::super::source::Source;
use super::super::statistic::Statistic;
use super::{BUSY_DEPTH_64, DEPTH_64, KIB, ours, raw, round_trip};
use crate::plan::Layer;
use crate::test::Metric::Bandwidth;
use crate::test::Verb::{Read, Send, Write};

const fn of_async(run: Run) -> Term {
    Term::of(Source::Ours(Layer::Async, run))
}

const fn within(args: &'static [&'static str]) -> Term {
    Term::of(Source::Connections(args))
}

/// Defines a comparison (a row of the judge's table) of rdma-async with rdma-core, both with 64
/// outstanding requests. The optional last parameter replaces `BUSY_DEPTH_64`, the arguments of
/// `rdma-bench` for rdma-async.
macro_rules! async_beside_core {
    ($id:literal, $what:literal, $unit:expr, $verb:expr, $size:expr, $least:expr) => {
        async_beside_core!($id, $what, $unit, $verb, $size, $least, BUSY_DEPTH_64)
    };
    ($id:literal, $what:literal, $unit:expr, $verb:expr, $size:expr, $least:expr, $args:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: $unit,
            figure: of_async(Run::new($verb, Bandwidth, $size).with($args)),
            yardstick: &[ours(Run::new($verb, Bandwidth, $size).with(DEPTH_64))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Returns a term (a number to be measured): the rate of 8-byte writes over rdma-async while
/// softroce delays every packet by 20 us. `rdma-bench` measures the rate, with the further
/// arguments `args`.
const fn rate_with_latency(args: &'static [&'static str]) -> Term {
    let run = Run::new(Write, Bandwidth, 8).with(args);
    of_async(run.with_variables(&["SOFTROCE_LATENCY=20us"]))
}

/// Returns a term (a number to be measured): the result of the program `streams`, run with the
/// arguments `args`. The program measures a byte stream over RDMA or TCP.
const fn streams(args: &'static [&'static str]) -> Term {
    Term::of(Source::Streams(args))
}

/// Returns a term (a number to be measured): the result of the program `web`, run with the
/// arguments `args`. The program measures a web server over RDMA or TCP.
const fn web(args: &'static [&'static str]) -> Term {
    Term::of(Source::Web(args))
}

/// The arguments of `rdma-bench` for a test of rdma-async in which one pipeline keeps 64 operations
/// outstanding and polls without sleeping.
const PIPELINE_64: &[&str] = &["-t", "64", "--completion", "busy", "--pipeline"];

/// The arguments with which the program `streams` measures the bandwidth of a byte stream over
/// RDMA, in writes of 64 KiB.
const STREAM_BANDWIDTH: &[&str] = &["bandwidth", "--by", "rdma", "--size", "65536"];

/// The comparisons of rdma-async with reference values, each with its goal. The comparisons are
/// named `E1`, `E2a` and so on.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "E1",
        what: "write 8 B within a process, async - core",
        unit: Unit::Microseconds,
        figure: within(&["write", "--layer", "async"]),
        yardstick: &[within(&["write", "--layer", "core"])],
        goal: Difference(AtMost(0.060)),
    },
    async_beside_core!(
        "E2a",
        "write_bw 8 B, async / core",
        Unit::Messages,
        Write,
        8,
        0.5
    ),
    async_beside_core!(
        "E2b",
        "send_bw 32 B, async / core",
        Unit::Messages,
        Send,
        32,
        0.5
    ),
    async_beside_core!(
        "E2c",
        "write_bw 64 KiB, async / core",
        Unit::Bytes(64 * KIB),
        Write,
        64 * KIB,
        0.95
    ),
    async_beside_core!(
        "E2d",
        "read_bw 64 KiB, async / core",
        Unit::Bytes(64 * KIB),
        Read,
        64 * KIB,
        0.95
    ),
    async_beside_core!(
        "E2e",
        "send_bw 64 KiB, async / core",
        Unit::Bytes(64 * KIB),
        Send,
        64 * KIB,
        0.95
    ),
    async_beside_core!(
        "E2f",
        "write_bw 8 B, async pipeline / core",
        Unit::Messages,
        Write,
        8,
        0.5,
        PIPELINE_64
    ),
    async_beside_core!(
        "E2g",
        "write_bw 64 KiB, async pipeline / core",
        Unit::Bytes(64 * KIB),
        Write,
        64 * KIB,
        0.95,
        PIPELINE_64
    ),
    Row {
        id: "E3",
        what: "send 8 B and its echo, async polling - core",
        unit: Unit::Microseconds,
        figure: round_trip(Layer::Async, &["--completion", "busy"]),
        yardstick: &[round_trip(Layer::Core, &[])],
        goal: Difference(AtMost(0.200)),
    },
    Row {
        id: "E4",
        what: "write 8 B, latency 20 us, async, depth 64 / 1",
        unit: Unit::Messages,
        figure: rate_with_latency(BUSY_DEPTH_64),
        yardstick: &[rate_with_latency(&["-t", "1", "--completion", "busy"])],
        goal: Ratio(AtLeast(10.0)),
    },
    Row {
        id: "E5a",
        what: "write 8 B within a process, 1000 idle / no idle",
        unit: Unit::Messages,
        figure: within(&["write-rate", "--idle", "1000"]),
        yardstick: &[within(&["write-rate"])],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "E5b",
        what: "memory of one side of an idle connection, bytes",
        unit: Unit::Count,
        figure: within(&["idle"]).with(Statistic::Counter("/memory")),
        yardstick: &[],
        goal: Value(AtMost(16384.0)),
    },
    Row {
        id: "E5c",
        what: "descriptors of one side of an idle connection",
        unit: Unit::Count,
        figure: within(&["idle"]).with(Statistic::Counter("/descriptors")),
        yardstick: &[],
        goal: Value(AtMost(1.0)),
    },
    Row {
        id: "E6",
        what: "send 8 B and its echo, async by events / eventfds",
        unit: Unit::Microseconds,
        figure: round_trip(Layer::Async, &["--completion", "event"]),
        yardstick: &[raw(&["eventfd", "--tasks"])],
        goal: Ratio(AtMost(1.15)),
    },
    Row {
        id: "E7a",
        what: "connect and first message / the same over TCP",
        unit: Unit::Microseconds,
        figure: within(&["connect", "--by", "rdma"]),
        yardstick: &[within(&["connect", "--by", "tcp"])],
        goal: Ratio(AtMost(20.0)),
    },
    Row {
        id: "E7b",
        what: "connect and first message",
        unit: Unit::Microseconds,
        figure: within(&["connect", "--by", "rdma"]),
        yardstick: &[],
        goal: Value(AtMost(5000.0)),
    },
    Row {
        id: "E8",
        what: "write 8 B within a process, 50 others fail / none",
        unit: Unit::Messages,
        figure: within(&["beside-failures", "--failures", "50"]),
        yardstick: &[within(&["beside-failures"])],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "E9a",
        what: "reads of 64 B within a process, published / raw",
        unit: Unit::Messages,
        figure: within(&["reads", "--published"]),
        yardstick: &[within(&["reads"])],
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "E9b",
        what: "grant 4 KiB, end - 1.5 bind, invalidate a window",
        unit: Unit::Microseconds,
        figure: within(&["grant", "--layer", "async"]),
        yardstick: &[Term::times(
            1.5,
            Source::Connections(&["grant", "--layer", "core"]),
        )],
        goal: Difference(AtMost(0.200)),
    },
    Row {
        id: "E10a",
        what: "stream, writes of 64 KiB / TCP",
        unit: Unit::Bytes(64 * KIB),
        figure: streams(STREAM_BANDWIDTH),
        yardstick: &[streams(&["bandwidth", "--by", "tcp", "--size", "65536"])],
        goal: Ratio(AtLeast(2.0)),
    },
    Row {
        id: "E10b",
        what: "stream, writes of 64 KiB / ring in shared memory",
        unit: Unit::Bytes(64 * KIB),
        figure: streams(STREAM_BANDWIDTH),
        yardstick: &[raw(&["ring", "--size", "65536"])],
        goal: Ratio(AtLeast(0.6)),
    },
    Row {
        id: "E10c",
        what: "stream, 32 B and the echo / TCP",
        unit: Unit::Microseconds,
        figure: streams(&["latency", "--by", "rdma", "--size", "32"]),
        yardstick: &[streams(&["latency", "--by", "tcp", "--size", "32"])],
        goal: Ratio(AtMost(0.5)),
    },
    Row {
        id: "E11",
        what: "stream, writes of 64 KiB, 1000 idle / no idle",
        unit: Unit::Bytes(64 * KIB),
        figure: streams(&[
            "bandwidth",
            "--by",
            "rdma",
            "--size",
            "65536",
            "--idle",
            "1000",
        ]),
        yardstick: &[streams(STREAM_BANDWIDTH)],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "E12a",
        what: "web server, HTTP/2 request of 32 B / TCP",
        unit: Unit::Microseconds,
        figure: web(&["latency", "--by", "rdma"]),
        yardstick: &[web(&["latency", "--by", "tcp"])],
        goal: Ratio(AtMost(1.0)),
    },
    Row {
        id: "E12b",
        what: "web server, download of 64 MiB / TCP",
        unit: Unit::Bytes(1),
        figure: web(&["bandwidth", "--by", "rdma"]),
        yardstick: &[web(&["bandwidth", "--by", "tcp"])],
        goal: Ratio(AtLeast(1.3)),
    },
    Row {
        id: "E13",
        what: "rdma_cp, a cached file of 1 GiB / TCP",
        unit: Unit::Bytes(1),
        figure: Term::of(Source::Copier(&[])),
        yardstick: &[Term::of(Source::Copier(&["--tcp"]))],
        goal: Ratio(AtLeast(1.3)),
    },
    Row {
        id: "E14",
        what: "key_value, values of 64 B / raw reads of buckets",
        unit: Unit::Messages,
        figure: Term::of(Source::KeyValue(&[])),
        yardstick: &[Term::of(Source::KeyValue(&["--raw"]))],
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "E15",
        what: "all-reduce of 64 MiB / its copies and additions",
        unit: Unit::Microseconds,
        figure: Term::of(Source::AllReduce),
        yardstick: &[raw(&["all-reduce", "--size", "67108864", "--ranks", "4"])],
        goal: Ratio(AtMost(2.0)),
    },
];
