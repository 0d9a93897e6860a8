#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use crate::context::DomainId;
use crate::proto::{
    AccessFlags, LocalFault, Memory, Remote, RemoteFault, Segment, WindowBinding, Withdrawal,
};

use super::Piece;
use super::Registry;
use super::entries::{AccessibleSpan, Entries};
use super::span::Inaccessible;

/// The memory that a queue pair can access: the regions and windows of its protection domain,
/// except type 2 windows that are bound through other queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    registry: &'a Registry,
    domain: DomainId,
    queue_pair: u32,
}

impl<'a> View<'a> {
    pub(super) fn new(registry: &'a Registry, domain: DomainId, queue_pair: u32) -> Self {
        Self {
            registry,
            domain,
            queue_pair,
        }
    }

    pub(super) fn registry(&self) -> &'a Registry {
        self.registry
    }

    pub(super) fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// Returns the `length` bytes of memory at `address` that a request of this queue pair accesses
    /// by the local key `key`. If `write` is set, the request writes to the memory. Returns `None`
    /// if the key does not permit the access to all of these bytes.
    #[inline]
    pub(super) fn local<'e>(
        &self,
        entries: &'e Entries,
        key: u32,
        address: u64,
        length: u64,
        write: bool,
    ) -> Option<AccessibleSpan<'e>> {
        let found = entries.local(self.domain, key, address, length, write);
        found.ok()
    }

    /// Returns the `length` bytes at `remote` that a peer accesses through this queue pair. Returns
    /// `None` if the remote key does not grant the rights `access` to all of these bytes.
    #[inline]
    pub(super) fn remote<'e>(
        &self,
        entries: &'e Entries,
        remote: Remote,
        length: u64,
        access: AccessFlags,
    ) -> Option<AccessibleSpan<'e>> {
        let Remote { address, key } = remote;
        let found = entries.remote(self.domain, self.queue_pair, key, address, length, access);
        found.ok()
    }

    /// Returns whether a peer process that shares memory with this process can map all memory in
    /// `list`, the scatter/gather list of a message. Such a peer can copy the bytes of the message
    /// without system calls.
    pub(crate) fn is_mappable(&self, list: &[Segment]) -> bool {
        self.registry.with(self.queue_pair, |entries| {
            let is_mappable = |segment: &Segment| {
                let (key, address, length) = (segment.key, segment.address, segment.length.into());
                let found = self.local(entries, key, address, length, false);
                length == 0 || found.is_some_and(|found| found.span.place().is_some())
            };
            list.iter().all(is_mappable)
        })
    }

    /// Calls `visit` for each contiguous memory range of a part of a message, in order. The part
    /// has `length` bytes, and begins at byte `offset` of the message. `list` is the scatter/gather
    /// list of the message. `visit` gets the memory range, and the positions of its bytes within
    /// the part. If `write` is set, the memory must permit local writes.
    #[inline]
    fn for_each_part(
        &self,
        list: &[Segment],
        offset: u32,
        length: usize,
        write: bool,
        mut visit: impl FnMut(&AccessibleSpan<'_>, Range<usize>) -> Result<(), Inaccessible>,
    ) -> Result<(), LocalFault> {
        self.registry.with(self.queue_pair, |entries| {
            let mut part = |segment: &Segment, skip: u64, bytes: Range<usize>| {
                let address = (segment.address.checked_add(skip)).ok_or(LocalFault::Protection)?;
                let length = bytes.len() as u64;
                let found = entries.local(self.domain, segment.key, address, length, write)?;
                visit(&found, bytes).map_err(|_| LocalFault::Protection)
            };
            // The most frequent case: a single segment.
            if let [only] = list
                && offset == 0
                && (1..=only.length as usize).contains(&length)
            {
                return part(only, 0, 0..length);
            }
            let mut done = 0;
            for (segment, skip, length) in pieces(list, offset, length) {
                part(segment, skip, done..done + length)?;
                done += length;
            }
            if done == length {
                Ok(())
            } else {
                Err(LocalFault::Protection)
            }
        })
    }

    /// Copies `length` bytes of a message of this queue pair to the memory ranges `to`. The bytes
    /// begin at byte `offset` of the message. `list` is the scatter/gather list of the message.
    pub(crate) fn copy_out(
        &self,
        list: &[Segment],
        offset: u32,
        length: usize,
        to: &[Piece<'_>],
    ) -> Result<(), LocalFault> {
        self.for_each_part(list, offset, length, false, |found, bytes| {
            let mut place = found.offset;
            for part in Piece::parts(to, bytes) {
                found.span.copy_to_piece(place, &part)?;
                place += part.length() as u64;
            }
            Ok(())
        })
    }

    /// Copies `length` bytes of the memory ranges `from` to a message of this queue pair, beginning
    /// at byte `offset` of the message. `list` is the scatter/gather list of the message.
    pub(crate) fn copy_in(
        &self,
        list: &[Segment],
        offset: u32,
        length: usize,
        from: &[Piece<'_>],
    ) -> Result<(), LocalFault> {
        self.for_each_part(list, offset, length, true, |found, bytes| {
            let mut place = found.offset;
            for part in Piece::parts(from, bytes) {
                found.span.copy_from_piece(place, &part)?;
                place += part.length() as u64;
            }
            Ok(())
        })
    }

    /// Copies `length` bytes of the memory ranges `from` to the memory `to`. The address and the
    /// remote key in `to` come from a request of the peer. The memory must permit remote writes.
    pub(crate) fn copy_in_remote(
        &self,
        to: Remote,
        length: usize,
        from: &[Piece<'_>],
    ) -> Result<(), RemoteFault> {
        self.registry.with(self.queue_pair, |entries| {
            let found = self.remote(entries, to, length as u64, AccessFlags::REMOTE_WRITE);
            let found = found.ok_or(RemoteFault::Access)?;
            let mut place = found.offset;
            for part in Piece::parts(from, 0..length) {
                let copied = found.span.copy_from_piece(place, &part);
                copied.map_err(|_| RemoteFault::Access)?;
                place += part.length() as u64;
            }
            Ok(())
        })
    }

    fn atomic(
        &self,
        key: u32,
        address: u64,
        operation: impl FnOnce(&super::Span, u64) -> Option<u64>,
    ) -> Result<u64, RemoteFault> {
        // IBTA 9.4.5: a request whose address is not a multiple of eight is invalid.
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Invalid);
        }
        self.registry.with(self.queue_pair, |entries| {
            let access = AccessFlags::REMOTE_ATOMIC;
            let found = entries.remote(self.domain, self.queue_pair, key, address, 8, access)?;
            operation(found.span, found.offset).ok_or(RemoteFault::Access)
        })
    }
}

impl Memory for View<'_> {
    #[inline]
    fn gather(&self, list: &[Segment], offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        self.for_each_part(list, offset, out.len(), false, |found, bytes| {
            found.span.read(found.offset, &mut out[bytes])
        })
    }

    fn gather_parts<'p>(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        mut parts: impl Iterator<Item = &'p mut [u8]>,
    ) -> Result<(), LocalFault> {
        let mut rest: &mut [u8] = &mut [];
        self.for_each_part(list, offset, length as usize, false, |found, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                if rest.is_empty() {
                    rest = parts.next().ok_or(Inaccessible)?;
                }
                let count = rest.len().min(bytes.len() - done);
                let part = rest.split_off_mut(..count).ok_or(Inaccessible)?;
                found.span.read(found.offset + done as u64, part)?;
                done += count;
            }
            Ok(())
        })
    }

    #[inline]
    fn scatter(&self, list: &[Segment], offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        self.for_each_part(list, offset, data.len(), true, |found, bytes| {
            found.span.write(found.offset, &data[bytes])
        })
    }

    fn scatter_parts<'p>(
        &self,
        list: &[Segment],
        offset: u32,
        length: u32,
        mut parts: impl Iterator<Item = &'p [u8]>,
    ) -> Result<(), LocalFault> {
        let mut rest: &[u8] = &[];
        self.for_each_part(list, offset, length as usize, true, |found, bytes| {
            let mut done = 0;
            while done < bytes.len() {
                if rest.is_empty() {
                    rest = parts.next().ok_or(Inaccessible)?;
                }
                let count = rest.len().min(bytes.len() - done);
                let part = rest.split_off(..count).ok_or(Inaccessible)?;
                found.span.write(found.offset + done as u64, part)?;
                done += count;
            }
            Ok(())
        })
    }

    fn check_remote(
        &self,
        key: u32,
        address: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        if length == 0 {
            return Ok(());
        }
        self.registry.with(self.queue_pair, |entries| {
            let length = u64::from(length);
            entries
                .remote(self.domain, self.queue_pair, key, address, length, access)
                .map(drop)
        })
    }

    fn read_remote(&self, key: u32, address: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        if out.is_empty() {
            return Ok(());
        }
        self.registry.with(self.queue_pair, |entries| {
            let (length, access) = (out.len() as u64, AccessFlags::REMOTE_READ);
            let found =
                entries.remote(self.domain, self.queue_pair, key, address, length, access)?;
            found
                .span
                .read(found.offset, out)
                .map_err(|_| RemoteFault::Access)
        })
    }

    fn write_remote(&self, key: u32, address: u64, data: &[u8]) -> Result<(), RemoteFault> {
        if data.is_empty() {
            return Ok(());
        }
        self.registry.with(self.queue_pair, |entries| {
            let (length, access) = (data.len() as u64, AccessFlags::REMOTE_WRITE);
            let found =
                entries.remote(self.domain, self.queue_pair, key, address, length, access)?;
            found
                .span
                .write(found.offset, data)
                .map_err(|_| RemoteFault::Access)
        })
    }

    fn write_remote_parts<'p>(
        &self,
        key: u32,
        address: u64,
        length: u32,
        parts: impl Iterator<Item = &'p [u8]> + Clone,
    ) -> Result<(), RemoteFault> {
        self.registry.with(self.queue_pair, |entries| {
            let (length, access) = (u64::from(length), AccessFlags::REMOTE_WRITE);
            let found =
                entries.remote(self.domain, self.queue_pair, key, address, length, access)?;
            let mut offset = found.offset;
            for part in parts {
                let written = found.span.write(offset, part);
                written.map_err(|_| RemoteFault::Access)?;
                offset += part.len() as u64;
            }
            Ok(())
        })
    }

    fn compare_swap(
        &self,
        key: u32,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, RemoteFault> {
        self.atomic(key, address, |span, offset| {
            span.compare_swap(offset, compare, swap).ok()
        })
    }

    fn fetch_add(&self, key: u32, address: u64, add: u64) -> Result<u64, RemoteFault> {
        self.atomic(key, address, |span, offset| {
            span.fetch_add(offset, add).ok()
        })
    }

    fn write_word(&self, key: u32, address: u64, bytes: [u8; 8]) -> Result<(), RemoteFault> {
        if !address.is_multiple_of(8) {
            return Err(RemoteFault::Invalid);
        }
        self.registry.with(self.queue_pair, |entries| {
            let access = AccessFlags::REMOTE_WRITE;
            let found = entries.remote(self.domain, self.queue_pair, key, address, 8, access)?;
            let stored = found.span.store(found.offset, u64::from_ne_bytes(bytes));
            stored.map_err(|_| RemoteFault::Access)
        })
    }

    fn flush(
        &self,
        key: u32,
        range: Option<(u64, u32)>,
        access: AccessFlags,
    ) -> Result<(), RemoteFault> {
        self.registry.with(self.queue_pair, |entries| {
            let range = range.or_else(|| Some((entries.start(key)?, 0)));
            let (address, length) = range.ok_or(RemoteFault::Access)?;
            let length = u64::from(length);
            (entries.remote(self.domain, self.queue_pair, key, address, length, access)).map(drop)
        })?;
        // Earlier writes of all threads that this thread knows of are visible to a thread that sees
        // the flush complete.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn withdraw_window(&self, binding: &WindowBinding) -> Withdrawal {
        self.registry.withdraw_window(self.domain, binding)
    }

    fn withdraw(&self, key: u32) -> Withdrawal {
        self.registry.withdraw(self.domain, self.queue_pair, key)
    }

    fn restore_window(&self, key: u32) {
        self.registry.restore_window(key);
    }

    fn bind(&self, binding: &WindowBinding) -> Result<(), LocalFault> {
        self.registry.bind(self.domain, self.queue_pair, binding)
    }

    fn invalidate(&self, key: u32) -> Result<(), LocalFault> {
        self.registry
            .invalidate(self.domain, self.queue_pair, key)
            .ok_or(LocalFault::Bind)
    }

    fn invalidate_remote(&self, key: u32) -> Result<(), RemoteFault> {
        self.registry
            .invalidate(self.domain, self.queue_pair, key)
            .ok_or(RemoteFault::Access)
    }
}

/// Splits a part of a message at the boundaries of the segments in `list`, the scatter/gather list
/// of the message. The part has `length` bytes, and begins at byte `offset` of the message. Returns
/// for each piece its segment, its offset in the segment, and its number of bytes. Skips empty
/// segments, so their keys are not checked.
pub(super) fn pieces(
    list: &[Segment],
    offset: u32,
    length: usize,
) -> impl Iterator<Item = (&Segment, u64, usize)> {
    let mut skip = u64::from(offset);
    let mut left = length;
    list.iter().filter_map(move |segment| {
        let size = u64::from(segment.length);
        if left == 0 || skip >= size {
            skip = skip.saturating_sub(size);
            return None;
        }
        let begin = std::mem::take(&mut skip);
        let piece = left.min((size - begin) as usize);
        left -= piece;
        Some((segment, begin, piece))
    })
}
