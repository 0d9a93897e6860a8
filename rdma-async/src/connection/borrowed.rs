//! Leases of the peer that this end has taken, which the peer can end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Connection;

/// Flags of the leases that the peer has offered, which are set when the peer ends a lease.
#[derive(Debug, Default)]
pub(super) struct Borrowed {
    ends: Mutex<HashMap<u64, Arc<AtomicBool>>>,
}

impl Borrowed {
    /// Adds a lease, and returns the flag that is set when the lease ends.
    pub(super) fn begin(&self, lease: u64) -> Arc<AtomicBool> {
        let ended = Arc::default();
        self.ends.lock().insert(lease, Arc::clone(&ended));
        ended
    }

    /// Sets the flag of a lease that the peer has ended. Has no effect if this end has returned it
    /// before.
    pub(super) fn end(&self, lease: u64) {
        if let Some(ended) = self.ends.lock().remove(&lease) {
            ended.store(true, Ordering::Release);
        }
    }
}

impl Connection {
    /// Removes a lease that this end returns or releases.
    pub(crate) fn forget_borrowed(&self, lease: u64) {
        self.borrowed.ends.lock().remove(&lease);
    }
}
