//! Timers of a NIC, based on its clock, and the place where the engine sleeps until a timer is due.
//!
//! Queue pairs, the network and the NIC register the times at which they must be called. The engine
//! sleeps until the earliest of these times. A thread that registers a time before that
//! [wakes](Sleeper::wake_before) the engine.

mod clock;
mod set;
mod sleeper;

pub(crate) use set::{Alarm, Timers};
pub(crate) use sleeper::Sleeper;
