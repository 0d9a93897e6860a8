//! The comparisons that are measured in the virtual machine, where the kernel's Soft-RoCE device
//! gives the reference values.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::Ratio;
use super::super::row::{Row, Unit};
use super::super::run::{Path, Run};
use super::{KIB, ours, perftest};
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{Send, Write};

/// The comparisons of softroce with the kernel's Soft-RoCE device. The goal of each comparison
/// bounds the ratio of the two results. The comparisons are named `G11a`, `G11b` and so on.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "G11a",
        what: "write 64 KiB, device memory / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: ours(Run::new(Write, Bandwidth, 64 * KIB)),
        yardstick: &[ours(
            Run::new(Write, Bandwidth, 64 * KIB).path(Path::Kernel),
        )],
        goal: Ratio(AtLeast(5.0)),
    },
    Row {
        id: "G11b",
        what: "ib_write_bw 64 KiB / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: perftest(Run::new(Write, Bandwidth, 64 * KIB)),
        yardstick: &[perftest(
            Run::new(Write, Bandwidth, 64 * KIB).path(Path::Kernel),
        )],
        goal: Ratio(AtLeast(3.0)),
    },
    Row {
        id: "G11c",
        what: "write 8 B, device memory / the same on rxe",
        unit: Unit::Messages,
        figure: ours(Run::new(Write, Bandwidth, 8)),
        yardstick: &[ours(Run::new(Write, Bandwidth, 8).path(Path::Kernel))],
        goal: Ratio(AtLeast(5.0)),
    },
    Row {
        id: "G11d",
        what: "ib_send_lat 8 B / the same on rxe",
        unit: Unit::Microseconds,
        figure: perftest(Run::new(Send, Latency, 8)),
        yardstick: &[perftest(Run::new(Send, Latency, 8).path(Path::Kernel))],
        goal: Ratio(AtMost(0.5)),
    },
    Row {
        id: "G11e",
        what: "UDP, ib_write_bw 64 KiB / the same on rxe",
        unit: Unit::Bytes(64 * KIB),
        figure: perftest(Run::new(Write, Bandwidth, 64 * KIB).path(Path::Udp)),
        yardstick: &[perftest(
            Run::new(Write, Bandwidth, 64 * KIB).path(Path::Kernel),
        )],
        goal: Ratio(AtLeast(1.0)),
    },
    Row {
        id: "G11f",
        what: "UDP, ib_write_bw 8 B / the same on rxe",
        unit: Unit::Messages,
        figure: perftest(Run::new(Write, Bandwidth, 8).path(Path::Udp)),
        yardstick: &[perftest(Run::new(Write, Bandwidth, 8).path(Path::Kernel))],
        goal: Ratio(AtLeast(1.0)),
    },
];
