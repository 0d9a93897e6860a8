//! Leases: memory of this end that the peer may access.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rdma_core::{AccessFlags, RemoteMemory};

use super::exposed::ExposedRegion;
use super::windows::{EndedAccess, WindowedRegion, Windows};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{Charge, GrantedMemory, LocalMr};
use crate::observe::{LentBytes, report_failed_end};
use crate::reserve::GrantState;

/// Memory that this end lends to the peer of a connection. Each lease has its own memory
/// registration or memory window. The peer's access ends with the registration or the window.
#[derive(Debug)]
pub(super) struct Leases {
    table: Mutex<LeaseTable>,
    access: AccessFlags,
    device: RdmaDevice,
}

/// Table of the memory of this end that is lent to the peer on one connection. A lease is the
/// peer's permission to access a region. The table also contains the ids of leases that this end
/// has ended, until the peer confirms the end.
#[derive(Debug, Default)]
struct LeaseTable {
    leases: HashMap<u64, Lease, BuildHasherDefault<LeaseIdHasher>>,
    last_id: u32,
    /// Leases that this end has revoked and the peer has not yet returned or released. The value is
    /// set if the peer had requested the memory.
    revoked: HashMap<u64, bool>,
    /// Number of revoked leases of memory that the peer had requested.
    revoked_requests: usize,
    /// Amount of memory that is lent at the request of the peer.
    requested: GrantedMemory,
    /// Expiry and id of each lease that expires, in order, because all have the same time limit.
    /// Also contains leases that have ended before their expiry.
    expiries: VecDeque<(Instant, u64)>,
}

/// Hash function for the ids of leases (memory that is lent to the peer). A peer cannot choose ids
/// that collide, because this end assigns consecutive ids.
#[derive(Debug, Default)]
struct LeaseIdHasher(u64);

impl Hasher for LeaseIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, id: u64) {
        // Multiplication by 2^64 divided by the golden ratio also fills the upper bits, which the
        // hash table uses as tags.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl LeaseTable {
    /// Returns an unused id for a new lease (permission of the peer to access lent memory). Skips
    /// the ids of current leases, and of ended leases whose end the peer has not yet confirmed.
    fn next_id(&mut self) -> u64 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            let id = u64::from(self.last_id);
            if !self.leases.contains_key(&id) && !self.revoked.contains_key(&id) {
                return id;
            }
        }
    }

    /// Removes the lease `id`, which has not ended, and subtracts its memory from the amount that
    /// the peer has requested. Returns `None` if no such lease exists.
    fn remove(&mut self, id: u64) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        if let Some(charge) = &lease.charge {
            self.requested.bytes -= charge.bytes();
            self.requested.regions -= 1;
        }
        Some(lease)
    }

    /// Removes the id `id` from the list of revoked leases. Returns `false` if the list does not
    /// contain the id. A revoked lease is lent memory whose lease this end has ended, and which the
    /// peer has not yet given back.
    fn forget_revoked(&mut self, id: u64) -> bool {
        let revoked = self.revoked.remove(&id);
        self.revoked_requests -= usize::from(revoked == Some(true));
        revoked.is_some()
    }
}

/// Region of memory that is lent to the peer. Also contains two values for the end of the lease:
/// the guard that counts the memory as held by the peer, and the receiver of the memory.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) region: LentRegion,
    /// Charge of the memory to the peer, if the peer requested the memory.
    charge: Option<Charge>,
    pub(super) return_to: ReturnTo,
    _observed: LentBytes,
}

/// Receiver of lent memory when the peer gives the memory back.
#[derive(Debug)]
pub(super) enum ReturnTo {
    /// No receiver: the lease was not offered to the peer, so only this end can end it.
    Unoffered,
    /// The application.
    Application,
    /// The call of [`Rdma::reserve`](crate::Rdma::reserve) that has lent the memory.
    Reservation(Arc<GrantState>),
}

/// Region of local memory that is lent to the peer, either by its own memory registration or by a
/// memory window. Boxed, because a region is moved several times while access begins and ends.
#[derive(Debug)]
pub(super) enum LentRegion {
    /// Region with a registration of its own, whose key is valid for every peer of the device.
    Registered(Box<ExposedRegion>),
    /// Region with a memory window, whose key is valid only on this connection.
    Windowed(Box<WindowedRegion>),
}

impl LentRegion {
    fn len(&self) -> usize {
        match self {
            Self::Registered(region) => region.memory().len(),
            Self::Windowed(region) => region.len(),
        }
    }

    /// Ends the peer's access to the region immediately, and returns the memory. Deregisters the
    /// memory, or deallocates its memory window. Posts no request, so this works even if the
    /// connection has failed.
    pub(super) fn end(self) -> Result<LocalMr, rdma_core::Error> {
        match self {
            Self::Registered(region) => region.end(),
            Self::Windowed(region) => region.end().map_err(|refused| refused.error),
        }
    }
}

