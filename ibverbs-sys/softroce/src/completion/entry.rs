#![forbid(unsafe_code)]

use crate::proto::{Completion, CompletionOpcode, CompletionStatus};

/// Entry of a completion queue: the result of one request. The program gets the entry as a work
/// completion (`ibv_wc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Completion of the request as the transport reports it.
    pub completion: Completion,
    /// Number of the queue pair that executed the request. A receive of a shared receive queue is
    /// executed by the queue pair that received the message.
    pub queue_pair: u32,
    /// Time of the completion, in nanoseconds of the NIC's clock.
    pub timestamp: u64,
    /// Index of the message's partition key in the port's table of partition keys.
    pub partition_index: u16,
}

impl Entry {
    /// Returns whether the entry raises an event on a queue that is armed for solicited completions
    /// only (`ibv_req_notify_cq(3)`, IBTA 11.4.2.2). Such an entry reports an error, or a received
    /// message whose sender has requested an event (solicited flag).
    pub fn is_solicited(&self) -> bool {
        let completion = &self.completion;
        completion.status != CompletionStatus::Success
            || completion.solicited
                && matches!(
                    completion.opcode,
                    CompletionOpcode::Receive | CompletionOpcode::ReceiveWithImmediate
                )
    }
}
