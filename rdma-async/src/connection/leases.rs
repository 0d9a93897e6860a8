//! Leases: memory of this end that is lent to the peer.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rdma_core::memory::SharedBuffer;
use rdma_core::{AccessFlags, Buffer, ExposedMemory, RemoteMemory};

use crate::device::RdmaDevice;
use crate::error::Result;
use crate::memory::{Charge, GrantedMemory, LocalMr, Parts, PieceLender};
use crate::observe::LentBytes;
use crate::reserve::GrantState;

/// Leases of a connection. Each has a memory registration of its own, whose removal ends the
/// access.
#[derive(Debug)]
pub(super) struct Leases {
    open: Mutex<Open>,
    access: AccessFlags,
}

#[derive(Debug, Default)]
struct Open {
    leases: HashMap<u64, Lease>,
    last: u32,
    /// Leases that this end has ended, and that the peer has not returned or released since. Each
    /// with whether the peer had requested the memory.
    revoked: HashMap<u64, bool>,
    /// Number of revoked leases whose memory the peer had requested.
    revoked_requests: usize,
    /// Bytes and regions that are lent because the peer requested them.
    requested: GrantedMemory,
    /// Ends of the leases with a time limit, which is the same for all, in their order. Contains
    /// leases that the peer has ended before.
    ends: VecDeque<(Instant, u64)>,
}

impl Open {
    /// Returns an unused id.
    fn next_id(&mut self) -> u64 {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = u64::from(self.last);
            if !self.leases.contains_key(&id) && !self.revoked.contains_key(&id) {
                return id;
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        if let Some(charge) = &lease.charge {
            self.requested.bytes -= charge.bytes();
            self.requested.regions -= 1;
        }
        Some(lease)
    }

    /// Forgets that this end has ended a lease. Returns whether it has.
    fn forget_revoked(&mut self, id: u64) -> bool {
        let revoked = self.revoked.remove(&id);
        self.revoked_requests -= usize::from(revoked == Some(true));
        revoked.is_some()
    }
}

#[derive(Debug)]
struct Lease {
    memory: ExposedMemory,
    /// Parts of the memory piece behind and before the lent region.
    tail: Option<Buffer>,
    lead: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
    /// Charge to the peer, if it requested the memory.
    charge: Option<Charge>,
    /// Reservation to which the memory is returned, if the lease has one.
    reservation: Option<Arc<GrantState>>,
    _observed: LentBytes,
}

/// Memory of a lease that the peer has ended.
#[derive(Debug)]
pub(super) enum Given {
    /// Memory that goes to the application, or the error of ending the access.
    Back(Result<LocalMr, rdma_core::Error>),
    /// Memory that went back to its reservation.
    ToReservation,
    /// The peer's answer to a revocation.
    Revoked,
}

impl Leases {
    pub(super) fn new(access: AccessFlags) -> Self {
        Self {
            open: Mutex::default(),
            access,
        }
    }

    /// Returns the memory that the peer holds because it requested it.
    pub(super) fn granted(&self) -> GrantedMemory {
        self.open.lock().requested
    }

    /// Returns the number of regions that the peer has requested and not returned since, whose
    /// access this end has ended.
    pub(super) fn unreturned(&self) -> usize {
        self.open.lock().revoked_requests
    }

    /// Returns the number of the first lease whose time limit has passed, after it was removed from
    /// the list of limits.
    pub(super) fn next_overdue(&self, now: Instant) -> Option<u64> {
        let mut open = self.open.lock();
        let &(end, id) = open.ends.front()?;
        (end <= now).then(|| {
            open.ends.pop_front();
            id
        })
    }

    /// Returns the time at which the next time limit passes.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.open.lock().ends.front().map(|&(end, _)| end)
    }

    /// Sets the end of a lease. Returns whether no other lease has an end.
    pub(super) fn set_end(&self, id: u64, end: Instant) -> bool {
        let mut open = self.open.lock();
        let Open { leases, ends, .. } = &mut *open;
        // Those that the peer has ended are removed now and then, so that their number is bounded.
        if ends.len() > 2 * leases.len() + 64 {
            ends.retain(|(_, id)| leases.contains_key(id));
        }
        open.ends.push_back((end, id));
        open.ends.len() == 1
    }

