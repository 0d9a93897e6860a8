//! Mappings of memory that other processes have mapped, too. Only this module creates and accesses
//! such mappings.
//!
//! Other processes may write to the memory at any time, and may end at any time. So no references
//! to it exist except to atomics, and its contents are not trusted. An access never faults: each
//! file is in memory, is at least as long as its mapping, and is sealed against shrinking.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use libc::c_void;
use rustix::fs::{MemfdFlags, SealFlags};

use super::record_array::Record;
use super::ring::{Chunk, ControlWords, Slot};
use crate::descriptor::{Descriptor, Opening};
use crate::memory::{Piece, copy};
use crate::sync::Line;

/// A type whose values can be in memory that other processes write to.
///
/// # Safety
/// The type must be an atomic, or an array or `repr(C)` structure of atomics, and must have no
/// padding.
pub(super) unsafe trait Plain: Sync {}

// SAFETY: an atomic has no padding.
unsafe impl Plain for AtomicU32 {}
// SAFETY: an atomic, which has no padding.
unsafe impl Plain for AtomicU8 {}
// SAFETY: an atomic has no padding.
unsafe impl Plain for AtomicU64 {}
// SAFETY: `repr(C)` arrays of `AtomicU64`, aligned to their size, have no padding.
unsafe impl Plain for Line {}
// SAFETY: `repr(C)` arrays of `AtomicU64`, aligned to their size, have no padding.
unsafe impl Plain for Slot {}
// SAFETY: an array of `AtomicU64` has no padding.
unsafe impl Plain for Chunk {}
// SAFETY: a `repr(C)` structure of two `Line`s has no padding.
unsafe impl Plain for ControlWords {}
// SAFETY: `repr(C)` arrays of `AtomicU64`, aligned to their size, have no padding.
unsafe impl Plain for Record {}

/// Access rights of this process to a [`Map`] (mapping of a shared file): reading only, or reading
/// and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    Write,
}

/// A mapping of a range of a shared in-memory file. Dropping this value unmaps the range. Children
/// of `fork` do not inherit the mapping.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<c_void>,
    length: usize,
    rights: Rights,
}

// SAFETY: a `Map` owns its mapping, and the bytes are only accessed atomically.
unsafe impl Send for Map {}
// SAFETY: a `Map` owns its mapping, and the bytes are only accessed atomically.
unsafe impl Sync for Map {}

/// Creates an in-memory file with the name `name` and a fixed length in bytes, and maps the file
/// for writing. If `keeps` is set, only this process can write to the file, and peers can only read
/// it.
///
/// # Errors
/// `EFBIG` if the length exceeds the process's file size limit. Without this check, the kernel
/// would end the process by a signal.
pub(super) fn create(name: &str, length: usize, keeps: bool) -> io::Result<(Descriptor, Map)> {
    if length as u64 > crate::memory::file_size_limit() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not support this flag; newer kernels may require it.
    let file = Descriptor::open(|| {
        rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
    })?;
    rustix::fs::ftruncate(&file, length as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let map = Map::of(file.as_fd(), 0..length as u64, Rights::Write)?;
    if keeps {
        // Kernels before 5.1 do not support this seal; peers could then write to memory that they
        // should only read.
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL)?;
    Ok((file, map))
}

/// Checks that the bytes `range` of `file` can be mapped and then accessed without a fault, even if
/// other processes change or close the file. Fails unless the file is in memory, is long enough,
/// and has a seal against shortening.
pub(super) fn check(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    /// Type of the file system that holds in-memory files (`TMPFS_MAGIC` of `linux/magic.h`). Files
    /// of other file systems are refused, because the first access to a page of such a file can
    /// fail.
    const TMPFS: i128 = 0x0102_1994;
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if i128::from(rustix::fs::fstatfs(file)?.f_type) != TMPFS {
        return Err(invalid("a peer's file is not in memory"));
    }
    // The seal is checked first: a file that has it cannot get shorter after its size was read.
    if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(invalid("a peer's file can be made shorter"));
    }
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    if range.start >= range.end || range.end > size {
        return Err(invalid("a peer's file is too short"));
    }
    Ok(())
}

