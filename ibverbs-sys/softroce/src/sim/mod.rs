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
//! With losses of up to a tenth everything has to succeed; a schedule that is [`harsh`](Schedule::harsh) may
//! end in exhausted retries, followed by flushes. An [`Ending`] is a request that is made to fail.
#![forbid(unsafe_code)]

mod buffer;
mod cells;
mod content;
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
mod requester;
mod revive;
mod run;
mod scenario;
mod schedule;
mod target;
mod trace;
mod watch;
mod world;

pub use goodput::goodput_table;
pub use network::{Conditions, Fate};
pub use run::{Failure, Outcome, run_all};
pub use schedule::{Connection, Ending, Kind, Schedule};
pub use trace::Lines;
pub use world::Traffic;
