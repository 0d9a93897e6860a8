//! The timers of a NIC, by its clock, and the place where the engine sleeps until one of them is due.
//!
//! Queue pairs, the network and the NIC note when they want to be called. The engine sleeps until the earliest of these
//! times, and a thread that notes an earlier one [wakes](Sleeper::wake_before) it.

mod clock;
mod set;
mod sleeper;

pub(crate) use set::{Alarm, Timers};
pub(crate) use sleeper::Sleeper;
