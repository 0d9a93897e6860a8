//! Completion queues, completion channels, and completions.
//!
//! A [`CompletionQueue`] returns [`WorkCompletion`]s, which are copies: a program can store them
//! and pass them to any queue. The completions of an [`ExtendedCompletionQueue`] are read field by
//! field from the entries that the device wrote, and have timestamps if the device has a clock.
//!
//! A program waits for completions in one of three ways. Busy polling has the lowest latency.
//! Blocking on a [`CompletionChannel`], or on its file descriptor, needs no processor time;
//! [`CompletionQueue::poll_or_arm`] ensures that no completion is missed. [`CompletionQueue::wait`]
//! polls for a short time and then sleeps.

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
