//! Default limits of clients and servers.

use std::time::Duration;

use rdma_async::RdmaBuilder;

/// Default maximum length of a message in bytes. Long enough for most requests, and short enough
/// that a peer cannot exhaust the memory by a few messages.
pub(crate) const MESSAGE_LEN: usize = 16 << 20;

/// Lowest value of the message limit that a program can set, in bytes. A message with several
/// frames never exceeds this limit, because it has at most `MAX_BATCH_LEN` (4352) bytes. Therefore
/// only the length of a frame that is sent alone must be checked.
const MIN_MESSAGE_LEN: usize = 8 << 10;

/// Highest message limit that can be set, in bytes. Lengths up to this limit fit into the 32-bit
/// fields of the wire format.
const MAX_MESSAGE_LEN: usize = 1 << 30;

/// Default maximum length in bytes of a [`Bulk`](crate::Bulk) that the peer sends. Limited because
/// a program that reads a whole bulk allocates as much memory.
pub(crate) const BULK_LEN: usize = 1 << 30;

/// Timeout for connecting, and for the arrival of the peer's settings. Long enough for a slow
/// network, and short enough that a silent peer does not occupy resources for long.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns `bytes`, restricted to the range of message limits that a program can set: from
/// [`MIN_MESSAGE_LEN`] to [`MAX_MESSAGE_LEN`].
pub(crate) fn clamp_message_len(bytes: usize) -> usize {
    bytes.clamp(MIN_MESSAGE_LEN, MAX_MESSAGE_LEN)
}

/// Returns the RDMA settings of a client or server: the settings `chosen` by the program, or else
/// default settings. The default settings do not let the peer request memory of this end, because
/// calls do not need such memory. In both cases, `message_limit` becomes the maximum length of a
/// message.
pub(crate) fn transport(chosen: Option<RdmaBuilder>, message_limit: usize) -> RdmaBuilder {
    chosen
        .unwrap_or_else(|| RdmaBuilder::default().remote_memory_limit(0))
        .message_limit(message_limit)
}
