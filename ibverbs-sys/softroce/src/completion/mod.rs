//! Completion queues and the channels that tell of them. What is unsafe is in the ring of their entries.

mod bells;
mod channel;
mod deadlines;
mod entry;
mod moderation;
mod queue;
mod ring;

pub(crate) use bells::{Bell, Bells};
pub use channel::CompletionChannel;
pub use deadlines::Deadlines;
pub use entry::Entry;
pub use moderation::Moderation;
pub use queue::{Arming, CompletionQueue, CompletionQueueAttributes, Overrun};
