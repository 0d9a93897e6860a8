//! All rows (comparisons) of the judge, with their goals.

use super::attack::Attack;
use super::goal::Bound::{AtLeast, AtMost};
use super::goal::Goal::{Difference, Ratio, Value};
use super::row::{Part, Row, Unit};
use super::run::{Path, Run};
use super::source::Source;
use super::statistic::Statistic;
use crate::plan::Layer;
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{FetchAndAdd, Read, Send, Write};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Size in bytes of the messages in bandwidth tests over UDP.
const LARGE: usize = 64 * KIB;
/// Arguments with which rdma-bench uses memory of `malloc`, as perftest does.
const MALLOC: &[&str] = &["--memory", "malloc"];
/// Arguments with which a bandwidth test posts 32 requests in one call.
const LIST: &[&str] = &["-l", "32"];

const fn ours(run: Run) -> Part {
    Part::of(Source::Ours(Layer::Core, run))
}

const fn perftest(run: Run) -> Part {
    Part::of(Source::Perftest(run))
}

const fn ucx(test: &'static str) -> Part {
    ucx_of(test, 8)
}

const fn ucx_of(test: &'static str, size: usize) -> Part {
    Part::of(Source::Ucx { test, size })
}

const fn raw(words: &'static [&'static str]) -> Part {
    Part::of(Source::Yardstick(words))
}

/// Returns the measurement of perftest's packets per second over UDP with the given MTU: the rate of
/// writes times the number of packets in a write.
const fn packets(mtu: usize) -> Part {
    let run = Run::new(Write, Bandwidth, LARGE).by(Path::Udp).mtu(mtu);
    Part::times((LARGE / mtu) as f64, Source::Perftest(run))
}

/// Returns the measurement of the rate of 8-byte writes to `servers` servers. `words` are further
/// arguments, such as the number of queue pairs or regions.
const fn spread(words: &'static [&'static str], servers: usize) -> Part {
    let run = Run::new(Write, Bandwidth, 8).with(words).servers(servers);
    ours(run)
}

const ONE: &[Part] = &[spread(&["-l", "32", "--regions", "1"], 1)];

/// Latency of sends of 8 bytes, while the same thread keeps another queue pair busy with sends of 1
/// MiB.
const BESIDE_LONG: Part = ours(Run::new(Send, Latency, 8).with(&["--beside", "1048576"]));

/// Creates a row that compares rdma-core with perftest's program for the same test, both with memory of
/// malloc.
macro_rules! beside_perftest {
    ($id:literal, $what:literal, $unit:expr, $run:expr, $bound:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: $unit,
            figure: ours($run.with(MALLOC)),
            yardstick: &[perftest($run)],
            goal: Ratio($bound),
        }
    };
}

/// Creates a row that compares the bandwidth of sends by perftest with that of UCX's tagged messages.
macro_rules! sends_beside_ucx {
    ($id:literal, $what:literal, $size:expr, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes($size),
            figure: perftest(Run::new(Send, Bandwidth, $size)),
            yardstick: &[ucx_of("tag_bw", $size)],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Creates a row that compares the latency of messages that consume a receive with that of writes of
/// the same size.
macro_rules! beside_write_lat {
    ($id:literal, $what:literal, $run:expr, $size:expr, $most:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Microseconds,
            figure: ours($run),
            yardstick: &[ours(Run::new(Write, Latency, $size))],
            goal: Ratio(AtMost($most)),
        }
    };
}

/// Creates a row that compares the rate of a connection while another process sends forged packets to
/// it with the rate while that process sends forged packets to unused ports.
macro_rules! attacked {
    ($id:literal, $what:literal, $unit:expr, $run:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: $unit,
            figure: ours($run.under(Attack::Connection)),
            yardstick: &[ours($run.under(Attack::UnusedPort))],
            goal: Ratio(AtLeast(0.9)),
        }
    };
}

const fn of_async(run: Run) -> Part {
    Part::of(Source::Ours(Layer::Async, run))
}

