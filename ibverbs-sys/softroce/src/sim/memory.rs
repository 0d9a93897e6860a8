use std::cell::RefCell;

use crate::proto::{AccessFlags, LocalFault, RemoteFault, Segment, WindowBinding};

/// Simulated memory of one host: memory regions and windows. Each access is checked for a valid
/// key, range and access rights.
///
/// A memory key consists of an index and a tag. When the index is reused, the tag changes, so that
/// an old key is not valid.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    table: RefCell<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    key: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Free,
    Region(Region),
    /// A type 2 memory window with its binding, or with `None` if it is not bound.
    Window(Option<Window>),
}

#[derive(Debug)]
struct Region {
    base: u64,
    access: AccessFlags,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    region: u32,
    address: u64,
    length: u64,
    access: AccessFlags,
    /// Number of the queue pair that bound the window. Peers may use the window only through this
    /// queue pair (type 2B, IBTA 10.6.7.2.5).
    queue_pair: u32,
}

/// Index of the first region or window. The index is not 0, so that zero is never a valid key.
const FIRST_INDEX: usize = 1;

impl Memory {
    /// Registers the memory `bytes`, whose first byte has the address `base`, with the rights
    /// `access`. Returns the key of the region, which is both the local and the remote key.
    pub(crate) fn register(&self, bytes: Vec<u8>, base: u64, access: AccessFlags) -> u32 {
        let region = Region {
            base,
            access,
            bytes,
        };
        self.table.borrow_mut().insert(Kind::Region(region))
    }

    /// Allocates a memory window of the simulated node, and returns its key. The window is not
    /// bound to a region yet.
    pub(crate) fn allocate_window(&self) -> u32 {
        self.table.borrow_mut().insert(Kind::Window(None))
    }

    /// Deregisters the region, or deallocates the window, with the key `key`. Returns the bytes of
    /// the region. Returns no bytes if the key belongs to no region.
    pub(crate) fn deregister(&self, key: u32) -> Vec<u8> {
        let mut table = self.table.borrow_mut();
        let Some(entry) = table.entry(key) else {
            return Vec::new();
        };
        let kind = std::mem::replace(&mut entry.kind, Kind::Free);
        table.free.push(index(key));
        match kind {
            Kind::Region(region) => region.bytes,
            Kind::Window(_) | Kind::Free => Vec::new(),
        }
    }

    /// Calls `look` with the bytes of the region with the key `key`, and returns the result of
    /// `look`. If the key belongs to no region, calls `look` with no bytes.
    pub(crate) fn inspect<T>(&self, key: u32, look: impl FnOnce(&[u8]) -> T) -> T {
        match self.table.borrow_mut().entry(key) {
            Some(Entry {
                kind: Kind::Region(region),
                ..
            }) => look(&region.bytes),
            _ => look(&[]),
        }
    }

    /// Returns whether `key` is the key of a memory window that is bound to a region at present.
    pub(crate) fn is_bound(&self, key: u32) -> bool {
        let mut table = self.table.borrow_mut();
        matches!(table.entry(key), Some(entry) if matches!(entry.kind, Kind::Window(Some(_))))
    }

    /// Copies bytes of a message to `out`, until `out` is full. The bytes begin at byte `offset` of
    /// the message. The scatter/gather list `list` describes the memory of the message.
    pub(crate) fn gather(
        &self,
        list: &[Segment],
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), LocalFault> {
        let mut table = self.table.borrow_mut();
        let mut done = 0;
        for (segment, skip, count) in pieces(list, offset, out.len()) {
            let none = AccessFlags::empty();
            let bytes = table.local(segment, skip, count, none)?;
            out[done..done + count].copy_from_slice(bytes);
            done += count;
        }
        if done == out.len() {
            Ok(())
        } else {
            Err(LocalFault::Protection)
        }
    }

    /// Copies `data` to the memory of a message, beginning at byte `offset` of the message. The
    /// scatter/gather list `list` describes this memory.
    pub(crate) fn scatter(
        &self,
        list: &[Segment],
        offset: u32,
        data: &[u8],
    ) -> Result<(), LocalFault> {
        let mut table = self.table.borrow_mut();
        let mut done = 0;
        for (segment, skip, count) in pieces(list, offset, data.len()) {
            let bytes = table.local(segment, skip, count, AccessFlags::LOCAL_WRITE)?;
            bytes.copy_from_slice(&data[done..done + count]);
            done += count;
        }
        if done == data.len() {
            Ok(())
        } else {
            Err(LocalFault::Protection)
        }
    }

