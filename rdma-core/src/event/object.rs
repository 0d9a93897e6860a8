//! The objects that asynchronous events refer to.

use std::fmt;

use crate::completion::CompletionQueueId;
use crate::receive::SharedReceiveQueueId;

/// The device, port or queue that an [`AsyncEvent`](super::AsyncEvent) refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventObject {
    /// A completion queue.
    CompletionQueue(CompletionQueueId),
    /// A queue pair, by its number.
    QueuePair(u32),
    /// A shared receive queue.
    SharedReceiveQueue(SharedReceiveQueueId),
    /// A work queue, by its number.
    WorkQueue(u32),
    /// A port, by its number.
    Port(u8),
    /// The device itself.
    Device,
    /// An object that this crate does not know.
    Unknown,
}

impl fmt::Display for AsyncEventObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CompletionQueue(id) => write!(f, "completion queue {}", id.0),
            Self::QueuePair(number) => write!(f, "queue pair {number}"),
            Self::SharedReceiveQueue(id) => write!(f, "shared receive queue {}", id.0),
            Self::WorkQueue(number) => write!(f, "work queue {number}"),
            Self::Port(number) => write!(f, "port {number}"),
            Self::Device => f.write_str("the device"),
            Self::Unknown => f.write_str("an unknown object"),
        }
    }
}