const fn within(words: &'static [&'static str]) -> Part {
    Part::of(Source::Connections(words))
}

/// Arguments that set the number of outstanding operations in the rows of rdma-async.
const WINDOW: &[&str] = &["-t", "64"];

/// The arguments in [`WINDOW`], and those with which a task of rdma-async polls without sleeping, as
/// the test of rdma-core does.
const SPINNING_WINDOW: &[&str] = &["-t", "64", "--completion", "busy"];

/// Creates a row that compares rdma-async with rdma-core, with the same number of outstanding requests.
macro_rules! async_beside_core {
    ($id:literal, $what:literal, $unit:expr, $verb:expr, $size:expr, $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: $unit,
            figure: of_async(Run::new($verb, Bandwidth, $size).with(SPINNING_WINDOW)),
            yardstick: &[ours(Run::new($verb, Bandwidth, $size).with(WINDOW))],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Returns the measurement of the round trip of a message of 8 bytes: twice the latency that the test
/// reports.
const fn round_trip(layer: Layer, words: &'static [&'static str]) -> Part {
    let run = Run::new(Send, Latency, 8).with(words);
    Part::times(2.0, Source::Ours(layer, run))
}

/// Returns the measurement of the rate of 8-byte writes over rdma-async, with softroce set to a latency
/// of 20 us.
const fn delayed(words: &'static [&'static str]) -> Part {
    let run = Run::new(Write, Bandwidth, 8).with(words);
    of_async(run.under_variables(&["SOFTROCE_LATENCY=20us"]))
}

