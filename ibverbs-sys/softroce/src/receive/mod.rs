//! Receive queues: the queue of one queue pair, and queues that several queue pairs share.
#![forbid(unsafe_code)]

mod directory;
mod queue;
mod shared;

pub use directory::SharedQueueDirectory;
pub use queue::{Full, ReceiveQueue};
pub use shared::{SharedReceiveQueue, XrcBinding};
