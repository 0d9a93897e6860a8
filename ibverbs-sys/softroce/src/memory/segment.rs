//! Mappings of segments (ranges) of the arena's file, from which memory for regions is allocated.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_void;

use crate::descriptor::Opening;

/// Size of a huge page in bytes. The address and the length of each mapping of the arena's file are
/// multiples of this size, so that the kernel can use huge pages.
pub(super) const HUGE: usize = 2 << 20;

/// A mapping of a segment of the arena's file, readable and writable. Dropping this value unmaps
/// the segment. Children of `fork` do not inherit the mapping, because they would write to the
/// memory of their parent.
#[derive(Debug)]
pub(super) struct Segment {
    start: NonNull<c_void>,
    length: usize,
    offset: u64,
}

// SAFETY: a `Segment` owns its mapping, and the bytes are only accessed atomically.
unsafe impl Send for Segment {}
// SAFETY: a `Segment` owns its mapping, and the bytes are only accessed atomically.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps a part of the arena's file `file` into memory: `length` bytes from `offset` on. Both
    /// numbers must be multiples of [`HUGE`].
    pub(super) fn map(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        let out_of_range = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        let place = libc::off_t::try_from(offset).map_err(out_of_range)?;
        // While this guard exists, no child is forked: a child must not inherit the mapping between
        // the two system calls.
        let _opening = Opening::begin();
        let room = length
            .checked_add(HUGE)
            .ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: the first mapping reserves addresses that the kernel chooses, enough for an
        // aligned segment. The second mapping replaces a part of the reservation, and the rest is
        // unmapped. No other memory is affected.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let reserved = mapped(libc::mmap(
                ptr::null_mut(),
                room,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            ))?;
            let ahead = reserved.cast::<u8>().as_ptr().align_offset(HUGE);
            let start = reserved.byte_add(ahead);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
            let file = file.as_raw_fd();
            let answer = mapped(libc::mmap(
                start.as_ptr(),
                length,
                rights,
                flags,
                file,
                place,
            ));
            if let Err(error) = answer {
                libc::munmap(reserved.as_ptr(), room);
                return Err(error);
            }
            if ahead > 0 {
                libc::munmap(reserved.as_ptr(), ahead);
            }
            if ahead < HUGE {
                libc::munmap(start.byte_add(length).as_ptr(), HUGE - ahead);
            }
            let segment = Self {
                start,
                length,
                offset,
            };
            if libc::madvise(start.as_ptr(), length, libc::MADV_DONTFORK) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(segment)
        }
    }

    /// Returns the address of the mapping's first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Returns the length of the mapping in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the range of the in-memory file that this segment maps, in bytes from the start of
    /// the file.
    pub(super) fn place(&self) -> Range<u64> {
        self.offset..self.offset + self.length as u64
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this `Segment` owns the mapping. The arena drops a segment only when none of its
        // blocks exist.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// Allocates all pages of the `length` mapped bytes at `address`, with huge pages if possible.
/// Later accesses then cannot fail for lack of memory. Fails if there is not enough memory. Pages
/// that exist already keep their contents.
pub(super) fn populate(address: usize, length: usize) -> io::Result<()> {
    let start = ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: allocating pages changes no byte.
    let answer = unsafe {
        if length >= HUGE {
            // This is only a hint: without support for huge pages of shared memory, it has no
            // effect.
            libc::madvise(start, length, libc::MADV_HUGEPAGE);
        }
        libc::madvise(start, length, libc::MADV_POPULATE_WRITE)
    };
    if answer == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EINVAL) {
        return Err(error);
    }
    // The kernel is older than 5.14 and does not support `MADV_POPULATE_WRITE`.
    for at in (0..length).step_by(page_size()) {
        // SAFETY: the byte is inside the caller's range, which is mapped.
        let byte = unsafe { AtomicU8::from_ptr(start.byte_add(at).cast()) };
        byte.fetch_or(0, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the size in bytes of a normal page of memory.
pub(super) fn page_size() -> usize {
    // SAFETY: the call takes no pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the system has pages")
}

/// Returns the maximum size in bytes of a file that this process creates (`RLIMIT_FSIZE`). A write
/// beyond this size raises SIGXFSZ, which ends a process that has no handler for this signal.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writes. The call fails only for unknown resources.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return 0;
    }
    limit.rlim_cur
}

fn mapped(start: *mut c_void) -> io::Result<NonNull<c_void>> {
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start).expect("the kernel maps nothing at 0"))
}
