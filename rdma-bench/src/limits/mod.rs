//! Softroce against what the machine does without it.
//!
//! Each [`Row`] is a ratio with a goal: a figure of softroce by a yardstick, which is a raw copy, a
//! system call, a socket, another library that uses shared memory, or in a virtual machine the
//! kernel's device. Both are measured in pairs, in turns, each end on a processor of its own, and the
//! median of the pairs' ratios decides.
//!
//! Virtual processors move while a program runs, and what passes between two of them then takes
//! another time. So the [round trip of a cache line](Regime) is taken before and after each pair,
//! and a pair within which it changed is taken again.

mod judge;
mod outcome;
mod regime;
mod row;
mod rows;
mod source;
mod table;
mod ucx;

pub use judge::{Effort, Judge, Networks, Programs};
pub use outcome::{Judged, Pair};
pub use regime::Regime;
pub use row::{Part, Row, Unit};
pub use rows::{GUEST, HOST};
pub use source::{Path, Run, Source};
pub use table::{failed, heading, line};
