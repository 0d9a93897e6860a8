#![forbid(unsafe_code)]
//! The memory regions and windows of a registry: checks of accesses that name them by keys, and
//! binding of windows.

use super::region::{Region, offset};
use super::table::Table;
use super::window::{Binding, Window};
use super::{FilePlace, Published, Span, WindowKind};
use crate::context::{DomainId, Refusal};
use crate::proto::{AccessFlags, LocalFault, RemoteFault, WindowBinding};

/// Table of the memory regions and windows of a NIC. A request finds a region or window by its
/// memory key.
pub(super) struct Entries {
    pub(super) table: Table<Entry>,
    /// Number of existing regions, which is limited separately from the number of windows.
    pub(super) regions: usize,
    pub(super) windows: usize,
}

pub(super) enum Entry {
    Region(Region),
    Window(Window),
}

/// Memory that an access with a valid key may use: the span (memory range) of a region or window,
/// and the offset of the accessed bytes in the span.
pub(super) struct AccessibleSpan<'a> {
    pub(super) span: &'a Span,
    /// Offset in bytes of the first accessed byte from the start of the span.
    pub(super) offset: u64,
}

impl Entries {
    /// Returns the `length` bytes at `address` that a request accesses by the local key `key`. The
    /// request belongs to a queue pair of the protection domain `domain`. If `write` is set, the
    /// access is a local write. Fails if the key does not permit the access to all of these bytes.
    #[inline]
    pub(super) fn local(
        &self,
        domain: DomainId,
        key: u32,
        address: u64,
        length: u64,
        write: bool,
    ) -> Result<AccessibleSpan<'_>, LocalFault> {
        let Some((_, Entry::Region(region))) = self.table.find(key) else {
            return Err(LocalFault::Protection);
        };
        if region.domain != domain || write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(LocalFault::Protection);
        }
        let offset = region
            .offset(address, length)
            .ok_or(LocalFault::Protection)?;
        Ok(AccessibleSpan {
            span: &region.span,
            offset,
        })
    }

    /// Returns the `length` bytes at `address` that a request of a peer accesses by the remote key
    /// `key`. The peer's request arrived at the queue pair `queue_pair` of the protection domain
    /// `domain`. Fails if the key does not grant the rights `access` to all of these bytes.
    #[inline]
    pub(super) fn remote(
        &self,
        domain: DomainId,
        queue_pair: u32,
        key: u32,
        address: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<AccessibleSpan<'_>, RemoteFault> {
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
    ) -> Option<AccessibleSpan<'_>> {
        match self.table.find(key)?.1 {
            Entry::Region(region) => {
                // The null region has only a local key.
                if region.domain != domain
                    || !region.access.contains(access)
                    || region.span.is_null()
                {
                    return None;
                }
                let offset = region.offset(address, length)?;
                Some(AccessibleSpan {
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
                Some(AccessibleSpan {
                    span: &region.span,
                    offset: binding.offset + inside,
                })
            }
        }
    }

    /// Returns the start address of the region or bound window with the key `key`: the address of
    /// its first byte in requests. Returns `None` if no region or bound window has the key.
    pub(super) fn start(&self, key: u32) -> Option<u64> {
        match self.table.find(key)?.1 {
            Entry::Region(region) => Some(region.start),
            Entry::Window(window) => window.binding.as_ref().map(|binding| binding.start),
        }
    }

    pub(super) fn region(&self, key: u32) -> Result<(u32, &Region), Refusal> {
        match self.table.find(key) {
            Some((number, Entry::Region(region))) => Ok((number, region)),
            _ => Err(Refusal::Invalid),
        }
    }

    /// Binds a memory window as `wanted` describes, for a request of the queue pair `queue_pair` in
    /// the protection domain `domain`. Returns the slot of the window (its number in the table).
    /// Returns `None`, and changes nothing, if the binding is not permitted.
    pub(super) fn bind(
        &mut self,
        domain: DomainId,
        queue_pair: u32,
        wanted: &WindowBinding,
    ) -> Option<u32> {
        // The request names the window by its current key.
        let (number, Entry::Window(window)) = self.table.find(wanted.window)? else {
            return None;
        };
        if window.domain != domain || wanted.access.bits() & !AccessFlags::all().bits() != 0 {
            return None;
        }
        let kind = window.kind;
        // A type 2 window must be unbound (IBTA o10-37.2.30), and cannot be bound to zero bytes
        // (o10-37.2.40). Binding a type 1 window to zero bytes unbinds it.
        if kind == WindowKind::Type2 && (window.binding.is_some() || wanted.length == 0) {
            return None;
        }
        // Windows of type 1 are not zero-based (IBTA o10-36.2.2).
        if kind == WindowKind::Type1 && wanted.access.contains(AccessFlags::ZERO_BASED) {
            return None;
        }
        if wanted.length == 0 {
            self.unbind(number);
            self.table.retag(number, wanted.key as u8);
            return Some(number);
        }
        let (region_number, Entry::Region(region)) = self.table.find(wanted.region)? else {
            return None;
        };
        let peer_writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let flushes = AccessFlags::FLUSH_GLOBAL | AccessFlags::FLUSH_PERSISTENT;
        // IBTA C10-72 to C10-75: the domain, the bind and write access flags, and the bounds. As
        // with the kernel's device and with NICs, no window can be bound to a zero-based region.
        if region.domain != domain
            || !region.access.contains(AccessFlags::MW_BIND)
            || region.access.contains(AccessFlags::ZERO_BASED)
            || region.span.is_null()
            || wanted.access.intersects(peer_writes)
                && !region.access.contains(AccessFlags::LOCAL_WRITE)
            // The region's memory may not be able to do what such a flush requires.
            || !region.access.contains(wanted.access & flushes)
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
        Some(number)
    }

    /// Returns the slot (number in the table) of the type 2 window that has the key `key`, belongs
    /// to `domain`, and is bound through the queue pair `queue_pair`. Returns `None` if there is no
    /// such window.
    pub(super) fn bound_window(&self, domain: DomainId, queue_pair: u32, key: u32) -> Option<u32> {
        let (number, entry) = self.table.find(key)?;
        let Entry::Window(window) = entry else {
            // A region cannot be invalidated: only regions of fast registrations can, which this
            // device does not support.
            return None;
        };
        let binding = window.binding.as_ref()?;
        // A type 1 window belongs to no queue pair, and is unbound by another bind.
        let is_served = window.domain == domain && binding.queue_pair == Some(queue_pair);
        is_served.then_some(number)
    }

    /// Returns the description of a region or window for peer processes. `number` is the slot
    /// (number in the table) of the region or window. Returns `None` for an empty slot, a window
    /// that is not bound, or the null region. A region without remote access rights also has a
    /// description.
    pub(super) fn published(&self, number: u32) -> Option<Published> {
        let key = self.table.key(number);
        match self.table.get(number)? {
            Entry::Region(region) => {
                let all = (0, region.span.length());
                let told = record(region, all, region.start, region.access);
                told.map(|told| Published { key, ..told })
            }
            Entry::Window(window) => {
                let binding = window.binding.as_ref()?;
                let Some(Entry::Region(region)) = self.table.get(binding.region) else {
                    return None;
                };
                let part = (binding.offset, binding.length);
                record(region, part, binding.start, binding.access).map(|told| Published {
                    key,
                    queue_pair: binding.queue_pair,
                    ..told
                })
            }
        }
    }

    pub(super) fn unbind(&mut self, number: u32) {
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

/// Returns the description of a range of `region` for peer processes, with the key 0. A peer
/// process uses the description to access the range directly. `part` is the offset and the length
/// of the range. `start` is the address of its first byte in requests. `access` are the granted
/// rights. Returns `None` if the region has no memory.
fn record(region: &Region, part: (u64, u64), start: u64, access: AccessFlags) -> Option<Published> {
    let (offset, length) = part;
    if region.span.is_null() {
        return None;
    }
    let place = region.span.place().map(|(_, place)| FilePlace {
        offset: place.offset + offset,
        segment: place.segment,
    });
    Some(Published {
        key: 0,
        domain: region.domain.number(),
        queue_pair: None,
        access,
        start,
        length,
        address: region.span.address() as u64 + offset,
        place,
    })
}
