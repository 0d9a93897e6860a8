#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use crate::context::{DomainId, Refusal};
use crate::limits;
use crate::proto::{AccessFlags, LocalFault, RemoteFault, WindowBinding};

use super::region::{Region, offset};
use super::table::Table;
use super::window::{Binding, Window};
use super::{
    Arena, Block, DeviceMemory, Place, RegionAttributes, RegionChange, Span, View, WindowKind,
};

/// All memory regions and windows of a NIC.
///
/// A copy holds the lock shared from the check of its key to its last byte. So when a
/// registration ends, which takes the lock alone, no copy is under way, and none begins any more.
pub struct Registry {
    entries: RwLock<Entries>,
    /// Bytes of device memory that are in use.
    device_memory: AtomicU64,
    arena: OnceLock<Option<Arc<Arena>>>,
}

pub(super) struct Entries {
    table: Table<Entry>,
    regions: usize,
    windows: usize,
}

enum Entry {
    Region(Region),
    Window(Window),
}

/// Memory that was found for a peer or for this side.
pub(super) struct Found<'a> {
    pub(super) span: &'a Span,
    /// Where in it.
    pub(super) offset: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// A registry without regions.
    pub fn new() -> Self {
        let entries = Entries {
            table: Table::new(),
            regions: 0,
            windows: 0,
        };
        Self {
            entries: RwLock::new(entries),
            device_memory: AtomicU64::new(0),
            arena: OnceLock::new(),
        }
    }

    /// What memory for regions is handed out from; made at the first call. None: the system has no files in memory.
    pub fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.get_or_init(|| Arena::new().ok()).as_ref()
    }

    /// Where a peer of the same host finds a region's bytes, and how much of its memory: see [`Span::place`].
    pub fn place(&self, key: u32) -> Option<(Arc<Block>, Place)> {
        let entries = self.entries.read();
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

    /// Device memory of so many bytes is no longer in use.
    pub fn give_back(&self, length: u64) {
        self.device_memory.fetch_sub(length, Ordering::AcqRel);
    }

    /// What a queue pair of the protection domain sees of it.
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
        Ok(entries.table.key(number))
    }

    /// Changes a region: as if it were deregistered and registered anew. Its key, a new one.
    pub fn reregister(&self, key: u32, change: RegionChange) -> Result<u32, Refusal> {
        let mut entries = self.entries.write();
        let (number, _) = entries.region(key)?;
        let Some(Entry::Region(region)) = entries.table.get_mut(number) else {
            return Err(Refusal::Invalid);
        };
        if region.windows > 0 {
            return Err(Refusal::Busy);
        }
        if !region.span.is_program() {
            return Err(Refusal::Invalid);
        }
        if let Some((span, start)) = change.translation {
            check_range(start, &span)?;
            (region.span, region.start) = (span, start);
        }
        region.domain = change.domain.unwrap_or(region.domain);
        region.access = change.access.unwrap_or(region.access);
        Ok(entries.table.retag(number, (key as u8).wrapping_add(1)))
    }

    /// Ends a region's registration; not while a window is bound to it (`ibv_dereg_mr(3)`).
    pub fn deregister(&self, key: u32) -> Result<(), Refusal> {
        let mut entries = self.entries.write();
        let (number, region) = entries.region(key)?;
        if region.windows > 0 {
            return Err(Refusal::Busy);
        }
        entries.table.remove(number);
        entries.regions -= 1;
        Ok(())
    }

    /// Makes a window that is not bound; its key.
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

    /// Ends a window, which is no longer bound then. Any key that it had names it.
    pub fn deallocate_window(&self, key: u32) -> Result<(), Refusal> {
        let mut entries = self.entries.write();
        let number = entries.table.slot_of(key).ok_or(Refusal::Invalid)?;
        if !matches!(entries.table.get(number), Some(Entry::Window(_))) {
            return Err(Refusal::Invalid);
        }
        entries.unbind(number);
        entries.table.remove(number);
        entries.windows -= 1;
        Ok(())
    }

    /// A queue pair is gone: frees the type 2 windows that only it served, so that no later queue pair
    /// with its number does.
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
        for number in bound {
            entries.unbind(number);
        }
    }

    /// Whether the key is that of an on-demand region of the domain that holds the bytes, and may be written if
    /// asked for; where they are (`ibv_advise_mr(3)`).
    pub fn advise(
        &self,
        domain: DomainId,
        key: u32,
        address: u64,
        length: u64,
        write: bool,
    ) -> Result<usize, Refusal> {
        let entries = self.entries.read();
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

    /// Runs `body` with the entries, which do not change meanwhile.
    #[inline]
    pub(super) fn with<T>(&self, body: impl FnOnce(&Entries) -> T) -> T {
        body(&self.entries.read())
    }

    /// Binds a window (IBTA 10.6.7.2, 11.4.1.1).
    pub(super) fn bind(
        &self,
        domain: DomainId,
        queue_pair: u32,
        wanted: &WindowBinding,
    ) -> Result<(), LocalFault> {
        self.entries
            .write()
            .bind(domain, queue_pair, wanted)
            .ok_or(LocalFault::Bind)
    }

    /// Frees a type 2 window (IBTA 10.6.7.2.4). None: the key is not that of a bound one that the queue pair serves.
    pub(super) fn invalidate(&self, domain: DomainId, queue_pair: u32, key: u32) -> Option<()> {
        let mut entries = self.entries.write();
        let (number, entry) = entries.table.find(key)?;
        let Entry::Window(window) = entry else {
            // A region ends with ibv_dereg_mr alone: it was not made by a fast registration.
            return None;
        };
        let binding = window.binding.as_ref()?;
        // Type 1 windows end by being bound anew, and have no queue pair.
        if window.domain != domain || binding.queue_pair != Some(queue_pair) {
            return None;
        }
        entries.unbind(number);
        Some(())
    }
}

