//! The engine: a background thread that receives packets and runs timers for the NIC while no
//! thread polls. The engine sleeps while there is no work.
//!
//! # Division of work
//! Every thread that polls an empty completion queue also receives packets and runs due timers
//! ([`Nic::progress`](crate::nic::Nic::progress)). The [engine](thread) does this work while no
//! thread polls. A packet or a timer then wakes the engine.
//!
//! Waking a thread costs the sender of a packet microseconds. So while a thread polls, packets do
//! not wake the engine. The engine then does not watch the sockets, and checks at intervals whether
//! the thread still polls ([`pacing`]). The engine watches the sockets again immediately when a
//! program arms a completion queue in order to sleep, and otherwise when an interval shows that no
//! thread polls any more.
//!
//! # No wakeup is lost
//! - Packets: while the engine watches the sockets, each packet ends the present sleep of the
//!   engine, or the next sleep if the engine is awake ([`watch`]). The engine receives until the
//!   sockets are empty. If another thread is receiving, the engine sets a flag and tries once more.
//!   After the other thread has released the lock, that thread checks the flag, and receives again
//!   if the flag is set. So one of the two threads sees the packet. While the engine does not watch
//!   the sockets, each of its sleeps lasts for one interval at most. When the engine begins to
//!   watch, packets that are already in a socket count as having arrived at that moment.
//! - Timers, and everything else that other threads report: these threads first change the state
//!   that the engine checks before each sleep, and then test whether the engine
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
