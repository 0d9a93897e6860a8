//! Completion queues and the channels that tell of them.
#![forbid(unsafe_code)]

mod channel;
mod deadlines;
mod entry;
mod moderation;
mod queue;

pub use channel::CompletionChannel;
pub use deadlines::Deadlines;
pub use entry::Entry;
pub use moderation::Moderation;
pub use queue::{Arming, CompletionQueue, CompletionQueueAttributes, Overrun};
