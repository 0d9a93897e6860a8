//! Receive queues, to which programs post memory for messages: the queue of one queue pair, and
//! queues that several queue pairs share.
#![forbid(unsafe_code)]

mod queue;
mod shared;
mod shared_queue_directory;

pub use queue::{Full, ReceiveQueue};
pub use shared::{SharedReceiveQueue, XrcBinding};
pub use shared_queue_directory::SharedQueueDirectory;
