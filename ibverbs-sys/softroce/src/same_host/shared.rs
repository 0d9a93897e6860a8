//! Memory that other processes have mapped, too: the only place that makes and touches it.
//!
//! Others may write to it at any time, and may die at any time. So no reference to it is ever made but to atomics,
//! and nothing in it is believed. That it can be touched at all is the kernel's promise: a file that is
//! in memory, that is as long as the mapping, and that nobody can make shorter.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use libc::c_void;
use rustix::fs::{MemfdFlags, SealFlags};

use super::board::Record;
use super::ring::{Chunk, Marks, Slot};
use crate::descriptor::{Descriptor, Opening};
use crate::memory::{Piece, copy};
use crate::sync::Line;

/// What memory of others may be seen as.
///
/// # Safety
/// It is made of atomics alone, in the order in which they are declared, and has no padding.
pub(super) unsafe trait Plain: Sync {}

// SAFETY: an atomic.
unsafe impl Plain for AtomicU8 {}
// SAFETY: atomics, or arrays of them in `repr(C)`, aligned to their size.
unsafe impl Plain for AtomicU32 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU64 {}
// SAFETY: as above.
unsafe impl Plain for Line {}
// SAFETY: as above.
unsafe impl Plain for Slot {}
// SAFETY: as above.
unsafe impl Plain for Chunk {}
// SAFETY: lines.
unsafe impl Plain for Marks {}
// SAFETY: as above.
unsafe impl Plain for Record {}

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Read,
    Write,
}

/// A part of a file in memory, mapped until it is dropped. A child of `fork` does not have it.
#[derive(Debug)]
pub(super) struct Map {
    start: NonNull<c_void>,
    length: usize,
    rights: Rights,
}

// SAFETY: it owns the mapping, whose bytes are reached by atomic accesses alone.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