/// Outcome when the peer gives lent memory back. The application or a call of
/// [`Rdma::reserve`](crate::Rdma::reserve) gets the memory. If this end has ended the lease before,
/// this end already has the memory.
#[derive(Debug)]
pub(super) enum EndedLease {
    /// Memory that the application gets back, or the error of the deregistration, and the charge of
    /// the memory to the peer.
    Memory(Result<LocalMr, rdma_core::Error>, Option<Charge>),
    /// The call of [`Rdma::reserve`](crate::Rdma::reserve) that had lent the memory gets it back.
    ToReservation,
    /// This end had revoked the lease before.
    Revoked,
}

impl Leases {
    pub(super) fn new(access: AccessFlags, device: RdmaDevice) -> Self {
        Self {
            table: Mutex::default(),
            access,
            device,
        }
    }

    /// Returns the access rights of the peer to the memory that this end lends on this connection.
    pub(super) fn access(&self) -> AccessFlags {
        self.access
    }

    /// Returns the number of bytes and the number of regions that are lent to the peer because the
    /// peer has requested memory.
    pub(super) fn granted(&self) -> GrantedMemory {
        self.table.lock().requested
    }

    /// Returns the number of regions that the peer must still give back, although this end has
    /// ended their leases (the peer's permissions to access them). Counts only memory that the peer
    /// had requested.
    pub(super) fn unreturned_regions(&self) -> usize {
        self.table.lock().revoked_requests
    }

    /// Removes an expiry that has passed at the time `now` from the list, and returns the id of the
    /// lease (memory that is lent to the peer). The caller must expect that this lease has already
    /// ended for another reason. Returns `None` if no expiry has passed.
    pub(super) fn take_expired(&self, now: Instant) -> Option<u64> {
        let mut table = self.table.lock();
        let &(end, id) = table.expiries.front()?;
        (end <= now).then(|| {
            table.expiries.pop_front();
            id
        })
    }

