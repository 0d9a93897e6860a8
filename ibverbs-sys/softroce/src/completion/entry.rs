#![forbid(unsafe_code)]

use crate::proto::{Completion, CompletionStatus, Work};

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// How the request ended.
    pub completion: Completion,
    /// The queue pair that it was posted to, or whose message took it from a shared queue.
    pub queue_pair: u32,
    /// When it ended: nanoseconds of the NIC's clock.
    pub timestamp: u64,
    /// Index of the partition key.
    pub partition_index: u16,
}

impl Entry {
    /// Whether it raises an event for who waits for solicited ones only: a message that was sent so,
    /// or an error (`ibv_req_notify_cq(3)`, IBTA 11.4.2.2).
    pub fn is_solicited(&self) -> bool {
        let completion = &self.completion;
        completion.status != CompletionStatus::Success
            || completion.solicited
                && matches!(completion.work, Work::Receive | Work::ReceiveWithImmediate)
    }
}
