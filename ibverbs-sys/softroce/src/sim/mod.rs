//! Simulation in virtual time, for tests of the transport ([`proto`](crate::proto)): nodes with
//! memory and queue pairs, and a network that loses, duplicates, reorders, delays and changes
//! packets. A seed determines everything: the same seed gives the same run on every machine and in
//! every version.
//!
//! A [`Schedule`] defines the network, the connections and their requests; [`Schedule::of_seed`]
//! generates one. While a schedule [runs](Schedule::run), a model checks every request:
//! - every byte of every message and of all memory that peers reach;
//! - completions of a send queue: in the order of posting, and one for each request that is
//!   signaled or fails;
//! - receives: each completes once, in order, with the right length, immediate data and invalidated
//!   key;
//! - atomics: each is executed exactly once, according to the results;
//! - memory windows: valid from their binding to their invalidation;
//! - fences, the window, the path MTU, consecutive sequence numbers;
//! - termination: no request stays incomplete, and no queue pair sends forever.
//!
//! In some schedules reliable queue pairs send [ring messages](crate::transfer::RingMessage) (short
//! messages without packet headers), which the network transfers like packets.
//!
//! With packet losses of up to 10 percent, every request must succeed. In a
//! [`harsh`](Schedule::harsh) schedule, requests may fail with exhausted retries, and later
//! requests are then flushed. An [`Ending`] is a request that is made to fail.
//!
//! # Running it
//! `cargo test -p softroce --test simulation` runs a thousand schedules, or as many as
//! `SOFTROCE_SIM_SCHEDULES` says, and compares [`goodput_table`] and [`bottleneck_table`] with the
//! recorded ones. The example `simulate` runs any range of seeds, and single seeds with a trace of
//! every packet. `cargo xtask plant` adds known bugs to the transport, to check that the simulation
//! detects them.
#![forbid(unsafe_code)]

mod bottleneck;
mod buffer;
mod content;
mod drafts;
mod endings;
mod finish;
mod generate;
mod goodput;
mod host;
mod memory;
mod model;
mod network;
mod packet_checker;
mod random;
mod receive_pool;
mod received;
mod requester;
mod reset;
mod run;
mod scenario;
mod schedule;
mod setup;
mod shared_words;
mod stream;
mod target_memory;
mod trace;
mod world;

pub use bottleneck::bottleneck_table;
pub use goodput::goodput_table;
pub use network::{Conditions, Fate};
#[cfg(any(test, fuzzing))]
pub(crate) use packet_checker::PacketChecker;
pub use run::{Failure, Outcome, run_all};
pub use schedule::{Connection, Ending, Kind, Schedule};
pub use trace::Lines;
pub use world::Traffic;
