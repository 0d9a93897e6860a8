//! Leases of the peer's memory that this end holds and the peer can revoke.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Connection;

/// Ids of the leases of peer memory that this end holds, each with a flag that is set when the peer
/// revokes the lease. The flag is shared with the [`RemoteMr`](crate::RemoteMr), whose operations
/// then fail.
#[derive(Debug, Default)]
pub(super) struct BorrowedLeases {
    ends: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

impl BorrowedLeases {
    /// Adds a lease (memory of the peer that this end may access) with the id `lease` to the table.
    /// Returns the flag that is set when the peer revokes the lease.
    pub(super) fn add(&self, lease: u64) -> Arc<AtomicBool> {
        let ended = Arc::default();
        self.ends.lock().insert(lease, Arc::clone(&ended));
        ended
    }

    /// Marks a lease (memory of the peer that this end may access) as ended, because the peer has
    /// revoked the lease. Sets the flag that [`Self::add`] has returned. Does nothing if this end
    /// has already returned or released the lease.
    pub(super) fn mark_ended(&self, lease: u64) {
        if let Some(ended) = self.ends.lock().remove(&lease) {
            ended.store(true, Ordering::Release);
        }
    }
}

impl Connection {
    /// Removes the lease `lease` from the table, because this end gives the memory back to the
    /// peer. A lease is this end's permission to access memory of the peer. Afterwards, a message
    /// by which the peer ends the same lease has no effect.
    pub(crate) fn forget_borrowed(&self, lease: u64) {
        self.borrowed.ends.lock().remove(&lease);
    }
}
