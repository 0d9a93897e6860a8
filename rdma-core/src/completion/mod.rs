//! Completion queues, the channels that announce completions, and the completions.
//!
//! A [`CompletionQueue`] gives out [`WorkCompletion`]s, which are copies: keep them, or show them to
//! any queue. An [`ExtendedCompletionQueue`] lets its completions be read where the device wrote
//! them, field by field, with timestamps where the device has a clock.
//!
//! Three ways to wait: poll without end, which is the fastest; arm a [`CompletionChannel`] and block
//! on it or on its descriptor, for which [`CompletionQueue::poll_or_arm`] misses nothing; or poll for a
//! while and then sleep, which [`CompletionQueue::wait`] does.

#![forbid(unsafe_code)]

mod channel;
mod extended;
mod extended_completion;
mod fields;
mod opcode;
mod queue;
mod status;
mod wait;
mod work_completion;

pub use channel::CompletionChannel;
pub use extended::{ExtendedCompletionQueue, ExtendedCompletionQueueBuilder, PolledCompletions};
pub use extended_completion::{CompletionTag, ExtendedCompletion};
pub use fields::CompletionFields;
pub use opcode::WorkOpcode;
pub use queue::{CompletionQueue, CompletionQueueBuilder, CompletionQueueId};
pub use status::{StatusClass, WorkError, WorkStatus};
pub(crate) use wait::pause;
pub use work_completion::WorkCompletion;
