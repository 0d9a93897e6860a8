//! The engine: a background thread that receives packets and runs timers for the NIC while no
//! thread polls. The engine sleeps while there is no work.
//!
//! # Division of work
//! Every thread that polls an empty completion queue also receives packets and runs due timers
//! ([`Nic::progress`](crate::nic::Nic::progress)). The [engine](thread) does this while no thread
//! polls: then a packet or a timer wakes it.
//!
//! Waking a thread costs the sender of a packet microseconds. So while a thread polls, packets do
//! not wake the engine: it does not watch the sockets, and checks at intervals whether the thread
//! still polls ([`pacing`]). The engine watches the sockets again immediately when a program arms a
//! completion queue in order to sleep, and otherwise when an interval shows that no thread polls
//! any more.
//!
//! # No wakeup is lost
//! - Packets: while the engine watches the sockets, each packet wakes it, or ends its next sleep if
//!   it is awake ([`watch`]). The engine receives until the sockets are empty. If another thread is
//!   receiving, the engine sets a flag and tries once more. The other thread checks the flag after
//!   it has released the lock, and receives again if the flag is set. So one of the two threads
//!   sees the packet. While the engine does not watch the sockets, it sleeps for one interval at
//!   most. Packets that are in a socket when it begins to watch count as having arrived then.
//! - Timers, and everything else that other threads report: these threads first change the state
//!   that the engine checks before it sleeps, and then test whether it
//!   [sleeps](crate::timers::Sleeper). The engine first publishes that it sleeps, and then checks
//!   that state again. All four accesses are sequentially consistent, so at least one side sees the
//!   other.

mod pacing;
mod signals;
#[cfg(test)]
mod tests;
mod thread;
mod watch;

pub(crate) use signals::spawn;
pub(crate) use thread::{Engine, EngineTasks, ReceiveAttempt};
