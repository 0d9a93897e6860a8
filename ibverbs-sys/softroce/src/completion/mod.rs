//! Completion queues and completion channels. Unsafe code is confined to the ring buffer of entries.

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
