#![forbid(unsafe_code)]
//! Withdrawals of memory windows that wait until copies by peer processes have ended.
//!
//! A work request that binds or invalidates a window cannot wait for copies by peers, because its
//! queue pair is locked. So its withdrawal of the window is recorded here, and the request checks
//! the progress again later. [`Accesses`] limits the time that this may take. The same limit
//! applies to verbs, which block until the copies have ended.

use parking_lot::Mutex;

use super::host_peers::{Accesses, HostPeers};
use crate::proto::Withdrawal;

/// Memory regions and windows that this process is making inaccessible to its peers, and from or to
/// which peers are still copying.
#[derive(Debug, Default)]
pub(super) struct Withdrawals(Mutex<Vec<Pending>>);

#[derive(Debug)]
struct Pending {
    slot: u32,
    /// Version of the window's retracted record, as [`HostPeers::retract_region`] returned it. A
    /// different version shows that the record was published again.
    retracted: u64,
    accesses: Accesses,
}

impl Withdrawals {
    /// Begins or continues to make the region or window with the record number `slot` inaccessible
    /// to peer processes, and returns the progress. If the result is [`Withdrawal::Pending`],
    /// copies by peers are possibly still in progress, and the caller must call this function again
    /// later.
    pub(super) fn poll(&self, slot: u32, host_peers: &HostPeers) -> Withdrawal {
        let mut all = self.0.lock();
        let retracted = host_peers.retract_region(slot);
        let known = all.iter().position(|pending| pending.slot == slot);
        let mut pending = match known.map(|known| all.swap_remove(known)) {
            Some(pending) if pending.retracted == retracted => pending,
            _ => Pending {
                slot,
                retracted,
                accesses: host_peers.accesses(),
            },
        };
        let withdrawal = pending.accesses.poll();
        if let Withdrawal::Pending { .. } = withdrawal {
            all.push(pending);
        }
        withdrawal
    }

    /// Stops tracking the withdrawal of the region or window with the record number `slot`. Does
    /// not restore the access of peers. Returns `false` if no withdrawal was in progress.
    pub(super) fn remove(&self, slot: u32) -> bool {
        let mut all = self.0.lock();
        let known = all.iter().position(|pending| pending.slot == slot);
        known.map(|known| all.swap_remove(known)).is_some()
    }
}