impl Map {
    /// Maps the bytes `range` of `file` with the access rights `rights`. The start of the range
    /// must be a multiple of the page size.
    pub(super) fn of(file: BorrowedFd<'_>, range: Range<u64>, rights: Rights) -> io::Result<Self> {
        check(file, &range)?;
        let too_large = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        let length = usize::try_from(range.end - range.start).map_err(too_large)?;
        let offset = libc::off_t::try_from(range.start).map_err(too_large)?;
        let protection = match rights {
            Rights::Read => libc::PROT_READ,
            Rights::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let file = file.as_raw_fd();
        // While this guard exists, no child is forked: a child must not inherit the mapping between
        // the two system calls.
        let _opening = Opening::begin();
        // SAFETY: this creates a mapping at an address that the kernel chooses, and so changes no
        // existing mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = Self {
            start,
            length,
            rights,
        };
        // SAFETY: the range is the mapping that was created above.
        if unsafe { libc::madvise(start.as_ptr(), length, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(map)
    }

    /// Returns the length of this mapping in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Fills `out` with the bytes of the mapping that begin at `offset`. Returns `None` if the
    /// mapping does not contain all of these bytes.
    #[cfg(test)]
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Option<()> {
        let address = self.locate(offset, out.len())?;
        // SAFETY: `locate` has checked the range. `Map::of` has checked that the bytes stay
        // accessible.
        unsafe { copy::read(address, out) }.ok()
    }

    /// Copies `data` to the mapping at the byte offset `offset`, in ascending order. Returns `None`
    /// if the range is not inside the mapping or the mapping is read-only.
    #[cfg(test)]
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        let address = self.locate(offset, data.len())?;
        if self.rights != Rights::Write {
            return None;
        }
        // SAFETY: `locate` has checked the range. `Map::of` has checked that the bytes stay
        // accessible, and the mapping is writable.
        unsafe { copy::write(address, data) }.ok()
    }

    /// Copies the memory ranges `pieces` of this process to this mapping, beginning at byte
    /// `offset`, one range after the other and in ascending order. Returns `None` if the bytes do
    /// not fit into the mapping, if the mapping is read-only, or if a byte could not be copied.
    #[inline]
    pub(super) fn put(&self, offset: usize, pieces: &[Piece<'_>]) -> Option<()> {
        let length = Piece::total(pieces);
        let mut address = self.locate(offset, length)?;
        if self.rights != Rights::Write {
            return None;
        }
        for piece in pieces {
            // SAFETY: the creator of the piece guarantees that it may be read. `locate` has checked
            // the range of the mapping, whose bytes stay accessible, and the mapping is writable.
            unsafe { copy::copy(piece.address(), address, piece.length()) }.ok()?;
            address += piece.length();
        }
        Some(())
    }

    /// Copies bytes of the mapping, beginning at byte `offset`, to the memory ranges `pieces` of
    /// this process. Returns `None` if not all bytes are inside the mapping, if a memory range is
    /// not writable, or if a byte could not be copied.
    #[inline]
    pub(super) fn get(&self, offset: usize, pieces: &[Piece<'_>]) -> Option<()> {
        let length = Piece::total(pieces);
        let mut address = self.locate(offset, length)?;
        if !pieces.iter().all(Piece::is_writable) {
            return None;
        }
        for piece in pieces {
            // SAFETY: the creator of the piece guarantees that it may be written. `locate` has
            // checked the range of the mapping, whose bytes stay accessible.
            unsafe { copy::copy(address, piece.address(), piece.length()) }.ok()?;
            address += piece.length();
        }
        Some(())
    }

    /// Returns the eight bytes at `offset` as an atomic. Returns `None` if the bytes are not inside
    /// the mapping or not aligned, or if the mapping is read-only.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let address = self.locate(offset, size_of::<u64>())?;
        let pointer = ptr::with_exposed_provenance_mut::<u64>(address);
        if self.rights != Rights::Write || !pointer.is_aligned() {
            return None;
        }
        // SAFETY: the word is inside the mapping and aligned, and all accesses to the mapping are
        // atomic. The reference borrows `self`.
        Some(unsafe { AtomicU64::from_ptr(pointer) })
    }

    /// Returns the address of the `length` bytes at `offset` of the mapping, or `None` if they are
    /// not inside the mapping.
    #[inline]
    fn locate(&self, offset: usize, length: usize) -> Option<usize> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.start.as_ptr().expose_provenance() + offset)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this `Map` owns the mapping. All references to its bytes borrow the `Map` or, in
        // `MappedArray`, hold an `Arc` of it.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// An array of values in a mapping of a shared file. The file stays mapped while the array is used.
#[derive(Debug)]
pub(super) struct MappedArray<T> {
    _map: Arc<Map>,
    start: NonNull<T>,
    count: usize,
    values: PhantomData<[T]>,
}

// SAFETY: the values are atomics, and the `Arc` keeps the mapping at its address.
unsafe impl<T: Plain> Send for MappedArray<T> {}
// SAFETY: the values are atomics, and the `Arc` keeps the mapping at its address.
unsafe impl<T: Plain> Sync for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Returns a view of the `count` values at byte `offset` of the mapping `map`. Returns `None`
    /// if the values are not inside the mapping or not aligned. The caller must not store to values
    /// of a read-only mapping, because a store would fault.
    pub(super) fn of(map: &Arc<Map>, offset: usize, count: usize) -> Option<Self> {
        let length = count.checked_mul(size_of::<T>())?;
        let start = ptr::with_exposed_provenance_mut::<T>(map.locate(offset, length)?);
        start.is_aligned().then_some(Self {
            _map: Arc::clone(map),
            start: NonNull::new(start)?,
            count,
            values: PhantomData,
        })
    }
}

impl<T> Deref for MappedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `of` has checked that the values are inside the mapping and aligned. `_map` keeps
        // the mapping. `T: Plain` consists of atomics, for which any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

/// A single value in a mapping of a shared file. The file stays mapped while the value is used.
#[derive(Debug)]
pub(super) struct MappedValue<T>(MappedArray<T>);

impl<T: Plain> MappedValue<T> {
    /// Returns a view of the value at byte `offset` of the mapping `map`. Returns `None` if the
    /// value is not inside the mapping or not aligned. The caller must not store to a value of a
    /// read-only mapping, because a store would fault.
    pub(super) fn of(map: &Arc<Map>, offset: usize) -> Option<Self> {
        MappedArray::of(map, offset, 1).map(Self)
    }
}

impl<T> Deref for MappedValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn two_mappings_show_the_same_bytes_and_nothing_beyond() {
        let (file, map) = create("test", 2 * PAGE as usize, false).unwrap();
        let second = Map::of(file.as_fd(), PAGE..2 * PAGE, Rights::Write).unwrap();
        assert_eq!((map.length(), second.length()), (8192, 4096));
        map.write(5000, b"over the page").unwrap();
        let mut out = [0; 13];
        second.read(5000 - 4096, &mut out).unwrap();
        assert_eq!(&out, b"over the page");
        for offset in [8192 - 12, 8192, usize::MAX - 5] {
            assert_eq!(map.read(offset, &mut out), None);
            assert_eq!(map.write(offset, &out), None);
        }
        let word = map.word(8184).unwrap();
        assert!(map.word(8185).is_none() && map.word(8188).is_none() && map.word(8192).is_none());
        word.store(7, Ordering::Relaxed);
        assert_eq!(second.word(4088).unwrap().load(Ordering::Relaxed), 7);

