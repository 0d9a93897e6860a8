//! [`Token`]: what stands for a bulk in an encoded value.

use serde::{Deserialize, Serialize};

/// Length in bytes of the address, the length and the key of remote memory.
const REMOTE: usize = 20;

/// Encoded bulk: its lease, its length, and its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Bulk")]
pub(super) struct Token {
    /// Number of the lease, which the owner chose.
    pub(super) lease: u64,
    /// Length in bytes.
    pub(super) len: u64,
    pub(super) is_writable: bool,
    /// Address, length and key of the memory, as rdma-async encodes them; `None` over other
    /// transports than RDMA, and for 0 bytes.
    pub(super) memory: Option<[u8; REMOTE]>,
}
