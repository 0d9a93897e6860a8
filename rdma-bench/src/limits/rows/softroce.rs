//! The comparisons of softroce, measured by perftest and rdma-core, with the machine without RDMA:
//! copies, system calls and sockets.

use super::super::attack::Attack;
use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::{Difference, Ratio};
use super::super::row::{Row, Term, Unit};
use super::super::run::{Path, Run};
use super::super::source::Source;
use super::super::statistic::Statistic;
use super::{KIB, LARGE, MIB, ours, perftest, raw};
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{FetchAndAdd, Send, Write};

/// The arguments that make a bandwidth test of `rdma-bench` or perftest post 32 requests in one
/// call.
const LISTS_OF_32: &[&str] = &["-l", "32"];

const fn ucx(test: &'static str) -> Term {
    ucx_of(test, 8)
}

const fn ucx_of(test: &'static str, size: usize) -> Term {
    Term::of(Source::Ucx { test, size })
}

/// Returns a term (a number to be measured): the rate of packets in large writes over softroce by
/// UDP, with a path MTU of `mtu` bytes. Perftest measures the rate of the writes. The term
/// multiplies this rate by the number of packets in one write.
const fn packets(mtu: usize) -> Term {
    let run = Run::new(Write, Bandwidth, LARGE).path(Path::Udp).mtu(mtu);
    Term::times((LARGE / mtu) as f64, Source::Perftest(run))
}

/// Returns a term (a number to be measured): the rate of 8-byte writes over rdma-core from one
/// client to `servers` servers. `rdma-bench` measures the rate, with the further arguments `args`,
/// such as the number of memory regions.
const fn writes_to_servers(args: &'static [&'static str], servers: usize) -> Term {
    let run = Run::new(Write, Bandwidth, 8).with(args).servers(servers);
    ours(run)
}

const ONE: &[Term] = &[writes_to_servers(&["-l", "32", "--regions", "1"], 1)];

/// A term (a number to be measured): the latency of 8-byte sends while the same thread sends
/// messages of 1 MiB on another queue pair.
const BESIDE_LONG: Term = ours(Run::new(Send, Latency, 8).with(&["--beside", "1048576"]));

/// Defines a comparison (a row of the judge's table) of the bandwidth of perftest's sends with the
/// bandwidth of UCX's tagged messages.
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

/// Defines a comparison (a row of the judge's table) of the latency of messages that consume a
/// receive with the latency of writes of the same size.
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

/// Defines a comparison (a row of the judge's table) about the rate of a connection under attack.
/// The value under test is the rate while another process sends forged packets to the connection.
/// The reference value is the rate while that process sends forged packets to unused ports.
macro_rules! attacked {
    ($id:literal, $what:literal, $unit:expr, $run:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: $unit,
            figure: ours($run.under_attack(Attack::Connection)),
            yardstick: &[ours($run.under_attack(Attack::UnusedPort))],
            goal: Ratio(AtLeast(0.9)),
        }
    };
}