        let map = Arc::new(map);
        let part = MappedArray::<AtomicU64>::of(&map, 8176, 2).unwrap();
        assert_eq!(part[1].load(Ordering::Relaxed), 7);
        assert!(MappedArray::<AtomicU64>::of(&map, 8176, 3).is_none());
        assert!(MappedArray::<AtomicU64>::of(&map, 8175, 1).is_none());
        assert!(MappedArray::<AtomicU64>::of(&map, 0, usize::MAX).is_none());
        assert!(MappedValue::<ControlWords>::of(&map, 8192 - 64).is_none());
        let marks = MappedValue::<ControlWords>::of(&map, 8192 - 128).unwrap();
        drop(map);
        assert!(!format!("{marks:?}").is_empty());
    }

    #[test]
    fn other_processes_cannot_write_to_a_read_only_file() {
        let (file, map) = create("test", PAGE as usize, true).unwrap();
        assert!(Map::of(file.as_fd(), 0..PAGE, Rights::Write).is_err());
        let theirs = Map::of(file.as_fd(), 0..PAGE, Rights::Read).unwrap();
        map.write(8, b"told").unwrap();
        let mut out = [0; 4];
        theirs.read(8, &mut out).unwrap();
        assert_eq!(&out, b"told");
        assert!(theirs.write(8, &out).is_none() && theirs.word(8).is_none());
    }

    #[test]
    fn a_file_that_can_shrink_is_not_mapped() {
        let (file, _map) = create("test", PAGE as usize, false).unwrap();
        for range in [0..2 * PAGE, PAGE..2 * PAGE, 0..0] {
            assert!(Map::of(file.as_fd(), range, Rights::Read).is_err());
        }
        let loose = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, PAGE).unwrap();
        assert!(Map::of(loose.as_fd(), 0..PAGE, Rights::Read).is_err());
        rustix::fs::fcntl_add_seals(&loose, SealFlags::SHRINK).unwrap();
        assert!(Map::of(loose.as_fd(), 0..PAGE, Rights::Read).is_ok());
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Map::of(other.as_fd(), 0..PAGE, Rights::Read).is_err());
    }
}