/// Makes a file in memory with a fixed length in bytes, and maps it for writing. With `keeps`, no other
/// process can map the file for writing.
///
/// Fails with `EFBIG` above the process's limit on the size of files, instead of the signal that ends the
/// process.
pub(super) fn create(name: &str, length: usize, keeps: bool) -> io::Result<(Descriptor, Map)> {
    if length as u64 > crate::memory::file_size_limit() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know that it is no program; newer ones may want to be told.
    let file = Descriptor::open(|| {
        rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
    })?;
    rustix::fs::ftruncate(&file, length as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let map = Map::of(file.as_fd(), 0..length as u64, Rights::Write)?;
    if keeps {
        // Kernels before 5.1 do not know it; then others could write what they should only read.
        let _ = rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
    }
    rustix::fs::fcntl_add_seals(&file, SealFlags::SEAL)?;
    Ok((file, map))
}

/// Whether the bytes of a file can be touched for as long as they are mapped, whatever others do.
pub(super) fn check(file: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    /// `TMPFS_MAGIC` of `linux/magic.h`. Huge pages of another file system may not be there when they are touched.
    const TMPFS: i128 = 0x0102_1994;
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    if i128::from(rustix::fs::fstatfs(file)?.f_type) != TMPFS {
        return Err(invalid("a peer's file is not in memory"));
    }
    // The seal first: from then on it is as long as it is found to be.
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
    /// Maps bytes of a file, from a multiple of the page size on.
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
        // No child of a `fork` has it, not of one between the two calls either.
        let _opening = Opening::begin();
        // SAFETY: a new mapping at an address that the kernel chooses.
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
        // SAFETY: the mapping is this one's.
        if unsafe { libc::madvise(start.as_ptr(), length, libc::MADV_DONTFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(map)
    }

    /// Bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Copies the bytes from `offset` on, if they are inside.
    #[cfg(test)]
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) -> Option<()> {
        let address = self.locate(offset, out.len())?;
        // SAFETY: inside of the mapping, which can be touched.
        unsafe { copy::read(address, out) }.ok()
    }

    /// Copies `data` to the bytes from `offset` on, if they are inside and may be written: in ascending order, the last
    /// ones last.
    #[cfg(test)]
    pub(super) fn write(&self, offset: usize, data: &[u8]) -> Option<()> {
        let address = self.locate(offset, data.len())?;
        if self.rights != Rights::Write {
            return None;
        }
        // SAFETY: inside of the mapping, which can be touched and written.
        unsafe { copy::write(address, data) }.ok()
    }

    /// Copies pieces of this process, one behind the other, to the bytes from `offset` on, if they are inside and may
    /// be written: as [`write`](Self::write). `None`: not all of them could be copied.
    #[inline]
    pub(super) fn put(&self, offset: usize, pieces: &[Piece<'_>]) -> Option<()> {
        let length = Piece::total(pieces);
        let mut address = self.locate(offset, length)?;
        if self.rights != Rights::Write {
            return None;
        }
        for piece in pieces {
            // SAFETY: the piece is registered, and this is inside of the mapping, which can be touched and written.
            unsafe { copy::copy(piece.address(), address, piece.length()) }.ok()?;
            address += piece.length();
        }
        Some(())
    }

    /// Copies the bytes from `offset` on, if they are inside, to pieces of this process, if they may be written. `None`:
    /// not all of them could be copied.
    #[inline]
    pub(super) fn get(&self, offset: usize, pieces: &[Piece<'_>]) -> Option<()> {
        let length = Piece::total(pieces);
        let mut address = self.locate(offset, length)?;
        if !pieces.iter().all(Piece::is_writable) {
            return None;
        }
        for piece in pieces {
            // SAFETY: the piece is registered, and this is inside of the mapping, which can be touched.
            unsafe { copy::copy(address, piece.address(), piece.length()) }.ok()?;
            address += piece.length();
        }
        Some(())
    }

    /// The eight bytes at `offset`, if they are inside, aligned, and may be written.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let address = self.locate(offset, size_of::<u64>())?;
        let pointer = ptr::with_exposed_provenance_mut::<u64>(address);
        if self.rights != Rights::Write || !pointer.is_aligned() {
            return None;
        }
        // SAFETY: inside of the mapping, aligned, and an atomic.
        Some(unsafe { AtomicU64::from_ptr(pointer) })
    }

    /// The address of `length` bytes from `offset` on.
    #[inline]
    fn locate(&self, offset: usize, length: usize) -> Option<usize> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.start.as_ptr().expose_provenance() + offset)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and who refers to what is in it keeps it.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// A part of a mapping, seen as a row of values.
#[derive(Debug)]
pub(super) struct Part<T> {
    _map: Arc<Map>,
    start: NonNull<T>,
    count: usize,
    values: PhantomData<[T]>,
}

// SAFETY: values are atomics, and the mapping stays where it is.
unsafe impl<T: Plain> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Part<T> {}

impl<T: Plain> Part<T> {
    /// `count` values from `offset` on, if they are inside and aligned. Those of a mapping that is not for
    /// writing are only loaded.
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

impl<T> Deref for Part<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: inside of a mapping that is kept, aligned, and atomics, for which any bytes are valid: see `of`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

/// One value in a mapping.
#[derive(Debug)]
pub(super) struct One<T>(Part<T>);

impl<T: Plain> One<T> {
    /// The value at `offset`, as [`Part::of`].
    pub(super) fn of(map: &Arc<Map>, offset: usize) -> Option<Self> {
        Part::of(map, offset, 1).map(Self)
    }
}

impl<T> Deref for One<T> {
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
        let part = Part::<AtomicU64>::of(&map, 8176, 2).unwrap();
        assert_eq!(part[1].load(Ordering::Relaxed), 7);
        assert!(Part::<AtomicU64>::of(&map, 8176, 3).is_none());
        assert!(Part::<AtomicU64>::of(&map, 8175, 1).is_none());
        assert!(Part::<AtomicU64>::of(&map, 0, usize::MAX).is_none());
        assert!(One::<Marks>::of(&map, 8192 - 64).is_none());
        let marks = One::<Marks>::of(&map, 8192 - 128).unwrap();
        drop(map);
        assert!(!format!("{marks:?}").is_empty());
    }

    #[test]
    fn others_only_read_what_is_kept() {
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
    fn a_file_that_could_vanish_is_not_mapped() {
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