impl Entries {
    /// Memory that this side names.
    #[inline]
    pub(super) fn local(
        &self,
        domain: DomainId,
        key: u32,
        address: u64,
        length: u64,
        write: bool,
    ) -> Result<Found<'_>, LocalFault> {
        let Some((_, Entry::Region(region))) = self.table.find(key) else {
            return Err(LocalFault::Protection);
        };
        if region.domain != domain || write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::Protection);
        }
        let offset = region
            .offset(address, length)
            .ok_or(LocalFault::Protection)?;
        Ok(Found {
            span: &region.span,
            offset,
        })
    }

    /// Memory that a peer names, in a region or through a window.
    #[inline]
    pub(super) fn remote(
        &self,
        domain: DomainId,
        queue_pair: u32,
        key: u32,
        address: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<Found<'_>, RemoteFault> {
        self.find_remote(domain, queue_pair, key, address, length, access)
            .ok_or(RemoteFault::Access)
    }

    #[inline]
    fn find_remote(
        &self,
        domain: DomainId,
        queue_pair: u32,
        key: u32,
        address: u64,
        length: u64,
        access: AccessFlags,
    ) -> Option<Found<'_>> {
        match self.table.find(key)?.1 {
            Entry::Region(region) => {
                // The null region has a local key only.
                if region.domain != domain
                    || !region.access.contains(access)
                    || region.span.is_null()
                {
                    return None;
                }
                let offset = region.offset(address, length)?;
                Some(Found {
                    span: &region.span,
                    offset,
                })
            }
            Entry::Window(window) => {
                let binding = window.binding.as_ref()?;
                if window.domain != domain
                    || binding.queue_pair.is_some_and(|only| only != queue_pair)
                    || !binding.access.contains(access)
                {
                    return None;
                }
                let Some(Entry::Region(region)) = self.table.get(binding.region) else {
                    return None;
                };
                let inside = offset(binding.start, binding.length, address, length)?;
                Some(Found {
                    span: &region.span,
                    offset: binding.offset + inside,
                })
            }
        }
    }

    fn region(&self, key: u32) -> Result<(u32, &Region), Refusal> {
        match self.table.find(key) {
            Some((number, Entry::Region(region))) => Ok((number, region)),
            _ => Err(Refusal::Invalid),
        }
    }

    fn bind(&mut self, domain: DomainId, queue_pair: u32, wanted: &WindowBinding) -> Option<()> {
        let number = self.table.slot_of(wanted.window)?;
        let Some(Entry::Window(window)) = self.table.get(number) else {
            return None;
        };
        if window.domain != domain || wanted.key >> 8 != wanted.window >> 8 {
            return None;
        }
        let kind = window.kind;
        // A type 2 window has to be free (IBTA o10-37.2.30), and nothing cannot be bound to it
        // (o10-37.2.40); of type 1 that means not to be bound any more.
        if kind == WindowKind::Type2 && (window.binding.is_some() || wanted.length == 0) {
            return None;
        }
        if wanted.length == 0 {
            self.unbind(number);
            self.table.retag(number, wanted.key as u8);
            return Some(());
        }
        let (region_number, Entry::Region(region)) = self.table.find(wanted.region)? else {
            return None;
        };
        let peer_writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        // IBTA C10-72 to C10-75: the domain, the right to bind, the right to write, the bounds.
        if region.domain != domain
            || !region.access.contains(AccessFlags::MW_BIND)
            || region.span.is_null()
            || wanted.access.intersects(peer_writes)
                && !region.access.contains(AccessFlags::LOCAL_WRITE)
        {
            return None;
        }
        let offset = region.offset(wanted.address, wanted.length)?;
        let is_zero_based = wanted.access.contains(AccessFlags::ZERO_BASED);
        let binding = Binding {
            region: region_number,
            start: if is_zero_based { 0 } else { wanted.address },
            offset,
            length: wanted.length,
            access: wanted.access - AccessFlags::ZERO_BASED,
            queue_pair: (kind == WindowKind::Type2).then_some(queue_pair),
        };
        self.unbind(number);
        self.table.retag(number, wanted.key as u8);
        if let Some(Entry::Region(region)) = self.table.get_mut(region_number) {
            region.windows += 1;
        }
        if let Some(Entry::Window(window)) = self.table.get_mut(number) {
            window.binding = Some(binding);
        }
        Some(())
    }

    fn unbind(&mut self, number: u32) {
        let Some(Entry::Window(window)) = self.table.get_mut(number) else {
            return;
        };
        let Some(binding) = window.binding.take() else {
            return;
        };
        if let Some(Entry::Region(region)) = self.table.get_mut(binding.region) {
            region.windows -= 1;
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.read();
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