/// The comparisons of softroce, each with the goal that its result must meet. Most reference values
/// are measured without RDMA: by copies, system calls or sockets. If the name of a comparison
/// begins with S, forged packets attack softroce during the measurement.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "G1",
        what: "write 1 MiB, device memory / memcpy into a memfd",
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
        what: "write_lat 8 B, device memory / UCX put_lat",
        unit: Unit::Microseconds,
        figure: ours(Run::new(Write, Latency, 8)),
        yardstick: &[ucx("ucp_put_lat")],
        goal: Ratio(AtMost(2.0)),
    },
    Row {
        id: "G4",
        what: "ib_write_lat 8 B / vm_writev + 1/2 cache line trip",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Write, Latency, 8)),
        yardstick: &[
            raw(&["vm-write", "-s", "8", "--latency"]),
            Term::times(0.5, Source::CacheLine),
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
        what: "write 8 B, lists of 32, device memory / UCX put_bw",
        unit: Unit::Messages,
        figure: ours(Run::new(Write, Bandwidth, 8).with(LISTS_OF_32)),
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
        what: "fetch and add, device memory / UCX fadd",
        unit: Unit::Messages,
        figure: ours(Run::new(FetchAndAdd, Bandwidth, 8)),
        yardstick: &[ucx("ucp_fadd")],
        goal: Ratio(AtLeast(0.4)),
    },
    Row {
        id: "G8a",
        what: "UDP, ib_write_bw, MTU 1024 / sockets, GSO+GRO",
        unit: Unit::Bytes(KIB),
        figure: packets(1024),
        yardstick: &[raw(&["udp-pump", "-s", "1040", "--by", "gso"])],
        goal: Ratio(AtLeast(0.6)),
    },
    Row {
        id: "G8b",
        what: "UDP, ib_write_bw, MTU 1024 / sockets, sendto",
        unit: Unit::Bytes(KIB),
        figure: packets(1024),
        yardstick: &[raw(&["udp-pump", "-s", "1040", "--by", "sendto"])],
        goal: Ratio(AtLeast(3.0)),
    },
    Row {
        id: "G8c",
        what: "UDP, ib_write_bw, MTU 4096 / sockets, GSO+GRO",
        unit: Unit::Bytes(4 * KIB),
        figure: packets(4096),
        yardstick: &[raw(&["udp-pump", "-s", "4112", "--by", "gso"])],
        goal: Ratio(AtLeast(0.6)),
    },
    Row {
        id: "G8d",
        what: "UDP, ib_write_bw, MTU 4096 / sockets, sendto",
        unit: Unit::Bytes(4 * KIB),
        figure: packets(4096),
        yardstick: &[raw(&["udp-pump", "-s", "4112", "--by", "sendto"])],
        goal: Ratio(AtLeast(2.0)),
    },
    Row {
        id: "G9",
        what: "UDP, ib_send_lat 8 B / half a UDP round trip",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8).path(Path::Udp)),
        yardstick: &[Term::times(
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
        yardstick: &[Term::times(0.5, Source::Yardstick(&["eventfd"]))],
        goal: Ratio(AtMost(1.25)),
    },
    Row {
        id: "G12a",
        what: "write 8 B, 16 queue pairs / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "-q", "16", "--regions", "1"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12b",
        what: "write 8 B, 256 queue pairs / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "-q", "256", "--regions", "1"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12c",
        what: "write 8 B, 100 regions / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "--regions", "100"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12d",
        what: "write 8 B, 10,000 regions / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "--regions", "10000"], 1),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12e",
        what: "write 8 B, 2 peers / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "--regions", "1"], 2),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    Row {
        id: "G12f",
        what: "write 8 B, 4 peers / 1",
        unit: Unit::Messages,
        figure: writes_to_servers(&["-l", "32", "--regions", "1"], 4),
        yardstick: ONE,
        goal: Ratio(AtLeast(0.8)),
    },
    sends_beside_ucx!("G13a", "ib_send_bw 4 KiB / UCX tag_bw", 4 * KIB, 0.7),
    sends_beside_ucx!("G13b", "ib_send_bw 64 KiB / UCX tag_bw", 64 * KIB, 0.9),
    sends_beside_ucx!("G13c", "ib_send_bw 1 MiB / UCX tag_bw", MIB, 0.9),
    Row {
        id: "G14",
        what: "send_bw 64 KiB, device memory / write_bw",
        unit: Unit::Bytes(64 * KIB),
        figure: ours(Run::new(Send, Bandwidth, 64 * KIB)),
        yardstick: &[ours(Run::new(Write, Bandwidth, 64 * KIB))],
        goal: Ratio(AtLeast(0.7)),
    },
    beside_write_lat!(
        "G15a",
        "send_lat 4 KiB, device memory / write_lat",
        Run::new(Send, Latency, 4 * KIB),
        4 * KIB,
        2.5
    ),
    beside_write_lat!(
        "G15b",
        "send_lat 64 KiB, device memory / write_lat",
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
        what: "send_lat 8 B --beside 1M, p99 - alone - 2 copies",
        unit: Unit::Microseconds,
        figure: BESIDE_LONG.with(Statistic::P99),
        yardstick: &[
            ours(Run::new(Send, Latency, 8)).with(Statistic::P99),
            Term::times(
                2.0,
                Source::Yardstick(&["memcpy", "-s", "65536", "--latency"]),
            ),
        ],
        goal: Difference(AtMost(0.0)),
    },
    Row {
        id: "G17b",
        what: "send 1 MiB during send_lat 8 B / send_bw",
        unit: Unit::Bytes(MIB),
        figure: BESIDE_LONG.with(Statistic::Beside),
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
    attacked!(
        "S1a",
        "write_bw 64 KiB, attack / attack unused ports",
        Unit::Bytes(64 * KIB),
        Run::new(Write, Bandwidth, 64 * KIB)
    ),
    attacked!(
        "S1b",
        "send_bw 8 B, attack / attack unused ports",
        Unit::Messages,
        Run::new(Send, Bandwidth, 8)
    ),
    attacked!(
        "S1c",
        "UDP, write_bw 64 KiB, attack / attack unused ports",
        Unit::Bytes(64 * KIB),
        Run::new(Write, Bandwidth, 64 * KIB).path(Path::Udp)
    ),
];
