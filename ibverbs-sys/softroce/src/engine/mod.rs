//! What drives the device when no verb does: one thread for the process's NIC, asleep whenever nobody
//! needs it.
//!
//! # Who does the work
//! Every thread that polls an empty completion queue looks after the network itself, and runs timers that are due
//! ([`Nic::progress`](crate::nic::Nic::progress)). The [engine](thread) is for the time when nobody polls: then a packet or a timer wakes it.
//!
//! Waking a thread costs the sender of a packet microseconds, so while somebody polls, the engine does not want to be
//! woken by packets: it leaves the sockets out of what it waits for and looks in at intervals ([`pacing`]). It comes back
//! at once when a program arms a completion queue to sleep itself, and otherwise when an interval shows that nobody polls
//! any more.
//!
//! # No wake-up is lost
//! - A packet: while the engine watches the sockets it waits with `ppoll`, which returns for every socket that has
//!   something, whether it came before the call or after. While it does not watch them it waits no longer than
//!   an interval.
//! - A timer, and everything else that other threads tell it: they change what the engine looks at before it sleeps, and then
//!   look whether it [sleeps](Sleeper); the engine says that it sleeps, and then looks again. All four in one
//!   order (sequentially consistent), so at least one side sees the other.

mod pacing;
mod signals;
mod sleeper;
#[cfg(test)]
mod tests;
mod thread;
mod timers;

pub(crate) use sleeper::Sleeper;
pub(crate) use thread::{Device, Engine, Look};
pub(crate) use timers::{Alarm, Timers};
