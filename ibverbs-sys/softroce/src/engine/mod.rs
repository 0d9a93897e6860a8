//! The engine: the thread that drives the NIC of the process while no verb does. It sleeps whenever nothing needs it.
//!
//! # Who does the work
//! Every thread that polls an empty completion queue looks after the network itself, and runs timers that are due
//! ([`Nic::progress`](crate::nic::Nic::progress)). The [engine](thread) is for the time when no thread polls: then a
//! packet or a timer wakes it.
//!
//! Waking a thread costs the sender of a packet microseconds. So while a thread polls, packets do not wake the engine:
//! it does not wait for the sockets, and checks at intervals whether the thread still polls ([`pacing`]). It waits for
//! the sockets again at once when a program arms a completion queue in order to sleep, and otherwise when an interval
//! shows that no thread polls any more.
//!
//! # No wake-up is lost
//! - A packet: while the engine watches the sockets, each packet that comes wakes it, or ends its next sleep if it is
//!   awake ([`watch`]). It fetches until there are none. If another thread is fetching, the engine leaves a note and
//!   tries once more. The other thread looks for such a note after it has let go of the lock, and fetches again if
//!   there is one. So one of the two sees the packet. While the engine does not watch the sockets it sleeps for an
//!   interval at most, and packets that are there when it begins to watch them again count as having come then.
//! - A timer, and everything else that other threads report: they first change the state that the engine checks before
//!   it sleeps, and then test whether it [sleeps](crate::timers::Sleeper); the engine first notes that it sleeps, and then checks that
//!   state again. All four accesses are sequentially consistent, so at least one side sees the other.

mod pacing;
mod signals;
#[cfg(test)]
mod tests;
mod thread;
mod watch;

pub(crate) use signals::spawn;
pub(crate) use thread::{Device, Engine, Look};