/// The rows that are measured on a machine whose processors are not emulated.
pub const HOST: &[Row] = &[
    Row {
        id: "G1",
        what: "write 1 MiB, our memory / memcpy into a memfd",
        unit: Unit::Bytes(MIB),
        figure: ours(Run::new(Write, Bandwidth, MIB)),
        yardstick: &[raw(&["memcpy", "-s", "1048576"])],
        goal: Ratio(AtLeast(0.90)),
    },
    Row {
        id: "G2a",
        what: "ib_write_bw 64 KiB / process_vm_writev",
        unit: Unit::Bytes(64 * KIB),
        figure: perftest(Run::new(Write, Bandwidth, 64 * KIB)),
        yardstick: &[raw(&["vm-write", "-s", "65536"])],
        goal: Ratio(AtLeast(0.90)),
    },
    Row {
        id: "G2b",
        what: "ib_write_bw 1 MiB / process_vm_writev",
        unit: Unit::Bytes(MIB),
        figure: perftest(Run::new(Write, Bandwidth, MIB)),
        yardstick: &[raw(&["vm-write", "-s", "1048576"])],
        goal: Ratio(AtLeast(0.90)),
    },
    Row {
        id: "G3",
        what: "write_lat 8 B, our memory / UCX put_lat",
        unit: Unit::Microseconds,
        figure: ours(Run::new(Write, Latency, 8)),
        yardstick: &[ucx("ucp_put_lat")],
        goal: Ratio(AtMost(2.0)),
    },
    Row {
        id: "G4",
        what: "ib_write_lat 8 B / process_vm_writev + half a line",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Write, Latency, 8)),
        yardstick: &[
            raw(&["vm-write", "-s", "8", "--latency"]),
            Part::times(0.5, Source::CacheLine),
        ],
        goal: Ratio(AtMost(1.5)),
    },
    Row {
        id: "G5",
        what: "ib_send_lat 8 B / UCX tag_lat",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8)),
        yardstick: &[ucx("tag_lat")],
        goal: Ratio(AtMost(1.25)),
    },
    Row {
        id: "G6",
        what: "write 8 B by 32, our memory / UCX put_bw",
        unit: Unit::Messages,
        figure: ours(Run::new(Write, Bandwidth, 8).with(LIST)),
        yardstick: &[ucx("ucp_put_bw")],
        goal: Ratio(AtLeast(0.25)),
    },
    Row {
        id: "G7a",
        what: "ib_send_bw 8 B / UCX tag_bw",
        unit: Unit::Messages,
        figure: perftest(Run::new(Send, Bandwidth, 8)),
        yardstick: &[ucx("tag_bw")],
        goal: Ratio(AtLeast(1.0)),
    },
    Row {
        id: "G7b",
        what: "fetch and add, our memory / UCX fadd",
        unit: Unit::Messages,
        figure: ours(Run::new(FetchAndAdd, Bandwidth, 8)),
        yardstick: &[ucx("ucp_fadd")],
        goal: Ratio(AtLeast(0.4)),
    },
    Row {
        id: "G8a",
        what: "UDP, ib_write_bw, MTU 1024 / GSO+GRO pump",
        unit: Unit::Bytes(KIB),
        figure: packets(1024),
        yardstick: &[raw(&["udp-pump", "-s", "1040", "--by", "gso"])],
        goal: Ratio(AtLeast(0.6)),
    },
    Row {
        id: "G8b",
        what: "UDP, ib_write_bw, MTU 1024 / sendto pump",
        unit: Unit::Bytes(KIB),
        figure: packets(1024),
        yardstick: &[raw(&["udp-pump", "-s", "1040", "--by", "sendto"])],
        goal: Ratio(AtLeast(3.0)),
    },
    Row {
        id: "G8c",
        what: "UDP, ib_write_bw, MTU 4096 / GSO+GRO pump",
        unit: Unit::Bytes(4 * KIB),
        figure: packets(4096),
        yardstick: &[raw(&["udp-pump", "-s", "4112", "--by", "gso"])],
        goal: Ratio(AtLeast(0.6)),
    },
    Row {
        id: "G8d",
        what: "UDP, ib_write_bw, MTU 4096 / sendto pump",
        unit: Unit::Bytes(4 * KIB),
        figure: packets(4096),
        yardstick: &[raw(&["udp-pump", "-s", "4112", "--by", "sendto"])],
        goal: Ratio(AtLeast(2.0)),
    },
    Row {
        id: "G9",
        what: "UDP, ib_send_lat 8 B / half a UDP round trip",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8).by(Path::Udp)),
        yardstick: &[Part::times(
            0.5,
            Source::Yardstick(&["udp-ping", "-s", "8"]),
        )],
        goal: Ratio(AtMost(1.5)),
    },
    Row {
        id: "G10",
        what: "ib_send_lat 8 B -e / half an eventfd round trip",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8).with(&["-e"])),
        yardstick: &[Part::times(0.5, Source::Yardstick(&["eventfd"]))],
        goal: Ratio(AtMost(1.25)),
    },
    Row {
        id: "G12a",
        what: "write 8 B, 16 queue pairs / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "-q", "16", "--regions", "1"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12b",
        what: "write 8 B, 256 queue pairs / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "-q", "256", "--regions", "1"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12c",
        what: "write 8 B, 100 regions / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "--regions", "100"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12d",
        what: "write 8 B, 10,000 regions / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "--regions", "10000"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12e",
        what: "write 8 B, 2 peers / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "--regions", "1"], 2),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12f",
        what: "write 8 B, 4 peers / 1",
        unit: Unit::Messages,
        figure: spread(&["-l", "32", "--regions", "1"], 4),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    sends_beside_ucx!("G13a", "ib_send_bw 4 KiB / UCX tag_bw", 4 * KIB, 0.7),
    sends_beside_ucx!("G13b", "ib_send_bw 64 KiB / UCX tag_bw", 64 * KIB, 0.9),
    sends_beside_ucx!("G13c", "ib_send_bw 1 MiB / UCX tag_bw", MIB, 0.9),
    Row {
        id: "G14",
        what: "send_bw 64 KiB, our memory / write_bw",
        unit: Unit::Bytes(64 * KIB),
        figure: ours(Run::new(Send, Bandwidth, 64 * KIB)),
        yardstick: &[ours(Run::new(Write, Bandwidth, 64 * KIB))],
        goal: Ratio(AtLeast(0.7)),
    },
    beside_write_lat!(
        "G15a",
        "send_lat 4 KiB, our memory / write_lat",
        Run::new(Send, Latency, 4 * KIB),
        4 * KIB,
        2.5
    ),
    beside_write_lat!(
        "G15b",
        "send_lat 64 KiB, our memory / write_lat",
        Run::new(Send, Latency, 64 * KIB),
        64 * KIB,
        1.5
    ),
    beside_write_lat!(
        "G16",
        "write_lat 64 KiB with immediate / without",
        Run::new(Write, Latency, 64 * KIB).with(&["--write_with_imm"]),
        64 * KIB,
        1.3
    ),
    Row {
        id: "G17a",
        what: "send_lat 8 B beside 1 MiB, p99 - alone - 2 copies",
        unit: Unit::Microseconds,
        figure: BESIDE_LONG.at(Statistic::P99),
        yardstick: &[
            ours(Run::new(Send, Latency, 8)).at(Statistic::P99),
            Part::times(
                2.0,
                Source::Yardstick(&["memcpy", "-s", "65536", "--latency"]),
            ),
        ],
        goal: Difference(AtMost(0.0)),
    },
    Row {
        id: "G17b",
        what: "send 1 MiB beside send_lat 8 B / send_bw",
        unit: Unit::Bytes(MIB),
        figure: BESIDE_LONG.at(Statistic::Beside),
        yardstick: &[ours(Run::new(Send, Bandwidth, MIB))],
        goal: Ratio(AtLeast(0.7)),
    },
    Row {
        id: "G18",
        what: "send_bw 8 B, an SRQ of 64 queue pairs / of 1",
        unit: Unit::Messages,
        figure: ours(Run::new(Send, Bandwidth, 8).with(&["--use-srq", "-q", "64"])),
        yardstick: &[ours(Run::new(Send, Bandwidth, 8).with(&["--use-srq"]))],
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G19",
        what: "ib_send_lat 8 B, UD / RC",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8).with(&["-c", "UD"])),
        yardstick: &[perftest(Run::new(Send, Latency, 8))],
        goal: Ratio(AtMost(3.0)),
    },
    beside_perftest!(
        "C1a",
        "send_lat 8 B, malloc / ib_send_lat",
        Unit::Microseconds,
        Run::new(Send, Latency, 8),
        AtMost(1.03)
    ),
    beside_perftest!(
        "C1b",
        "write_lat 8 B, malloc / ib_write_lat",
        Unit::Microseconds,
        Run::new(Write, Latency, 8),
        AtMost(1.03)
    ),
    beside_perftest!(
        "C1c",
        "read_lat 8 B, malloc / ib_read_lat",
        Unit::Microseconds,
        Run::new(Read, Latency, 8),
        AtMost(1.03)
    ),
    beside_perftest!(
        "C1d",
        "atomic_lat 8 B, malloc / ib_atomic_lat",
        Unit::Microseconds,
        Run::new(FetchAndAdd, Latency, 8),
        AtMost(1.03)
    ),
    beside_perftest!(
        "C2a",
        "send_bw 8 B, malloc / ib_send_bw",
        Unit::Messages,
        Run::new(Send, Bandwidth, 8),
        AtLeast(0.97)
    ),
    beside_perftest!(
        "C2b",
        "write_bw 8 B, malloc / ib_write_bw",
        Unit::Messages,
        Run::new(Write, Bandwidth, 8),
        AtLeast(0.97)
    ),
    beside_perftest!(
        "C2c",
        "read_bw 8 B, malloc / ib_read_bw",
        Unit::Messages,
        Run::new(Read, Bandwidth, 8),
        AtLeast(0.97)
    ),
    beside_perftest!(
        "C2d",
        "atomic_bw 8 B, malloc / ib_atomic_bw",
        Unit::Messages,
        Run::new(FetchAndAdd, Bandwidth, 8),
        AtLeast(0.97)
    ),
    beside_perftest!(
        "C3a",
        "send_bw 64 KiB, malloc / ib_send_bw",
        Unit::Bytes(64 * KIB),
        Run::new(Send, Bandwidth, 64 * KIB),
        AtLeast(0.98)
    ),
    beside_perftest!(
        "C3b",
        "write_bw 64 KiB, malloc / ib_write_bw",
        Unit::Bytes(64 * KIB),
        Run::new(Write, Bandwidth, 64 * KIB),
        AtLeast(0.98)
    ),
    beside_perftest!(
        "C3c",
        "read_bw 64 KiB, malloc / ib_read_bw",
        Unit::Bytes(64 * KIB),
        Run::new(Read, Bandwidth, 64 * KIB),
        AtLeast(0.98)
    ),
    attacked!(
        "S1a",
        "write_bw 64 KiB, attacked / attack elsewhere",
        Unit::Bytes(64 * KIB),
        Run::new(Write, Bandwidth, 64 * KIB)
    ),
    attacked!(
        "S1b",
        "send_bw 8 B, attacked / attack elsewhere",
        Unit::Messages,
        Run::new(Send, Bandwidth, 8)
    ),
    attacked!(
        "S1c",
        "UDP, write_bw 64 KiB, attacked / attack elsewhere",
        Unit::Bytes(64 * KIB),
        Run::new(Write, Bandwidth, 64 * KIB).by(Path::Udp)
    ),
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
    Row {
        id: "E3",
        what: "send 8 B and its echo, async spinning - core",
        unit: Unit::Microseconds,
        figure: round_trip(Layer::Async, &["--completion", "busy"]),
        yardstick: &[round_trip(Layer::Core, &[])],
        goal: Difference(AtMost(0.200)),
    },
    Row {
        id: "E4",
        what: "write 8 B that takes 20 us, async, 64 / 1",
        unit: Unit::Messages,
        figure: delayed(SPINNING_WINDOW),
        yardstick: &[delayed(&["-t", "1", "--completion", "busy"])],
        goal: Ratio(AtLeast(10.0)),
    },
    Row {
        id: "E5a",
        what: "write 8 B within a process, beside 1000 / alone",
        unit: Unit::Messages,
        figure: within(&["write-rate", "--idle", "1000"]),
        yardstick: &[within(&["write-rate"])],
        goal: Ratio(AtLeast(0.9)),
    },
    Row {
        id: "E5b",
        what: "memory of an idle connection's end, in bytes",
        unit: Unit::Count,
        figure: within(&["idle"]).at(Statistic::Counter("/memory")),
        yardstick: &[],
        goal: Value(AtMost(16384.0)),
    },
    Row {
        id: "E5c",
        what: "descriptors of an idle connection's end",
        unit: Unit::Count,
        figure: within(&["idle"]).at(Statistic::Counter("/descriptors")),
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
        what: "connect and first message / those of TCP",
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
        what: "write 8 B within a process, 50 others fail / alone",
        unit: Unit::Messages,
        figure: within(&["beside-failures", "--failures", "50"]),
        yardstick: &[within(&["beside-failures"])],
        goal: Ratio(AtLeast(0.9)),
    },
];

