//! Where received messages go: the receive queue of a queue pair, and those that many share.
#![forbid(unsafe_code)]

mod directory;
mod queue;
mod shared;

pub use directory::Directory;
pub use queue::{Full, ReceiveQueue};
pub use shared::{SharedReceiveQueue, XrcBinding};
