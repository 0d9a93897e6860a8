//! Default limits of clients and servers.

use std::time::Duration;

use rdma_async::RdmaBuilder;

/// The default maximum length of a message in bytes.
pub(crate) const MESSAGE: usize = 16 << 20;

/// The lowest message limit that can be set, in bytes: a batch of frames must always fit.
const LEAST_MESSAGE: usize = 8 << 10;

/// The highest message limit that can be set, in bytes: lengths have 32 bits.
const MOST_MESSAGE: usize = 1 << 30;

/// The default maximum length of a bulk of the peer in bytes.
pub(crate) const BULK: usize = 1 << 30;

/// Time within which a server must accept a connection, and either end must send its settings.
pub(crate) const CONNECT: Duration = Duration::from_secs(20);

/// Returns the nearest message limit that can be set.
pub(crate) fn message(bytes: usize) -> usize {
    bytes.clamp(LEAST_MESSAGE, MOST_MESSAGE)
}

/// Returns the transport settings with this message limit. By default the peer can request no
/// memory, because calls need no remote memory.
pub(crate) fn transport(chosen: Option<RdmaBuilder>, message_limit: usize) -> RdmaBuilder {
    chosen
        .unwrap_or_else(|| RdmaBuilder::default().remote_memory_limit(0))
        .message_limit(message_limit)
}
