//! The judge, which compares the crates of this workspace with what the machine does without them.
//!
//! Each [`Row`] is one comparison with a [`Goal`]. The figure of a row is the value under test, which
//! is measured over one of this workspace's layers, by perftest or by UCX. The yardstick of a row is
//! the reference value: measured by one of these programs, or a raw copy, a system call, a socket, or
//! in a virtual machine the kernel's device. The goal is about the ratio of figure and yardstick, their
//! difference, or the figure alone. A [`Pair`] is one measurement of figure and yardstick, one after
//! the other, with the two processes pinned to the same two processors.
//!
//! The [interval](Interval) of the pairs' median gives the [`Verdict`]: *met* when the whole interval
//! is on the right side of the goal, *missed* when it is on the wrong side, and otherwise *undecided*,
//! after [more pairs](Effort::FULL).
//!
//! Virtual processors may move to other cores while a program runs, which changes the time of
//! communication between two of them. So the [round trip of a cache line](Regime) is measured before
//! and after each pair, and a pair during which it changed is repeated.

mod attack;
mod copy;
mod flows;
mod goal;
mod hosts;
mod interval;
mod judge;
mod outcome;
mod regime;
mod row;
mod rows;
mod run;
mod select;
mod source;
mod statistic;
mod summary;
mod table;
mod ucx;

pub use goal::{Bound, Goal, Verdict};
pub use interval::Interval;
pub use judge::{Effort, Judge, Networks, Programs};
pub use outcome::{Judged, Pair};
pub use regime::Regime;
pub use row::{Part, Quantity, Row, Unit};
pub use run::{Path, Run};
pub use select::{Place, UnknownRow, listing, select};
pub use source::Source;
pub use statistic::Statistic;
pub use summary::Summary;
pub use table::{failed, heading, line};
