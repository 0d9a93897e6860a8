//! How much one end lets the other use, where nothing else is set.

use rdma_async::RdmaBuilder;

/// How long a message can be.
pub(crate) const MESSAGE: usize = 16 << 20;

/// No limit of messages is lower, so that every failure can be told.
pub(crate) const LEAST_MESSAGE: usize = 1024;

/// Connections for calls and nothing else.
pub(crate) fn transport(message_limit: usize) -> RdmaBuilder {
    RdmaBuilder::default()
        .message_limit(message_limit)
        .remote_memory_limit(0)
}