    /// Returns whether a lease has not ended.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.open.lock().leases.contains_key(&id)
    }

    /// Lends a region, which `charge` charges to the peer if it requested the region. Returns the
    /// id of the lease, and the address, length and key for the peer. On an error, returns the
    /// region.
    pub(super) fn lend(
        &self,
        region: LocalMr,
        charge: Option<Charge>,
        reservation: Option<Arc<GrantState>>,
        device: &RdmaDevice,
    ) -> Result<(u64, RemoteMemory), (LocalMr, rdma_core::Error)> {
        self.lend_with(region, self.access, charge, reservation, device)
    }

    /// Lends a region like [`Self::lend`], with only those of the peer's access rights that are in
    /// `allowed`.
    pub(super) fn lend_with(
        &self,
        region: LocalMr,
        allowed: AccessFlags,
        charge: Option<Charge>,
        reservation: Option<Arc<GrantState>>,
        device: &RdmaDevice,
    ) -> Result<(u64, RemoteMemory), (LocalMr, rdma_core::Error)> {
        let Parts {
            buffer,
            range,
            lender,
        } = region.into_parts()?;
        let (lead, memory, tail) = cut(buffer, range);
        match memory.expose(self.access & allowed) {
            Ok(memory) => {
                let (remote, len) = (memory.remote(), memory.len());
                let mut open = self.open.lock();
                let id = open.next_id();
                if let Some(charge) = &charge {
                    open.requested.bytes += charge.bytes();
                    open.requested.regions += 1;
                }
                open.leases.insert(
                    id,
                    Lease {
                        memory,
                        tail,
                        lead,
                        lender,
                        charge,
                        reservation,
                        _observed: LentBytes::of(device, len),
                    },
                );
                Ok((id, remote))
            }
            Err(refused) => Err((paste(lead, refused.value, tail, lender), refused.error)),
        }
    }

    /// Ends a lease at the request of the peer. Returns `None` for an id that the peer was not
    /// told.
    pub(super) fn end_by_peer(&self, id: u64) -> Option<Given> {
        let lease = {
            let mut open = self.open.lock();
            if open.forget_revoked(id) {
                return Some(Given::Revoked);
            }
            let is_untold = |lease: &Lease| {
                let reservation = lease.reservation.as_ref();
                reservation.is_some_and(|reservation| !reservation.is_offered())
            };
            if open.leases.get(&id).is_some_and(is_untold) {
                return None;
            }
            open.remove(id)?
        };
        let reservation = lease.reservation.clone();
        let region = lease.end();
        Some(match reservation {
            Some(reservation) => {
                reservation.put_back(region);
                Given::ToReservation
            }
            None => Given::Back(region),
        })
    }

    /// Forgets that this end has ended a lease, of which the peer has never learned.
    pub(super) fn forget_revoked(&self, id: u64) {
        self.open.lock().forget_revoked(id);
    }

    /// Returns the number of leases that this end has ended, and that the peer has not returned
    /// since.
    #[cfg(test)]
    pub(super) fn revoked(&self) -> usize {
        self.open.lock().revoked.len()
    }

    /// Ends a lease of this end. Returns `None` if the peer has ended it before. If `is_offered` is
    /// set, the peer will return or release the lease when it learns of its end.
    pub(super) fn end(
        &self,
        id: u64,
        is_offered: bool,
    ) -> Option<Result<LocalMr, rdma_core::Error>> {
        let lease = {
            let mut open = self.open.lock();
            let lease = open.remove(id)?;
            if is_offered {
                let is_requested = lease.charge.is_some();
                open.revoked.insert(id, is_requested);
                open.revoked_requests += usize::from(is_requested);
            }
            lease
        };
        Some(lease.end())
    }
}

impl Drop for Leases {
    /// Ends the leases, so that their memory goes back to its pool.
    fn drop(&mut self) {
        for (_, lease) in self.open.get_mut().leases.drain() {
            // On an error the device may still access the memory, which is then not freed.
            drop(lease.end());
        }
    }
}

impl Lease {
    /// Ends the access at the device, and returns the memory.
    fn end(self) -> Result<LocalMr, rdma_core::Error> {
        let Self {
            memory,
            tail,
            lead,
            lender,
            ..
        } = self;
        match memory.revoke() {
            Ok(memory) => Ok(paste(lead, memory, tail, lender)),
            // The device may still access the memory. Dropping it frees no memory that the device
            // can access.
            Err(refused) => Err(refused.error),
        }
    }
}

/// Splits `buffer` into the part before `range`, the part in `range`, and the part behind it.
fn cut(buffer: Buffer, range: Range<usize>) -> (Option<Buffer>, Buffer, Option<Buffer>) {
    let len = buffer.len();
    let (buffer, tail) = match range.end {
        end if end == len => (buffer, None),
        end => {
            let (buffer, tail) = buffer.split_at(end);
            (buffer, Some(tail))
        }
    };
    match range.start {
        0 => (None, buffer, tail),
        start => {
            let (lead, buffer) = buffer.split_at(start);
            (Some(lead), buffer, tail)
        }
    }
}

/// Joins the parts that [`cut`] returned into a region of the original range.
fn paste(
    lead: Option<Buffer>,
    memory: Buffer,
    tail: Option<Buffer>,
    lender: Option<Arc<PieceLender>>,
) -> LocalMr {
    let start = lead.as_ref().map_or(0, |lead| lead.len());
    let range = start..start + memory.len();
    let neighbours = "parts of one buffer are neighbours";
    let whole = match lead {
        Some(lead) => lead.join(memory).expect(neighbours),
        None => memory,
    };
    let whole = match tail {
        Some(tail) => whole.join(tail).expect(neighbours),
        None => whole,
    };
    LocalMr::new(SharedBuffer::new(whole), range, lender)
}