/// The rows that are measured in the virtual machine, where the reference values come from the kernel's
/// Soft-RoCE device.
pub const GUEST: &[Row] = &[
    Row {
        id: "G11a",
        what: "write 64 KiB, our memory / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: ours(Run::new(Write, Bandwidth, 64 * KIB)),
        yardstick: &[ours(Run::new(Write, Bandwidth, 64 * KIB).by(Path::Kernel))],
        goal: Ratio(AtLeast(5.0)),
    },
    Row {
        id: "G11b",
        what: "ib_write_bw 64 KiB / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: perftest(Run::new(Write, Bandwidth, 64 * KIB)),
        yardstick: &[perftest(
            Run::new(Write, Bandwidth, 64 * KIB).by(Path::Kernel),
        )],
        goal: Ratio(AtLeast(3.0)),
    },
    Row {
        id: "G11c",
        what: "write 8 B, our memory / the same on rxe",
        unit: Unit::Messages,
        figure: ours(Run::new(Write, Bandwidth, 8)),
        yardstick: &[ours(Run::new(Write, Bandwidth, 8).by(Path::Kernel))],
        goal: Ratio(AtLeast(5.0)),
    },
    Row {
        id: "G11d",
        what: "ib_send_lat 8 B / the same on rxe",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8)),
        yardstick: &[perftest(Run::new(Send, Latency, 8).by(Path::Kernel))],
        goal: Ratio(AtMost(0.5)),
    },
    Row {
        id: "G11e",
        what: "UDP, ib_write_bw 64 KiB / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: perftest(Run::new(Write, Bandwidth, 64 * KIB).by(Path::Udp)),
        yardstick: &[perftest(
            Run::new(Write, Bandwidth, 64 * KIB).by(Path::Kernel),
        )],
        goal: Ratio(AtLeast(1.0)),
    },
    Row {
        id: "G11f",
        what: "UDP, ib_write_bw 8 B / the same on rxe",
        unit: Unit::Messages,
        figure: perftest(Run::new(Write, Bandwidth, 8).by(Path::Udp)),
        yardstick: &[perftest(Run::new(Write, Bandwidth, 8).by(Path::Kernel))],
        goal: Ratio(AtLeast(1.0)),
    },
];

