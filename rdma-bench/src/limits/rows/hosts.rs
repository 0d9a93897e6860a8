//! Rows of softroce between two hosts: network namespaces that are joined by a veth pair.

use super::super::goal::Bound::AtLeast;
use super::super::goal::Goal::Ratio;
use super::super::row::{Part, Row, Unit};
use super::super::run::{Path, Run};
use super::super::source::Source;
use super::{LARGE, perftest};
use crate::test::Metric::Bandwidth;
use crate::test::Verb::Write;

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

/// Creates a row that compares writes with writes to a TCP connection over the same network.
macro_rules! beside_tcp {
    ($id:literal, $what:literal, ($link:expr, $path:expr), $least:expr) => {
        Row {
            id: $id,
            what: $what,
            unit: Unit::Bytes(LARGE),
            figure: perftest(writes($link, $path)),
            yardstick: &[Part::of(Source::Tcp {
                size: LARGE,
                mtu: $link,
            })],
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
];
