//! The comparisons of softroce between two simulated hosts: network namespaces joined by a veth
//! pair.

use super::super::goal::Bound::AtLeast;
use super::super::goal::Goal::Ratio;
use super::super::row::{Row, Term, Unit};
use super::super::run::{Path, Run};
use super::super::source::Source;
use super::{LARGE, perftest};
use crate::test::Metric::Bandwidth;
use crate::test::Verb::Write;

/// The MTU of Ethernet in bytes.
const ETHERNET_MTU: usize = 1500;
/// The MTU of Ethernet with jumbo frames, in bytes.
const JUMBO_MTU: usize = 9000;

/// Returns the test of perftest's writes of 64 KiB between two hosts. `link` is the MTU of their
/// network, `path` that of the connection (the path MTU), both in bytes.
const fn writes(link: usize, path: usize) -> Run {
    Run::new(Write, Bandwidth, LARGE)
        .path(Path::Hosts(link))
        .mtu(path)
}

/// Defines a row that compares perftest's writes with writes to a TCP connection over the same
/// network.
macro_rules! beside_tcp {
    ($id:literal, $what:literal, ($link:expr, $path:expr), $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes($link, $path)),
            yardstick: &[Term::of(Source::Tcp {
                size: LARGE,
                mtu: $link,
            })],
            goal: Ratio(AtLeast($least)),
        }
    };
}

/// Defines a row that compares writes while packets are lost or reordered with writes without such
/// faults.
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
];
