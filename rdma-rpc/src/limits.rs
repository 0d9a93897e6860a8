//! Default limits of clients and servers.

use rdma_async::RdmaBuilder;

/// The default maximum length of a message in bytes.
pub(crate) const MESSAGE: usize = 16 << 20;

/// The lowest message limit that can be set, in bytes: a failure message must always fit.
pub(crate) const LEAST_MESSAGE: usize = 1024;

/// Returns the default transport settings. With them the peer can request no memory, because calls need
/// no remote memory.
pub(crate) fn transport(message_limit: usize) -> RdmaBuilder {
    RdmaBuilder::default()
        .message_limit(message_limit)
        .remote_memory_limit(0)
}
