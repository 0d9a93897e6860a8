//! Completion queues and completion channels, by which programs learn that requests have completed.
//! Unsafe code is confined to the ring buffer of entries.

mod channel;
mod deadlines;
mod entry;
mod moderation;
mod queue;
mod ring;
mod wake_eventfds;

pub use channel::CompletionChannel;
pub use deadlines::Deadlines;
pub use entry::Entry;
pub use moderation::Moderation;
pub use queue::{Arming, CompletionQueue, CompletionQueueAttributes, Overrun};
pub(crate) use wake_eventfds::{WakeEventfd, WakeEventfds};