    /// Calls `work` with `length` bytes at `address` that the peer of the queue pair `queue_pair`
    /// accesses by the remote key `key`. Returns the result of `work`. Fails if the peer lacks the
    /// rights `access` to these bytes.
    pub(crate) fn remote<T>(
        &self,
        queue_pair: u32,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
        work: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, RemoteFault> {
        let mut table = self.table.borrow_mut();
        let end = address.checked_add(u64::from(length));
        let end = end.ok_or(RemoteFault::Access)?;
        let region_key = match table.entry(key).map(|entry| &entry.kind) {
            Some(Kind::Region(region)) if region.access.contains(access) => key,
            Some(&Kind::Window(Some(window)))
                if window.access.contains(access)
                    && window.queue_pair == queue_pair
                    && address >= window.address
                    && end <= window.address + window.length =>
            {
                window.region
            }
            _ => return Err(RemoteFault::Access),
        };
        let bytes = table.region(region_key).and_then(|region| {
            let first = usize::try_from(address.checked_sub(region.base)?).ok()?;
            let end = first.checked_add(length as usize)?;
            region.bytes.get_mut(first..end)
        });
        bytes.map(work).ok_or(RemoteFault::Access)
    }

    /// Binds a memory window to a region as `binding` describes. Afterwards, only the peer of the
    /// queue pair with the number `queue_pair` may use the window's key.
    pub(crate) fn bind(&self, queue_pair: u32, binding: &WindowBinding) -> Result<(), LocalFault> {
        let mut table = self.table.borrow_mut();
        let end = binding.address.checked_add(binding.length);
        let fits = table.region(binding.region).is_some_and(|region| {
            let bound = region.base + region.bytes.len() as u64;
            region.access.contains(AccessFlags::MW_BIND)
                && binding.address >= region.base
                && end.is_some_and(|end| end <= bound)
        });
        let same = index(binding.key) == index(binding.window);
        match table.entry(binding.window) {
            Some(entry) if fits && same && matches!(entry.kind, Kind::Window(None)) => {
                entry.key = binding.key;
                entry.kind = Kind::Window(Some(Window {
                    region: binding.region,
                    address: binding.address,
                    length: binding.length,
                    access: binding.access,
                    queue_pair,
                }));
                Ok(())
            }
            _ => Err(LocalFault::Bind),
        }
    }

    /// Unbinds a memory window, so that its key becomes invalid. Returns `false` if `key` belongs
    /// to no window that was bound through the queue pair with the number `queue_pair`.
    pub(crate) fn invalidate(&self, queue_pair: u32, key: u32) -> bool {
        match self.table.borrow_mut().entry(key).map(|e| &mut e.kind) {
            Some(Kind::Window(bound)) => bound
                .take_if(|window| window.queue_pair == queue_pair)
                .is_some(),
            _ => false,
        }
    }
}

impl Table {
    fn insert(&mut self, kind: Kind) -> u32 {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index - FIRST_INDEX];
            entry.key = (entry.key & !0xff) | (entry.key.wrapping_add(1) & 0xff);
            entry.kind = kind;
            return entry.key;
        }
        let key = ((self.entries.len() + FIRST_INDEX) as u32) << 8;
        self.entries.push(Entry { key, kind });
        key
    }

    fn entry(&mut self, key: u32) -> Option<&mut Entry> {
        let place = index(key).checked_sub(FIRST_INDEX)?;
        self.entries.get_mut(place).filter(|entry| entry.key == key)
    }

    fn region(&mut self, key: u32) -> Option<&mut Region> {
        match &mut self.entry(key)?.kind {
            Kind::Region(region) => Some(region),
            Kind::Window(_) | Kind::Free => None,
        }
    }

    /// Returns `count` bytes of the memory range `segment`, beginning at byte `skip` of the range.
    /// Fails if the bytes are not in a registered region, or if the region does not grant the
    /// rights `access`.
    fn local(
        &mut self,
        segment: &Segment,
        skip: usize,
        count: usize,
        access: AccessFlags,
    ) -> Result<&mut [u8], LocalFault> {
        let region = self.region(segment.key).ok_or(LocalFault::Protection)?;
        let bytes = segment.address.checked_sub(region.base).and_then(|first| {
            let first = usize::try_from(first).ok()?.checked_add(skip)?;
            region.bytes.get_mut(first..first.checked_add(count)?)
        });
        match bytes {
            Some(bytes) if region.access.contains(access) => Ok(bytes),
            _ => Err(LocalFault::Protection),
        }
    }
}

