#![forbid(unsafe_code)]
//! Windows that were withdrawn from peers whose copies are still going on.
//!
//! A work request that binds or invalidates a window cannot wait for the copies, because its queue pair is locked. So
//! the withdrawal is kept here, and the request checks it again later. [`Accesses`] limits how long that may go on, as
//! it does for verbs, which do wait.

use parking_lot::Mutex;

use super::neighbourhood::{Accesses, Neighbourhood};
use crate::proto::Withdrawal;

/// Pending withdrawals, one for each slot.
#[derive(Debug, Default)]
pub(super) struct Withdrawals(Mutex<Vec<Pending>>);

#[derive(Debug)]
struct Pending {
    slot: u32,
    /// Version of the retracted record, as [`Neighbourhood::retract_region`] returns it. A later version is another publication.
    retracted: u64,
    accesses: Accesses,
}

impl Withdrawals {
    /// Begins to withdraw a slot from peers, or continues. Returns how far the withdrawal is.
    pub(super) fn poll(&self, slot: u32, neighbourhood: &Neighbourhood) -> Withdrawal {
        let mut all = self.0.lock();
        let retracted = neighbourhood.retract_region(slot);
        let known = all.iter().position(|pending| pending.slot == slot);
        let mut pending = match known.map(|known| all.swap_remove(known)) {
            Some(pending) if pending.retracted == retracted => pending,
            _ => Pending {
                slot,
                retracted,
                accesses: neighbourhood.accesses(),
            },
        };
        let withdrawal = pending.accesses.poll();
        if let Withdrawal::Pending { .. } = withdrawal {
            all.push(pending);
        }
        withdrawal
    }

    /// Forgets the withdrawal of a slot. Returns whether there was one.
    pub(super) fn forget(&self, slot: u32) -> bool {
        let mut all = self.0.lock();
        let known = all.iter().position(|pending| pending.slot == slot);
        known.map(|known| all.swap_remove(known)).is_some()
    }
}