#[cfg(test)]
mod tests {
    use super::super::goal::Goal;
    use super::super::row::Quantity;
    use super::*;

    fn rows() -> impl Iterator<Item = &'static Row> {
        HOST.iter().chain(GUEST)
    }

    fn parts(row: &Row) -> impl Iterator<Item = &Part> {
        std::iter::once(&row.figure).chain(row.yardstick)
    }

    #[test]
    fn every_goal_has_rows() {
        let of_letter = |letter, last| (1..=last).map(move |number| format!("{letter}{number}"));
        let names = of_letter('G', 19).chain(of_letter('C', 3));
        let names = names.chain(of_letter('E', 8));
        for name in names.chain(of_letter('S', 1)) {
            assert!(rows().any(|row| row.is_called(&name)), "{name}");
        }
    }

    #[test]
    fn every_row_has_a_name_of_its_own_that_selects_no_other() {
        for row in rows() {
            let number = row.id.strip_prefix(|c: char| c.is_ascii_uppercase());
            let number = number.unwrap_or_default();
            let suffix = number.trim_start_matches(|c: char| c.is_ascii_digit());
            let is_suffix = suffix.chars().all(|c| c.is_ascii_lowercase());
            assert!(number.len() > suffix.len() && is_suffix, "{}", row.id);
            let called: Vec<_> = rows().filter(|other| other.is_called(row.id)).collect();
            assert_eq!(called, [row]);
        }
    }

    #[test]
    fn a_row_holds_numbers_of_its_unit_against_each_other() {
        for row in rows() {
            let quantity = row.unit.quantity();
            for part in parts(row) {
                assert_eq!(part.quantity(), quantity, "{}", row.id);
                assert!(part.source.has(part.statistic), "{}: {part}", row.id);
            }
            let of_rate = quantity == Quantity::Rate;
            assert_eq!(
                matches!(row.goal.bound(), AtLeast(_)),
                of_rate,
                "{}",
                row.id
            );
            let alone = matches!(row.goal, Goal::Value(_));
            assert_eq!(row.yardstick.is_empty(), alone, "{}", row.id);
            if matches!(row.goal, Goal::Difference(_)) {
                assert_eq!(quantity, Quantity::Time, "{}", row.id);
            }
        }
    }

    #[test]
    fn echoes_are_of_rdma_rpc() {
        for part in rows().flat_map(parts) {
            match part.source {
                Source::Ours(layer, run) => {
                    assert_eq!(run.is_echo(), layer == Layer::Rpc, "{part}");
                }
                Source::Perftest(run) => assert!(!run.is_echo(), "{part}"),
                _ => {}
            }
        }
    }
}
