//! This program and perftest in turns, on one device, in one run.
//!
//! The two ends of either are two processes on two processors. What both measure is the same: size,
//! number of messages, queue depth, signaling, polling, MTU, GID index, inline data. Each pair of
//! runs gives a ratio; the median of the ratios decides, so that what changes on the machine
//! between two pairs does not.

mod case;
mod device;
pub(crate) mod ends;
mod goals;
pub(crate) mod outcome;
pub(crate) mod program;
pub(crate) mod run;
mod table;

pub use case::{Case, Effort};
pub use device::{Network, Perftest, softroce_is_preloaded};
pub use goals::Goal;
pub use outcome::{Comparison, Pair};
pub use program::Program;
pub use run::compare;
pub use table::{heading, line};
