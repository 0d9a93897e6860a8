//! The comparisons of rdma-core with perftest.

use super::super::goal::Bound::{AtLeast, AtMost};
use super::super::goal::Goal::Ratio;
use super::super::row::{Row, Unit};
use super::super::run::Run;
use super::{KIB, ours, perftest};
use crate::test::Metric::{Bandwidth, Latency};
use crate::test::Verb::{FetchAndAdd, Read, Send, Write};

/// The arguments that make `rdma-bench` allocate the memory of messages itself, as perftest does.
/// By default, `rdma-bench` uses memory that the device provides.
const MALLOC: &[&str] = &["--memory", "malloc"];

/// Defines a comparison (a row of the judge's table) of rdma-core with perftest's program for the
/// same test. Both programs allocate the memory of messages themselves.
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

/// The comparisons of rdma-core with perftest, the usual RDMA benchmark, each with its goal. The
/// names of the comparisons begin with C.
pub(super) const ROWS: &[Row] = &[
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
];