fn index(key: u32) -> usize {
    (key >> 8) as usize
}

/// Returns the memory ranges that contain `length` bytes of a message, beginning at byte `offset`
/// of the message. Each range consists of an entry of the scatter/gather list `list`, the number of
/// bytes to skip in this entry, and the number of bytes to use.
fn pieces(
    list: &[Segment],
    offset: u32,
    length: usize,
) -> impl Iterator<Item = (&Segment, usize, usize)> {
    let mut skip = offset as usize;
    let mut left = length;
    list.iter().filter_map(move |segment| {
        let here = skip.min(segment.length as usize);
        let count = (segment.length as usize - here).min(left);
        skip -= here;
        left -= count;
        (count > 0).then_some((segment, here, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x10_0000;

    fn all() -> AccessFlags {
        AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::MW_BIND
    }

    fn write(memory: &Memory, queue_pair: u32, key: u32, address: u64) -> bool {
        let access = AccessFlags::REMOTE_WRITE;
        let done = memory.remote(queue_pair, key, address, 4, access, |b| b.fill(7));
        done.is_ok()
    }

    #[test]
    fn messages_are_scattered_and_gathered_at_every_offset() {
        let memory = Memory::default();
        let key = memory.register(vec![0; 100], BASE, all());
        let at = |address, length| Segment {
            address: BASE + address,
            length,
            key,
        };
        let list = [at(50, 10), at(0, 0), at(3, 5), at(90, 10)];
        let message: Vec<u8> = (1..=25).collect();
        for offset in 0..25 {
            let part = &message[offset..];
            memory.scatter(&list, offset as u32, part).unwrap();
        }
        let mut out = [0; 11];
        memory.gather(&list, 8, &mut out).unwrap();
        assert_eq!(out[..], message[8..19]);
        assert_eq!(
            memory.gather(&list, 15, &mut out),
            Err(LocalFault::Protection)
        );
        memory.inspect(key, |bytes| {
            assert_eq!(bytes[49..61], [&[0], &message[..10], &[0]].concat());
        });
    }

    #[test]
    fn access_is_checked() {
        let memory = Memory::default();
        let key = memory.register(vec![0; 100], BASE, all());
        let fixed = memory.register(vec![0; 100], BASE, AccessFlags::empty());
        assert!(write(&memory, 1, key, BASE + 96));
        assert!(!write(&memory, 1, key, BASE + 97));
        assert!(!write(&memory, 1, key, BASE - 1));
        assert!(!write(&memory, 1, key, u64::MAX));
        assert!(!write(&memory, 1, fixed, BASE));
        let there = [Segment {
            address: BASE,
            length: 8,
            key: fixed,
        }];
        assert!(memory.scatter(&there, 0, &[1]).is_err());
        assert!(memory.gather(&there, 0, &mut [0]).is_ok());
        memory.deregister(key);
        assert!(!write(&memory, 1, key, BASE));
        let again = memory.register(vec![0; 100], BASE, all());
        assert_ne!(again, key);
        assert!(!write(&memory, 1, key, BASE));
    }

    #[test]
    fn a_window_is_valid_for_its_queue_pair_until_invalidated() {
        let memory = Memory::default();
        let region = memory.register(vec![0; 100], BASE, all());
        let window = memory.allocate_window();
        let binding = WindowBinding {
            window,
            key: window | 0x55,
            region,
            address: BASE + 10,
            length: 20,
            access: AccessFlags::REMOTE_WRITE,
        };
        assert!(!write(&memory, 1, window, BASE + 10));
        memory.bind(1, &binding).unwrap();
        assert!(memory.bind(1, &binding).is_err());
        assert!(write(&memory, 1, binding.key, BASE + 26));
        assert!(!write(&memory, 1, binding.key, BASE + 27));
        assert!(!write(&memory, 1, binding.key, BASE + 9));
        assert!(!write(&memory, 2, binding.key, BASE + 10));
        assert!(!memory.invalidate(2, binding.key));
        assert!(memory.invalidate(1, binding.key));
        assert!(!memory.is_bound(binding.key));
        assert!(!write(&memory, 1, binding.key, BASE + 10));
        assert!(!memory.invalidate(1, region));
    }
}
