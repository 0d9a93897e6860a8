//! [`Token`]: the representation of a bulk in an encoded value.

use serde::{Deserialize, Serialize};

/// Length in bytes of the encoded address, length and remote key of memory, as rdma-async encodes
/// them.
const REMOTE_MEMORY_LEN: usize = 20;

/// Representation of a [`Bulk`](crate::Bulk) in an encoded value. By these fields, the peer that
/// receives the value can access the memory of the bulk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Bulk")]
pub(super) struct Token {
    /// ID of the lease, chosen by the owner.
    pub(super) lease: u64,
    /// Length in bytes.
    pub(super) len: u64,
    /// Set if the borrower may write the bulk.
    pub(super) is_writable: bool,
    /// Address, length and remote key of the memory in the encoding of rdma-async. `None` for an
    /// empty bulk and for transports other than RDMA.
    pub(super) memory: Option<[u8; REMOTE_MEMORY_LEN]>,
}
