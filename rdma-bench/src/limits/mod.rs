//! The judge: compares the crates of this workspace with copies, system calls, sockets and other
//! programs on the same machine.
//!
//! Each [`Row`] is one comparison with a [`Goal`]. The figure of a row is the value under test,
//! which is measured over one of this workspace's layers, by perftest or by UCX. The yardstick of a
//! row is the reference value, which is measured by one of these programs, or is a memory copy, a
//! system call, a socket, or (in a virtual machine) the kernel's device. The goal is a bound of
//! their ratio, of their difference, or of the figure alone. A [`Pair`] is one measurement of
//! figure and yardstick, one after the other, with the two processes pinned to the same two
//! processors.
//!
//! The [interval](Interval) of the pairs' median gives the [`Verdict`]: *met* when the whole
//! interval is on the right side of the goal, *missed* when it is on the wrong side, and otherwise
//! *undecided*, after [more pairs](Effort::FULL).
//!
//! Virtual processors may move to other cores while a program runs, which changes the time of
//! communication between two of them. Therefore the [round trip of a cache line](Distance) is
//! measured before and after each pair, and a pair during which it changed is repeated.

mod attack;
mod copy;
mod distance;
mod flows;
mod goal;
mod hosts;
mod interval;
mod judge;
mod key_value;
mod outcome;
mod ring;
mod row;
mod rows;
mod run;
mod select;
mod source;
mod statistic;
mod summary;
mod table;
mod ucx;

pub use distance::Distance;
pub use goal::{Bound, Goal, Verdict};
pub use interval::Interval;
pub use judge::{Effort, Judge, Networks, Programs};
pub use outcome::{Judged, Pair};
pub use row::{Quantity, Row, Term, Unit};
pub use run::{Path, Run};
pub use select::{MachineKind, UnknownRow, listing, select};
pub use source::Source;
pub use statistic::Statistic;
pub use summary::Summary;
pub use table::{failed, heading, line};
