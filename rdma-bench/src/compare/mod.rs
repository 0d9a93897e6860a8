//! Comparison of this program with perftest. Both programs run in turns on the same device.
//!
//! Each program runs as two processes, server and client, on two processors. Both programs measure
//! with the same message size, number of messages, queue depth, signaling, polling, MTU, GID index
//! and inline data. Each pair of runs gives a ratio, and the median of the ratios decides: changes
//! of the machine between two pairs then do not matter.

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
