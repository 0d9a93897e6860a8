//! A network in virtual time, for tests of [`proto`](crate::proto): nodes with memory and queue pairs, and links
//! that lose, double, reorder, delay and change packets as a seed says. The same seed gives the same
//! run on every machine and for ever.
//!
//! A [`Schedule`] says who is connected over what network and what they ask of each other;
//! [`Schedule::of_seed`] draws one. While it [runs](Schedule::run), a model follows every request:
//! - every byte of every message and of all memory that peers reach;
//! - completions of a send queue in the order of posting, one for each request that asked for it or failed;
//! - receives once each, in order, with the right length, immediate data and invalidated key;
//! - atomics exactly once, by what they found and left;
//! - windows valid from their binding to their invalidation;
//! - fences, the window, the path MTU, consecutive sequence numbers;
//! - an end: nothing hangs, and nothing goes on for ever.
//!
//! In a part of the schedules reliable queue pairs send [briefs](crate::transfer::Brief), which the network carries as it carries packets.
//!
//! With losses of up to a tenth everything has to succeed; a schedule that is [`harsh`](Schedule::harsh) may
//! end in exhausted retries, followed by flushes. An [`Ending`] is a request that is made to fail.
//!
//! # Running it
//! `cargo test -p softroce --test simulation` runs a thousand schedules, or as many as `SOFTROCE_SIM_SCHEDULES`
//! says, and compares [`goodput_table`] with the recorded one. The example `simulate` runs any range of seeds, and
//! one of them with a trace of every packet. `cargo xtask plant` puts known bugs into the transport, to see that
//! they are noticed here.
#![forbid(unsafe_code)]

mod buffer;
mod cells;
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
mod pool;
mod random;
mod received;
mod requester;
mod revive;
mod run;
mod scenario;
mod schedule;
mod setup;
mod target;
mod trace;
mod watch;
mod world;

pub use goodput::goodput_table;
pub use network::{Conditions, Fate};
pub use run::{Failure, Outcome, run_all};
pub use schedule::{Connection, Ending, Kind, Schedule};
pub use trace::Lines;
#[cfg(any(test, fuzzing))]
pub(crate) use watch::Watch;
pub use world::Traffic;
