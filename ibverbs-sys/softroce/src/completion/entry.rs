#![forbid(unsafe_code)]

use crate::proto::{Completion, CompletionStatus, Work};

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Completion of a request.
    pub completion: Completion,
    /// Number of the queue pair that the request was posted to, or whose message took it from a shared receive queue.
    pub queue_pair: u32,
    /// Time of the completion, in nanoseconds of the NIC's clock.
    pub timestamp: u64,
    /// Index of the partition key.
    pub partition_index: u16,
}

impl Entry {
    /// Returns whether the entry raises an event on a queue that is armed for solicited completions only: a solicited message
    /// or an error (`ibv_req_notify_cq(3)`, IBTA 11.4.2.2).
    pub fn is_solicited(&self) -> bool {
        let completion = &self.completion;
        completion.status != CompletionStatus::Success
            || completion.solicited
                && matches!(completion.work, Work::Receive | Work::ReceiveWithImmediate)
    }
}
