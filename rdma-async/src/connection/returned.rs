//! [`ReturnedRegions`]: lent memory that the peer has returned.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::waiters::Waiters;
use crate::memory::{Charge, GrantedMemory, LocalMr, LocalMrReadAccess};

/// Queue of the regions that the peer has returned and that the application has not received. The
/// regions that the peer had requested count towards the limits of the peer until then.
#[derive(Debug, Default)]
pub(super) struct ReturnedRegions {
    queue: Mutex<Queue>,
    arrived: Waiters,
}

#[derive(Debug, Default)]
struct Queue {
    /// Regions in the order of their return. A region has a charge if the peer had requested the
    /// region.
    regions: VecDeque<(LocalMr, Option<Charge>)>,
    /// Number and bytes of the queued regions that the peer had requested.
    requested: GrantedMemory,
}

impl ReturnedRegions {
    /// Adds a region, and wakes the tasks that wait for regions. `charge` is set if the peer had
    /// requested the region.
    pub(super) fn push(&self, region: LocalMr, charge: Option<Charge>) {
        {
            let mut queue = self.queue.lock();
            if charge.is_some() {
                queue.requested.regions += 1;
                queue.requested.bytes += region.length();
            }
            queue.regions.push_back((region, charge));
        }
        // The lock of the queue orders the wakeup after the push, because the attempt of every
        // waiting task takes the lock.
        self.arrived.wake_without_fence();
    }

    /// Removes and returns the region that the peer has returned first. Returns `None` if the queue
    /// is empty. The region no longer counts towards the limits of the peer.
    pub(super) fn pop(&self) -> Option<LocalMr> {
        let mut queue = self.queue.lock();
        let (region, charge) = queue.regions.pop_front()?;
        if charge.is_some() {
            queue.requested.regions -= 1;
            queue.requested.bytes -= region.length();
        }
        // Dropping the charge takes the lock of the device's accounts.
        drop(queue);
        Some(region)
    }

    /// Returns the number and the bytes of the queued regions that the peer had requested.
    pub(super) fn requested(&self) -> GrantedMemory {
        self.queue.lock().requested
    }

    /// Returns the list of the tasks that wait for regions or for the end of the connection.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.arrived
    }
}
