//! Mappings of the arena's file.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::c_void;

use crate::descriptor::Opening;

/// The size of a huge page, of which a segment begins at a multiple.
pub(super) const HUGE: usize = 2 << 20;

/// A part of the arena's file, mapped for reading and writing until it is dropped. A child of `fork`
/// does not have it: it would write to the memory of its parent.
#[derive(Debug)]
pub(super) struct Segment {
    start: NonNull<c_void>,
    length: usize,
    offset: u64,
}

// SAFETY: it owns the mapping, and touches it by atomic accesses alone.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps `length` bytes of the file from `offset` on; both are multiples of [`HUGE`].
    pub(super) fn map(file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<Self> {
        let out_of_range = |_| io::Error::from_raw_os_error(libc::ENOMEM);
        let place = libc::off_t::try_from(offset).map_err(out_of_range)?;
        // No child of a `fork` may inherit the file, not even of a fork between the two calls.
        let _opening = Opening::begin();
        let room = length
            .checked_add(HUGE)
            .ok_or(io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: new mappings at an address that the kernel chooses: addresses only, in which there
        // is a place for the segment wherever it is aligned; then the segment over a part of it.
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

    /// Returns the address of the segment's first byte.
    pub(super) fn address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Returns the length in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns where the segment is in the file.
    pub(super) fn place(&self) -> Range<u64> {
        self.offset..self.offset + self.length as u64
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's; nothing in it is in use, says its owner.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

/// Makes the kernel bring in all pages of a range that is mapped and not yet handed out, huge ones if it can. Fails if
/// there are none. Pages that are there stay as they are.
pub(super) fn populate(address: usize, length: usize) -> io::Result<()> {
    let start = ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: bringing pages in changes no byte of them.
    let answer = unsafe {
        if length >= HUGE {
            // An advice: where shared memory has no huge pages, it goes without them.
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
    // The kernel is older than 5.14.
    for at in (0..length).step_by(page_size()) {
        // SAFETY: the caller's range is mapped.
        let byte = unsafe { AtomicU8::from_ptr(start.byte_add(at).cast()) };
        byte.fetch_or(0, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the size of a page that is not huge.
pub(super) fn page_size() -> usize {
    // SAFETY: the call has no conditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the system has pages")
}

/// Returns the largest size in bytes that this process may give a file (`RLIMIT_FSIZE`). A process that
/// asks for more is sent the signal SIGXFSZ, which ends it unless it has a handler.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: there is room for the answer. The call fails only for limits that do not exist.
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