    /// Returns the time at which the next lease (memory that is lent to the peer) expires, or
    /// `None` if no lease expires.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.table.lock().expiries.front().map(|&(end, _)| end)
    }

    /// Sets the time `end` at which the lease `id` (permission of the peer to access lent memory)
    /// expires. Returns `true` if the list of expiries was empty: the caller must then wake the
    /// control task, which waits for the first expiry.
    pub(super) fn set_expiry(&self, id: u64, end: Instant) -> bool {
        let table = &mut *self.table.lock();
        // Removes leases that ended before their expiry, so that the list stays short.
        if table.expiries.len() > 2 * table.leases.len() + 64 {
            table
                .expiries
                .retain(|(_, id)| table.leases.contains_key(id));
        }
        table.expiries.push_back((end, id));
        table.expiries.len() == 1
    }

    /// Returns whether the lease with the id `id` exists and has not ended. Until the end of the
    /// lease, the peer may access the lent memory.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.table.lock().leases.contains_key(&id)
    }

    /// Lends a region to the peer. The caller must then send the peer a message with the lease.
    /// Returns the id of the lease, and the address, length and key of the memory. `charge` counts
    /// the region as held by the peer, if the peer has requested memory. On an error, returns the
    /// region.
    pub(super) fn lend(
        &self,
        region: LocalMr,
        charge: Option<Charge>,
        device: &RdmaDevice,
    ) -> Result<(u64, RemoteMemory), (LocalMr, rdma_core::Error)> {
        let (region, remote) = expose(region, self.access)?;
        let lease = self.insert(region, charge, ReturnTo::Application, device);
        Ok((lease, remote))
    }

    /// Lends a region to the peer like [`Self::lend`], and marks the lease as not offered. The peer
    /// gets only the access rights that are also in `allowed`. The peer cannot end the lease before
    /// [`Self::set_offered`].
    pub(super) fn lend_unoffered(
        &self,
        region: LocalMr,
        allowed: AccessFlags,
        device: &RdmaDevice,
    ) -> Result<(u64, RemoteMemory), (LocalMr, rdma_core::Error)> {
        let (region, remote) = expose(region, self.access & allowed)?;
        let lease = self.insert(region, None, ReturnTo::Unoffered, device);
        Ok((lease, remote))
    }

    /// Adds a lease to the table, because the peer can now access `region`. Returns the id of the
    /// lease. `charge` counts the region as held by the peer, if the peer has requested memory.
    /// `return_to` is the receiver of the memory when the peer gives the memory back.
    pub(super) fn insert(
        &self,
        region: LentRegion,
        charge: Option<Charge>,
        return_to: ReturnTo,
        device: &RdmaDevice,
    ) -> u64 {
        let mut table = self.table.lock();
        let id = table.next_id();
        if let Some(charge) = &charge {
            table.requested.bytes += charge.bytes();
            table.requested.regions += 1;
        }
        table.leases.insert(
            id,
            Lease {
                _observed: LentBytes::of(device, region.len()),
                region,
                charge,
                return_to,
            },
        );
        id
    }

    /// Records that the lease `id` (memory that is lent to the peer) is being offered to the peer.
    /// Afterwards, the peer can give the memory back, and the reservation with the state `to` then
    /// gets the memory. Fails if the lease has ended or was offered before.
    pub(super) fn set_offered(&self, id: u64, to: &Arc<GrantState>) -> Result<()> {
        let mut table = self.table.lock();
        let lease = table.leases.get_mut(&id).ok_or(Error::LeaseEnded)?;
        if !matches!(lease.return_to, ReturnTo::Unoffered) {
            return Err(Error::invalid(
                "memory of a reservation",
                "it was already offered",
            ));
        }
        lease.return_to = ReturnTo::Reservation(Arc::clone(to));
        Ok(())
    }

    /// Records that the message that offers the lease `id` (memory that is lent to the peer) was
    /// not sent, so that the lease can be offered again. If the lease has ended before this call,
    /// removes its id from the list of revoked leases, because the peer cannot return memory that
    /// was not offered.
    pub(super) fn withdraw_offer(&self, id: u64) {
        let mut table = self.table.lock();
        match table.leases.get_mut(&id) {
            Some(lease) => lease.return_to = ReturnTo::Unoffered,
            None => drop(table.forget_revoked(id)),
        }
    }

    /// Ends the lease `id` (memory that is lent to the peer) because the peer gives the memory
    /// back, and returns the outcome. Returns `None` if no lease with this id was offered to the
    /// peer: the peer has then violated the protocol. Calls `begin_end` to end the peer's access
    /// only if [`Rdma::reserve`](crate::Rdma::reserve) has lent the memory.
    pub(super) fn end_by_peer(
        &self,
        id: u64,
        begin_end: impl FnOnce(LentRegion) -> EndedAccess<Arc<Windows>>,
    ) -> Option<EndedLease> {
        let lease = {
            let mut table = self.table.lock();
            if table.forget_revoked(id) {
                return Some(EndedLease::Revoked);
            }
            let is_unoffered = |lease: &Lease| matches!(lease.return_to, ReturnTo::Unoffered);
            if table.leases.get(&id).is_some_and(is_unoffered) {
                return None;
            }
            table.remove(id)?
        };
        Some(match lease.return_to {
            ReturnTo::Reservation(reservation) => {
                reservation.put_back(begin_end(lease.region));
                EndedLease::ToReservation
            }
            ReturnTo::Application | ReturnTo::Unoffered => {
                EndedLease::Memory(lease.region.end(), lease.charge)
            }
        })
    }

    /// Returns the number of leases (memory that is lent to the peer) that this end has revoked and
    /// the peer has not yet returned or released.
    #[cfg(test)]
    pub(super) fn revoked(&self) -> usize {
        self.table.lock().revoked.len()
    }

    /// Removes the lease `id` (memory that is lent to the peer) from the table. The caller must
    /// ensure that no message about this lease was sent to the peer. Returns the lease, so that the
    /// caller can end the access to its region. Returns `None` if the lease has ended before.
    pub(super) fn remove_unsent(&self, id: u64) -> Option<Lease> {
        self.table.lock().remove(id)
    }

    /// Removes the lease `id` (memory that is lent to the peer) from the table. Returns the lease,
    /// so that the caller can end the access to its region. Returns `None` if the peer has already
    /// ended the lease. If the lease was offered to the peer, the id stays reserved until the peer
    /// confirms the end.
    pub(super) fn remove(&self, id: u64) -> Option<Lease> {
        let mut table = self.table.lock();
        let lease = table.remove(id)?;
        if !matches!(lease.return_to, ReturnTo::Unoffered) {
            let is_requested = lease.charge.is_some();
            table.revoked.insert(id, is_requested);
            table.revoked_requests += usize::from(is_requested);
        }
        Some(lease)
    }
}

/// Registers the memory of `region` separately with the access rights `access`, so that every peer
/// of the device that knows the key can access the memory. Returns the region, and the address,
/// length and key of the memory. On an error, returns `region`.
fn expose(
    region: LocalMr,
    access: AccessFlags,
) -> Result<(LentRegion, RemoteMemory), (LocalMr, rdma_core::Error)> {
    let region = ExposedRegion::new(region, access)?;
    let remote = region.memory().remote();
    Ok((LentRegion::Registered(Box::new(region)), remote))
}

impl Drop for Leases {
    /// Ends all leases of the connection: ends the peer's access, so that the lent memory returns
    /// to its pool.
    fn drop(&mut self) {
        for (_, lease) in self.table.get_mut().leases.drain() {
            // After an error the device may still access the memory, so the memory is not freed.
            if let Err(error) = lease.region.end() {
                report_failed_end(&self.device, &error);
            }
        }
    }
}
