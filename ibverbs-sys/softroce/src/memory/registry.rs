#![forbid(unsafe_code)]
//! The registry of all memory regions and windows of a NIC: registration, changes, and
//! deregistration.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::{DomainId, Refusal};
use crate::limits;
use crate::proto::{AccessFlags, LocalFault, Segment, WindowBinding, Withdrawal};

use super::entries::{AccessibleSpan, Entries, Entry};
use super::guarded;
use super::read_mostly::{ReadGuard, ReadMostly, WriteGuard};
use super::region::Region;
use super::table::Table;
use super::window::Window;
use super::{
    Arena, ArenaLocation, Block, DeviceMemory, Peers, Piece, RegionAttributes, RegionChange, Span,
    View, WindowKind,
};

/// Registry of all memory regions and windows of a NIC. The registry finds the memory for the keys
/// in requests.
///
/// A copy holds a read lock from the check of its memory key until its last byte is copied.
/// Registration, deregistration and other changes wait for these locks. So when a deregistration
/// has returned, no copy uses the region, and no new copy can begin to use it.
pub struct Registry {
    entries: ReadMostly<Entries>,
    /// Number of bytes of allocated device memory. The device limits this number.
    device_memory: AtomicU64,
    arena: OnceLock<Option<Arc<Arena>>>,
    /// Processes of the host to which regions and windows are published. Not set if memory is not
    /// shared.
    peers: OnceLock<Arc<dyn Peers>>,
}

/// Read lock on the table of memory regions and windows. A caller uses the lock to find the memory
/// for a key. No region or window changes while the lock is held.
pub(crate) struct Regions<'a>(ReadGuard<'a, Entries>);

