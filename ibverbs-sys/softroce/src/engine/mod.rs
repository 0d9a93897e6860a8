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
//! - A packet: while the engine watches the sockets, each one that comes wakes it, or ends its next sleep if it is
//!   awake ([`watch`]). It fetches until there are none. Where another thread is fetching it says so and tries once
//!   more; that thread looks whether somebody said so after it has let go, and fetches again. So either
//!   the one or the other sees the packet. While the engine does not watch the sockets it sleeps no longer than an
//!   interval, and what is there when it begins to watch them again counts as having come then.
//! - A timer, and everything else that other threads tell it: they change what the engine looks at before it sleeps, and then
//!   look whether it [sleeps](Sleeper); the engine says that it sleeps, and then looks again. All four in one
//!   order (sequentially consistent), so at least one side sees the other.

mod clock;
mod pacing;
mod signals;
mod sleeper;
#[cfg(test)]
mod tests;
mod thread;
mod timers;
mod watch;

pub(crate) use signals::spawn;
pub(crate) use sleeper::Sleeper;
pub(crate) use thread::{Device, Engine, Look};
pub(crate) use timers::{Alarm, Timers};
