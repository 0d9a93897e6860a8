#![forbid(unsafe_code)]
//! All memory regions and windows of a NIC: how they come, change and go.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::{DomainId, Refusal};
use crate::limits;
use crate::proto::{AccessFlags, LocalFault, Segment, WindowBinding, Withdrawal};

use super::entries::{Entries, Entry, Found};
use super::guarded;
use super::read_mostly::{Changing, ReadMostly, Reading};
use super::region::Region;
use super::table::Table;
use super::window::Window;
use super::{
    Arena, Block, DeviceMemory, Peers, Piece, Place, RegionAttributes, RegionChange, Span, View,
    WindowKind,
};

/// All memory regions and windows of a NIC.
///
/// A copy reads the entries from the check of its key to its last byte. So when a registration ends, which
/// changes them, no copy is under way, and none begins any more.
pub struct Registry {
    entries: ReadMostly<Entries>,
    /// Bytes of device memory that are in use.
    device_memory: AtomicU64,
    arena: OnceLock<Option<Arc<Arena>>>,
    /// The processes of the host that are told of regions and windows.
    peers: OnceLock<Arc<dyn Peers>>,
}

/// The regions, none of which comes or goes as long as this is around.
pub(crate) struct Regions<'a>(Reading<'a, Entries>);

impl Regions<'_> {
    /// Returns the bytes that a queue pair of a domain names as its own. `None`: it may not, or they may not be there.
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
        let Found { span, offset } = found.ok()?;
        span.piece(offset, segment.length as usize, write)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Makes a registry without regions.
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

    /// Returns the arena from which memory for regions is handed out; makes it at the first call. `None`: the system
    /// has no files in memory.
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.get_or_init(|| Arena::new().ok()).as_ref()
    }

    /// Publishes all regions and windows to peers of the same host from now on; there are none yet.
    pub(crate) fn tell(&self, peers: Arc<impl Peers + 'static>) {
        let _ = self.peers.set(peers);
    }

    /// Returns the number that keys add to an index.
    pub(crate) fn key_base(&self) -> u32 {
        self.entries.read(0).table.base()
    }

    /// Tells peers what is in a slot now, in the place of what they were told before.
    fn publish(&self, entries: &Entries, slot: u32) {
        let Some(peers) = self.peers.get() else {
            return;
        };
        match entries.told(slot) {
            Some(region) => peers.publish(slot, &region),
            None => peers.retract(slot),
        }
    }

    /// Takes back what peers were told of a slot, and waits until none uses it any more. Not under the lock: a peer
    /// may take its time. Busy: one does not end; then all is as it was.
    fn vacate(&self, slot: u32) -> Result<(), Refusal> {
        let Some(peers) = self.peers.get() else {
            return Ok(());
        };
        if self.entries.read(0).told(slot).is_none() {
            return Ok(());
        }
        peers.retract(slot);
        let result = peers.wait();
        if result.is_err() {
            self.publish(&self.entries.change(), slot);
        }
        result
    }

    /// Returns where a peer of the same host finds a region's bytes, and the block that they are in: see
    /// [`Span::place`].
    pub fn place(&self, key: u32) -> Option<(Arc<Block>, Place)> {
        let entries = self.entries.read(0);
        let (_, region) = entries.region(key).ok()?;
        let (block, place) = region.span.place()?;
        Some((Arc::clone(block), place))
    }

    /// Makes device memory of what is left of it.
    pub fn allocate(&self, length: u64) -> Result<Arc<DeviceMemory>, Refusal> {
        self.device_memory
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(length)
                    .filter(|used| *used <= limits::MAX_DM_SIZE)
            })
            .map_err(|_| Refusal::Exhausted)?;
        DeviceMemory::new(length).inspect_err(|_| self.give_back(length))
    }

    /// Counts device memory of `length` bytes as free again.
    pub fn give_back(&self, length: u64) {
        self.device_memory.fetch_sub(length, Ordering::AcqRel);
    }

    /// Returns the memory as a queue pair of the protection domain sees it.
    pub fn view(&self, domain: DomainId, queue_pair: u32) -> View<'_> {
        View::new(self, domain, queue_pair)
    }

    /// Registers a region; its key, the local and the remote one.
    pub fn register(&self, attributes: RegionAttributes) -> Result<u32, Refusal> {
        let RegionAttributes {
            domain,
            span,
            start,
            access,
        } = attributes;
        check_range(start, &span)?;
        let mut entries = self.entries.change();
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

    /// Changes a region: as if it were deregistered and registered anew. Its key, a new one.
    pub fn reregister(&self, key: u32, change: RegionChange) -> Result<u32, Refusal> {
        if let Some((span, start)) = &change.translation {
            check_range(*start, span)?;
        }
        let check = |region: &Region| match region {
            region if region.windows > 0 => Err(Refusal::Busy),
            region if !region.span.is_program() => Err(Refusal::Invalid),
            _ => Ok(()),
        };
        let (mut entries, number) = self.vacated(key, check)?;
        let Some(Entry::Region(region)) = entries.table.get_mut(number) else {
            return Err(Refusal::Invalid);
        };
        if let Some((span, start)) = change.translation {
            (region.span, region.start) = (span, start);
        }
        region.domain = change.domain.unwrap_or(region.domain);
        region.access = change.access.unwrap_or(region.access);
        let key = entries.table.renew(number);
        self.publish(&entries, number);
        Ok(key)
    }

    /// Returns the entries, with a region that `check` lets pass and that no peer uses, and its slot.
    fn vacated(
        &self,
        key: u32,
        check: impl Fn(&Region) -> Result<(), Refusal>,
    ) -> Result<(Changing<'_, Entries>, u32), Refusal> {
        let find = |entries: &Entries| {
            let (number, region) = entries.region(key)?;
            check(region).map(|()| number)
        };
        let number = find(&self.entries.read(0))?;
        self.vacate(number)?;
        let entries = self.entries.change();
        // Another thread may have come in between.
        match find(&entries) {
            Ok(number) => Ok((entries, number)),
            Err(refusal) => {
                self.publish(&entries, number);
                Err(refusal)
            }
        }
    }

    /// Ends a region's registration; not while a window is bound to it (`ibv_dereg_mr(3)`), nor while a peer of the
    /// same host is stopped in the middle of a copy. When it has ended, nobody touches the bytes any more.
    pub fn deregister(&self, key: u32) -> Result<(), Refusal> {
        let check = |region: &Region| match region.windows {
            0 => Ok(()),
            _ => Err(Refusal::Busy),
        };
        let (mut entries, number) = self.vacated(key, check)?;
        entries.table.remove(number);
        entries.regions -= 1;
        Ok(())
    }

    /// Makes a window that is not bound; its key.
    pub fn allocate_window(&self, domain: DomainId, kind: WindowKind) -> Result<u32, Refusal> {
        let mut entries = self.entries.change();
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

    /// Ends a window, which is no longer bound then. Any key that it had names it.
    pub fn deallocate_window(&self, key: u32) -> Result<(), Refusal> {
        let find = |entries: &Entries| {
            let number = entries.table.slot_of(key).ok_or(Refusal::Invalid)?;
            let is_window = matches!(entries.table.get(number), Some(Entry::Window(_)));
            is_window.then_some(number).ok_or(Refusal::Invalid)
        };
        let number = find(&self.entries.read(0))?;
        self.vacate(number)?;
        let mut entries = self.entries.change();
        find(&entries)?;
        entries.unbind(number);
        entries.table.remove(number);
        entries.windows -= 1;
        self.publish(&entries, number);
        Ok(())
    }

    /// Frees the type 2 windows that a queue pair which is gone has served, so that no later queue pair with its number
    /// serves them.
    pub fn release_queue_pair(&self, queue_pair: u32) {
        let mut entries = self.entries.change();
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
        // Peers reach them by the queue pair alone, of which none makes use any more.
        for &number in &bound {
            entries.unbind(number);
            self.publish(&entries, number);
        }
    }

    /// Checks that the key names an on-demand region of the domain that holds the bytes, and that they may be written
    /// if `write` is set. Returns their address (`ibv_advise_mr(3)`).
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

    /// Returns the regions, for a queue pair and a short time: changes wait meanwhile.
    #[inline]
    pub(crate) fn regions(&self, queue_pair: u32) -> Regions<'_> {
        Regions(self.entries.read(queue_pair))
    }

    /// Runs `body`, for a queue pair, with the entries, which do not change meanwhile.
    #[inline]
    pub(super) fn with<T>(&self, queue_pair: u32, body: impl FnOnce(&Entries) -> T) -> T {
        body(&self.entries.read(queue_pair))
    }

    /// Withdraws a window that is to be bound again from peers.
    pub(super) fn withdraw_window(&self, domain: DomainId, wanted: &WindowBinding) -> Withdrawal {
        self.withdraw_slot(|entries| {
            let number = entries.table.slot_of(wanted.window)?;
            let Some(Entry::Window(window)) = entries.table.get(number) else {
                return None;
            };
            // A window of type 2 has to be free.
            (window.domain == domain && window.kind == WindowKind::Type1).then_some(number)
        })
    }

    /// Withdraws a window that is to be invalidated from peers.
    pub(super) fn withdraw(&self, domain: DomainId, queue_pair: u32, key: u32) -> Withdrawal {
        self.withdraw_slot(|entries| entries.served(domain, queue_pair, key))
    }

    /// Withdraws the slot that `find` finds from peers.
    fn withdraw_slot(&self, find: impl FnOnce(&Entries) -> Option<u32>) -> Withdrawal {
        let Some(peers) = self.peers.get() else {
            return Withdrawal::Complete;
        };
        let told = {
            let entries = self.entries.read(0);
            find(&entries).filter(|&slot| entries.told(slot).is_some())
        };
        let Some(slot) = told else {
            return Withdrawal::Complete;
        };
        let withdrawal = peers.withdraw(slot);
        if withdrawal == Withdrawal::Refused {
            self.publish(&self.entries.change(), slot);
        }
        withdrawal
    }

    /// Publishes a window to peers again, after it was withdrawn and neither bound again nor invalidated.
    pub(crate) fn keep(&self, key: u32) {
        let Some(peers) = self.peers.get() else {
            return;
        };
        let slot = self.entries.read(0).table.slot_of(key);
        if let Some(slot) = slot.filter(|&slot| peers.forget_withdrawal(slot)) {
            self.publish(&self.entries.change(), slot);
        }
    }

    /// Returns the slot that a key names, whatever its tag.
    #[cfg(test)]
    pub(crate) fn slot(&self, key: u32) -> Option<u32> {
        self.entries.read(0).table.slot_of(key)
    }

    /// Returns whether a slot has been published to peers again since the slot was retracted.
    fn is_told(&self, slot: u32) -> bool {
        let peers = self.peers.get();
        peers.is_some_and(|peers| peers.is_published(slot))
    }

    /// Binds a window (IBTA 10.6.7.2, 11.4.1.1) that was [withdrawn](Self::withdraw_window).
    pub(super) fn bind(
        &self,
        domain: DomainId,
        queue_pair: u32,
        wanted: &WindowBinding,
    ) -> Result<(), LocalFault> {
        let mut entries = self.entries.change();
        let slot = entries.table.slot_of(wanted.window);
        if slot.is_some_and(|slot| self.is_told(slot)) {
            return Err(LocalFault::Bind);
        }
        let bound = entries.bind(domain, queue_pair, wanted);
        if let Some(slot) = slot {
            self.publish(&entries, slot);
        }
        bound.map(drop).ok_or(LocalFault::Bind)
    }

    /// Frees a type 2 window (IBTA 10.6.7.2.4) that was [withdrawn](Self::withdraw). `None`: the queue pair serves no
    /// bound window with this key.
    pub(super) fn invalidate(&self, domain: DomainId, queue_pair: u32, key: u32) -> Option<()> {
        let mut entries = self.entries.change();
        let number = entries.served(domain, queue_pair, key)?;
        if self.is_told(number) {
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

/// Addresses must not wrap, neither those of requests nor those of the memory.
fn check_range(start: u64, span: &Span) -> Result<(), Refusal> {
    let length = span.length();
    let is_whole = span.is_null() || start == 0;
    if !is_whole && start.checked_add(length).is_none() {
        return Err(Refusal::Invalid);
    }
    Ok(())
}
