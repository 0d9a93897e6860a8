//! Completion queues, the channels that announce completions, and the completions.

#![forbid(unsafe_code)]

mod channel;
mod queue;
mod status;
mod work_completion;

pub use channel::CompletionChannel;
pub use queue::{CompletionQueue, CompletionQueueBuilder, CompletionQueueId};
pub use status::{WorkError, WorkStatus};
pub use work_completion::{WorkCompletion, WorkOpcode};