impl Regions<'_> {
    /// Returns the memory of `segment`, an element of a request's scatter/gather list. The request
    /// must belong to a queue pair of the protection domain `domain`. `write` must be set if the
    /// caller writes to the memory. Returns `None` if the access is not permitted. Also returns
    /// `None` for an on-demand region, whose memory can be unmapped, and for the null region, which
    /// has no memory.
    #[inline]
    pub(crate) fn piece(
        &self,
        domain: DomainId,
        segment: &Segment,
        write: bool,
    ) -> Option<Piece<'_>> {
        let length = u64::from(segment.length);
        let found = self
            .0
            .local(domain, segment.key, segment.address, length, write);
        let AccessibleSpan { span, offset } = found.ok()?;
        span.piece(offset, segment.length as usize, write)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Creates a registry without regions and windows, and installs the signal handler for faults
    /// in registered memory.
    pub fn new() -> Self {
        guarded::install();
        let entries = Entries {
            table: Table::new(),
            regions: 0,
            windows: 0,
        };
        Self {
            entries: ReadMostly::new(entries),
            device_memory: AtomicU64::new(0),
            arena: OnceLock::new(),
            peers: OnceLock::new(),
        }
    }

    /// Returns the arena (shared file) from which memory for regions is allocated, and creates it
    /// at the first call. Returns `None` if the system does not support in-memory files.
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.get_or_init(|| Arena::new().ok()).as_ref()
    }

    /// Sets `peers`, the interface through which all regions and windows are published to peer
    /// processes of the same host. These processes can then access the memory directly. Must be
    /// called before the first registration.
    pub(crate) fn set_peers(&self, peers: Arc<impl Peers + 'static>) {
        let _ = self.peers.set(peers);
    }

    /// Returns the random number that makes memory keys hard to guess. The upper 24 bits of a key
    /// are the sum of this number and an index in the table of regions and windows. Peer processes
    /// subtract the number to find the published record of a key.
    pub(crate) fn key_base(&self) -> u32 {
        self.entries.read(0).table.base()
    }

    /// Updates the description of one memory region or window in the table that peer processes
    /// read. `slot` is the number of the region or window in this table and in `entries`. Clears
    /// the description if `entries` has no region or window with this number. Also clears the
    /// description of an unbound window and of the null region.
    fn publish(&self, entries: &Entries, slot: u32) {
        let Some(peers) = self.peers.get() else {
            return;
        };
        match entries.published(slot) {
            Some(region) => peers.publish(slot, &region),
            None => peers.retract(slot),
        }
    }

    /// Hides the region or window in the slot `slot` (index in the table) from peer processes, and
    /// waits until no peer accesses its memory. Other threads can use the registry during the wait,
    /// which can be long.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if a peer does not finish its copy in time. Peers can then find the region
    /// or window again.
    fn withdraw_and_wait(&self, slot: u32) -> Result<(), Refusal> {
        let Some(peers) = self.peers.get() else {
            return Ok(());
        };
        if self.entries.read(0).published(slot).is_none() {
            return Ok(());
        }
        peers.retract(slot);
        let result = peers.wait();
        if result.is_err() {
            self.publish(&self.entries.write(), slot);
        }
        result
    }

    /// Returns the location of a memory region in the arena (in-memory file that peers can map),
    /// and the allocated block that contains the region. `key` is the key of the region. Returns
    /// `None` if there is no such region, or if its memory was not allocated from the arena.
    pub fn place(&self, key: u32) -> Option<(Arc<Block>, ArenaLocation)> {
        let entries = self.entries.read(0);
        let (_, region) = entries.region(key).ok()?;
        let (block, place) = region.span.place()?;
        Some((Arc::clone(block), place))
    }

    /// Allocates `length` bytes of device memory. Fails if the total length would exceed the limit
    /// of the device, or if the system has not enough memory.
    pub fn allocate(&self, length: u64) -> Result<Arc<DeviceMemory>, Refusal> {
        self.device_memory
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(length)
                    .filter(|used| *used <= limits::MAX_DM_SIZE)
            })
            .map_err(|_| Refusal::Exhausted)?;
        DeviceMemory::new(length).inspect_err(|_| self.deallocate(length))
    }

    /// Subtracts `length` bytes of freed device memory from the total of allocated device memory,
    /// so that other device memory can be allocated.
    pub fn deallocate(&self, length: u64) {
        self.device_memory.fetch_sub(length, Ordering::AcqRel);
    }

    /// Returns the regions and windows that a queue pair can access, as a [`View`] through which
    /// the queue pair copies data. `domain` and `queue_pair` are the queue pair's protection domain
    /// and number.
    pub fn view(&self, domain: DomainId, queue_pair: u32) -> View<'_> {
        View::new(self, domain, queue_pair)
    }

    /// Registers a memory region with the given attributes, so that requests can access its bytes.
    /// Returns the region's key, which is both the local and the remote key.
    pub fn register(&self, attributes: RegionAttributes) -> Result<u32, Refusal> {
        let RegionAttributes {
            domain,
            span,
            start,
            access,
        } = attributes;
        check_range(start, &span)?;
        let mut entries = self.entries.write();
        if entries.regions >= limits::MAX_MR {
            return Err(Refusal::Exhausted);
        }
        let region = Region {
            domain,
            span,
            start,
            access,
            windows: 0,
        };
        let number = entries.table.insert(Entry::Region(region))?;
        entries.regions += 1;
        self.publish(&entries, number);
        Ok(entries.table.key(number))
    }

    /// Changes the memory, the protection domain or the access flags of the region with the key
    /// `key`, as `change` requests. Returns the key of the region: the old key if
    /// `change.keeps_key` is set, and otherwise a new key. Fails, for example, if windows are bound
    /// to the region.
    pub fn reregister(&self, key: u32, change: RegionChange) -> Result<u32, Refusal> {
        if let Some((span, start)) = &change.translation {
            check_range(*start, span)?;
        }
        let check = |region: &Region| match region {
            region if region.windows > 0 => Err(Refusal::Busy),
            region if !region.span.is_program() => Err(Refusal::Invalid),
            _ => Ok(()),
        };
        let (mut entries, number) = self.withdraw_region(key, check)?;
        let Some(Entry::Region(region)) = entries.table.get_mut(number) else {
            return Err(Refusal::Invalid);
        };
        if let Some((span, start)) = change.translation {
            (region.span, region.start) = (span, start);
        }
        region.domain = change.domain.unwrap_or(region.domain);
        region.access = change.access.unwrap_or(region.access);
        let key = match change.keeps_key {
            true => entries.table.key(number),
            false => entries.table.renew(number),
        };
        self.publish(&entries, number);
        Ok(key)
    }

    /// Makes peer processes stop using the memory region with the key `key`, and waits until they
    /// have stopped. Returns the table of regions and windows, locked for writing, and the region's
    /// slot (index in the table). Fails if `check` returns an error for the region. `check` is
    /// called before and after the wait, because another thread can change the region during the
    /// wait.
    fn withdraw_region(
        &self,
        key: u32,
        check: impl Fn(&Region) -> Result<(), Refusal>,
    ) -> Result<(WriteGuard<'_, Entries>, u32), Refusal> {
        let find = |entries: &Entries| {
            let (number, region) = entries.region(key)?;
            check(region).map(|()| number)
        };
        let number = find(&self.entries.read(0))?;
        self.withdraw_and_wait(number)?;
        let entries = self.entries.write();
        // Another thread may have changed the entries while no lock was held.
        match find(&entries) {
            Ok(number) => Ok((entries, number)),
            Err(refusal) => {
                self.publish(&entries, number);
                Err(refusal)
            }
        }
    }

    /// Deregisters the memory region with the key `key` (`ibv_dereg_mr(3)`). After the call, the
    /// device does not access the region's bytes any more.
    ///
    /// # Errors
    /// - [`Refusal::Busy`] if a window is bound to the region.
    /// - [`Refusal::Busy`] if another process of this host is copying the region's bytes and does
    ///   not finish in time.
    pub fn deregister(&self, key: u32) -> Result<(), Refusal> {
        let check = |region: &Region| match region.windows {
            0 => Ok(()),
            _ => Err(Refusal::Busy),
        };
        let (mut entries, number) = self.withdraw_region(key, check)?;
        entries.table.remove(number);
        entries.regions -= 1;
        Ok(())
    }

    /// Allocates a memory window of the type `kind` in the protection domain `domain`. Returns the
    /// window's key. The window grants no access until it is bound.
    pub fn allocate_window(&self, domain: DomainId, kind: WindowKind) -> Result<u32, Refusal> {
        let mut entries = self.entries.write();
        if entries.windows >= limits::MAX_MW {
            return Err(Refusal::Exhausted);
        }
        let window = Window {
            kind,
            domain,
            binding: None,
        };
        let number = entries.table.insert(Entry::Window(window))?;
        entries.windows += 1;
        Ok(entries.table.key(number))
    }

    /// Deallocates a memory window, and unbinds the window if necessary. `key` can be the window's
    /// present key or an earlier key. Binding changes the key, but a program perhaps still uses the
    /// key from the allocation.
    pub fn deallocate_window(&self, key: u32) -> Result<(), Refusal> {
        let find = |entries: &Entries| {
            let number = entries.table.slot_of(key).ok_or(Refusal::Invalid)?;
            let is_window = matches!(entries.table.get(number), Some(Entry::Window(_)));
            is_window.then_some(number).ok_or(Refusal::Invalid)
        };
        let number = find(&self.entries.read(0))?;
        self.withdraw_and_wait(number)?;
        let mut entries = self.entries.write();
        find(&entries)?;
        entries.unbind(number);
        entries.table.remove(number);
        entries.windows -= 1;
        self.publish(&entries, number);
        Ok(())
    }

    /// Unbinds the type 2 windows that are bound through the queue pair with the number
    /// `queue_pair`. Called when the queue pair is destroyed, because otherwise the windows would
    /// be accessible through a later queue pair with the same number.
    pub fn release_queue_pair(&self, queue_pair: u32) {
        let mut entries = self.entries.write();
        if entries.windows == 0 {
            return;
        }
        let bound: Vec<u32> = entries
            .table
            .iter_mut()
            .filter_map(|(number, entry)| match entry {
                Entry::Window(Window {
                    binding: Some(binding),
                    ..
                }) => (binding.queue_pair == Some(queue_pair)).then_some(number),
                _ => None,
            })
            .collect();
        // No wait for peers is necessary: they access type 2 windows only through this queue pair,
        // which they do not use any more.
        for &number in &bound {
            entries.unbind(number);
            self.publish(&entries, number);
        }
    }

    /// Checks an address range of `ibv_advise_mr(3)`, and returns the address of the first byte in
    /// this process. `address` is the first address of the range in requests. Fails unless `key` is
    /// the key of an on-demand region of `domain` that contains all `length` bytes. If `write` is
    /// set, the region must also permit local writes.
    pub fn advise(
        &self,
        domain: DomainId,
        key: u32,
        address: u64,
        length: u64,
        write: bool,
    ) -> Result<usize, Refusal> {
        let entries = self.entries.read(0);
        let number = entries.table.slot_of(key).ok_or(Refusal::Fault)?;
        let Some(Entry::Region(region)) = entries.table.get(number) else {
            return Err(Refusal::Invalid);
        };
        if entries.table.key(number) != key {
            return Err(Refusal::Absent);
        }
        if region.domain != domain {
            return Err(Refusal::NotPermitted);
        }
        if !region.access.contains(AccessFlags::ON_DEMAND) {
            return Err(Refusal::Absent);
        }
        if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(Refusal::NotPermitted);
        }
        let offset = region.offset(address, length).ok_or(Refusal::Fault)?;
        Ok(region.span.address().wrapping_add(offset as usize))
    }

    /// Locks the table of regions and windows for reading. Threads that change the table wait for
    /// the lock, so the caller should hold it for a short time only. `queue_pair` is the number of
    /// the calling queue pair. Calls with different numbers usually write to different cache lines,
    /// so they do not slow each other down.
    #[inline]
    pub(crate) fn regions(&self, queue_pair: u32) -> Regions<'_> {
        Regions(self.entries.read(queue_pair))
    }

    /// Locks the table of regions and windows for reading, calls `body` with the table, and returns
    /// the result of `body`. `queue_pair` is the number of the calling queue pair. Calls with
    /// different numbers usually write to different cache lines, so they do not slow each other
    /// down.
    #[inline]
    pub(super) fn with<T>(&self, queue_pair: u32, body: impl FnOnce(&Entries) -> T) -> T {
        body(&self.entries.read(queue_pair))
    }

    /// Makes peer processes stop using the type 1 memory window of the bind request `wanted`,
    /// before the window is bound again. Ignores type 2 windows. `domain` is the protection domain
    /// of the queue pair that executes the request. Does not wait: if the returned [`Withdrawal`]
    /// is pending, the caller must call this function again later.
    pub(super) fn withdraw_window(&self, domain: DomainId, wanted: &WindowBinding) -> Withdrawal {
        self.withdraw_slot(|entries| {
            let number = entries.table.slot_of(wanted.window)?;
            let Some(Entry::Window(window)) = entries.table.get(number) else {
                return None;
            };
            // A type 2 window must be unbound, and so is not published.
            (window.domain == domain && window.kind == WindowKind::Type1).then_some(number)
        })
    }

    /// Makes peer processes stop using a type 2 memory window, before a request invalidates the
    /// window. `key` is the key of the window. `queue_pair` and `domain` are the number and the
    /// protection domain of the queue pair that executes the request. Does not wait: if the
    /// returned [`Withdrawal`] is pending, the caller must call this function again later.
    pub(super) fn withdraw(&self, domain: DomainId, queue_pair: u32, key: u32) -> Withdrawal {
        self.withdraw_slot(|entries| entries.bound_window(domain, queue_pair, key))
    }

    /// Begins or continues to withdraw a memory region or window, so that peer processes stop using
    /// the memory. `find` returns the slot (number in the table) of the region or window. If `find`
    /// returns `None`, the withdrawal is complete. The result states whether the withdrawal is
    /// complete, must be continued later, or has failed. After a failure, peers can find the region
    /// or window again.
    fn withdraw_slot(&self, find: impl FnOnce(&Entries) -> Option<u32>) -> Withdrawal {
        let Some(peers) = self.peers.get() else {
            return Withdrawal::Complete;
        };
        let told = {
            let entries = self.entries.read(0);
            find(&entries).filter(|&slot| entries.published(slot).is_some())
        };
        let Some(slot) = told else {
            return Withdrawal::Complete;
        };
        let withdrawal = peers.withdraw(slot);
        if withdrawal == Withdrawal::Refused {
            self.publish(&self.entries.write(), slot);
        }
        withdrawal
    }

    /// Publishes the memory window with the key `key` to peer processes again. Called if the window
    /// was hidden from peers for a bind or invalidate request that was then not executed.
    pub(crate) fn restore_window(&self, key: u32) {
        let Some(peers) = self.peers.get() else {
            return;
        };
        let slot = self.entries.read(0).table.slot_of(key);
        if let Some(slot) = slot.filter(|&slot| peers.cancel_withdrawal(slot)) {
            self.publish(&self.entries.write(), slot);
        }
    }

    /// Returns the index in the table of regions and windows that belongs to the memory key `key`,
    /// even if the low byte of the key is outdated. Returns `None` if the table has no entry with
    /// this index.
    #[cfg(test)]
    pub(crate) fn slot(&self, key: u32) -> Option<u32> {
        self.entries.read(0).table.slot_of(key)
    }

    /// Returns whether the region or window with the slot `slot` (index in the table) is published
    /// to peer processes.
    fn is_published(&self, slot: u32) -> bool {
        let peers = self.peers.get();
        peers.is_some_and(|peers| peers.is_published(slot))
    }

    /// Binds the memory window of the bind request `wanted`, so that peers can access the window's
    /// bytes (IBTA 10.6.7.2, 11.4.1.1). `queue_pair` and `domain` are the number and the protection
    /// domain of the queue pair that executes the request. The caller must first call
    /// [`withdraw_window`](Self::withdraw_window) until the withdrawal is complete. Fails if the
    /// binding is not permitted, or if peer processes can still find the window.
    pub(super) fn bind(
        &self,
        domain: DomainId,
        queue_pair: u32,
        wanted: &WindowBinding,
    ) -> Result<(), LocalFault> {
        let mut entries = self.entries.write();
        let slot = entries.table.slot_of(wanted.window);
        if slot.is_some_and(|slot| self.is_published(slot)) {
            return Err(LocalFault::Bind);
        }
        let bound = entries.bind(domain, queue_pair, wanted);
        if let Some(slot) = slot {
            self.publish(&entries, slot);
        }
        bound.map(drop).ok_or(LocalFault::Bind)
    }

    /// Unbinds the type 2 window with the key `key`, so that peers can no longer access memory
    /// through the window (IBTA 10.6.7.2.4). `queue_pair` and `domain` are the number and the
    /// protection domain of the queue pair that executes the request. The caller must first call
    /// [`withdraw`](Self::withdraw). Returns `None` if no such window is bound through this queue
    /// pair, or if the window is still published to peer processes.
    pub(super) fn invalidate(&self, domain: DomainId, queue_pair: u32, key: u32) -> Option<()> {
        let mut entries = self.entries.write();
        let number = entries.bound_window(domain, queue_pair, key)?;
        if self.is_published(number) {
            return None;
        }
        entries.unbind(number);
        self.publish(&entries, number);
        Some(())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.read(0);
        f.debug_struct("Registry")
            .field("regions", &entries.regions)
            .field("windows", &entries.windows)
            .finish_non_exhaustive()
    }
}

/// Checks that the addresses of a memory region do not wrap around at 2^64. `span` is the memory of
/// the region, and `start` the address of its first byte in requests.
fn check_range(start: u64, span: &Span) -> Result<(), Refusal> {
    let length = span.length();
    let is_whole = span.is_null() || start == 0;
    if !is_whole && start.checked_add(length).is_none() {
        return Err(Refusal::Invalid);
    }
    Ok(())
}
