//! Memory of this crate's own: zeroed, aligned, and at an address that never changes.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::device_buffer::DeviceBuffer;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};

/// The size of a page that is not huge.
pub(crate) const PAGE: usize = 4096;

/// Bits of a mapping's flags that hold the logarithm of a huge page's size (`MAP_HUGE_SHIFT`).
const HUGE_SHIFT: u32 = 26;

/// Owner of memory from the allocator, from a device, or of a mapping.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    len: usize,
    source: Source,
}

/// Where the memory is given back.
enum Source {
    Allocator(Layout),
    /// `start` and `len` of what is unmapped, which may be more than is used.
    Mapping(NonNull<u8>, usize),
    /// By the last that has the buffer: this, or what is registered of it.
    Device(Arc<DeviceBuffer>),
}

// SAFETY: the memory is owned as that of a `Box<[u8]>` is.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

impl Allocation {
    /// `len` zeroed bytes of the allocator, aligned to `align` and at least to a page.
    pub(crate) fn zeroed(len: usize, align: usize) -> Result<Self> {
        refuse_nothing(len)?;
        let layout =
            Layout::from_size_align(len, align.max(PAGE)).map_err(|_| too_much(len, align))?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Ok(Self {
                start,
                len,
                source: Source::Allocator(layout),
            }),
            None => {
                let object = format!("{len} bytes of memory");
                Err(Error::verb("alloc", object, Errno(libc::ENOMEM)))
            }
        }
    }

    /// `len` zeroed bytes of the device that the domain is of, aligned as [`Self::zeroed`] does it. There
    /// may be other reasons than the size why there are none.
    pub(crate) fn of_device(
        domain: &Arc<ProtectionDomainHandle>,
        len: usize,
        align: usize,
    ) -> Result<Self> {
        refuse_nothing(len)?;
        // It is aligned to pages, and for more than that there has to be room.
        let slack = align.saturating_sub(PAGE);
        let size = len.checked_add(slack).ok_or_else(|| too_much(len, align))?;
        let buffer = DeviceBuffer::allocate(domain, size)?;
        let ahead = buffer.start().as_ptr().align_offset(align.max(PAGE));
        if ahead > slack {
            return Err(Error::invalid("memory of the device", "it is not aligned"));
        }
        Ok(Self {
            // SAFETY: at most `slack` bytes ahead in a buffer of `len` and `slack` bytes.
            start: unsafe { buffer.start().add(ahead) },
            len,
            source: Source::Device(Arc::new(buffer)),
        })
    }

    /// `len` zeroed bytes in a mapping of huge pages of this size, a power of two.
    pub(crate) fn huge(len: usize, align: usize, page: usize) -> Result<Self> {
        let size = i32::try_from(page.trailing_zeros()).expect("a logarithm fits") << HUGE_SHIFT;
        Self::mapped(len, align, page, libc::MAP_HUGETLB | size)
    }

    /// `len` zeroed bytes that the kernel is asked to keep in huge pages of this size, when it can.
    pub(crate) fn transparent(len: usize, align: usize, page: usize) -> Result<Self> {
        let memory = Self::mapped(len, align.max(page), PAGE, 0)?;
        let Source::Mapping(start, mapped) = memory.source else {
            unreachable!("it is mapped");
        };
        // SAFETY: the range is that of a mapping which this owns; the advice changes no byte.
        let answer = unsafe { libc::madvise(start.as_ptr().cast(), mapped, libc::MADV_HUGEPAGE) };
        if answer != 0 {
            let object = format!("{len} bytes of memory");
            return Err(Error::verb("madvise", object, Errno::last()));
        }
        Ok(memory)
    }

    /// Maps `len` bytes, rounded up to whole pages of size `page`, with additional flags.
    fn mapped(len: usize, align: usize, page: usize, flags: i32) -> Result<Self> {
        refuse_nothing(len)?;
        let slack = align.saturating_sub(page);
        let size = len
            .checked_next_multiple_of(page)
            .and_then(|size| size.checked_add(slack))
            .filter(|size| align.is_power_of_two() && isize::try_from(*size).is_ok())
            .ok_or_else(|| too_much(len, align))?;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let object = format!("{len} bytes of memory in pages of {page}");
            return Err(Error::verb("mmap", object, Errno::last()));
        }
        let mapping = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at 0");
        let ahead = if slack == 0 {
            0
        } else {
            mapping.as_ptr().align_offset(align)
        };
        Ok(Self {
            // SAFETY: at most `slack` bytes ahead in a mapping of `len` and `slack` bytes.
            start: unsafe { mapping.add(ahead) },
            len,
            source: Source::Mapping(mapping, size),
        })
    }

    /// A part of a file, shared with all who map or write it.
    ///
    /// # Safety
    ///
    /// Nobody else accesses that part of the file, or makes the file shorter, for as long as the
    /// allocation exists.
    pub(crate) unsafe fn file(
        file: std::os::fd::BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<Self> {
        use std::os::fd::AsRawFd;
        refuse_nothing(len)?;
        let place = i64::try_from(offset)
            .map_err(|_| Error::invalid("offset in a file", format!("{offset} is too large")))?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                place,
            )
        };
        if start == libc::MAP_FAILED {
            let object = format!("{len} bytes of a file from {offset} on");
            return Err(Error::verb("mmap", object, Errno::last()));
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0");
        // SAFETY: just mapped, readable and writable; the caller vouches for the file.
        Ok(unsafe { Self::from_mapping(start, len) })
    }

    /// Takes over a mapping.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `start` are mapped for reading and writing, nobody else accesses them,
    /// and nobody else unmaps them.
    pub(crate) unsafe fn from_mapping(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            source: Source::Mapping(start, len),
        }
    }

    /// The device's buffer that it is of.
    pub(super) fn device_buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        match &self.source {
            Source::Device(buffer) => Some(buffer),
            Source::Allocator(_) | Source::Mapping(..) => None,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is owned and initialised: zeroed, or a file's.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The bytes, without borrowing them.
    pub(super) fn span(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }

    /// Has the kernel bring all pages in now, by writing to each what it holds.
    pub(crate) fn touch(&mut self) {
        for page in self.bytes_mut().chunks_mut(PAGE) {
            let first = &raw mut page[0];
            // SAFETY: the byte is inside of this memory, which is exclusively borrowed. The
            // accesses are volatile so that they happen.
            unsafe { first.write_volatile(first.read_volatile()) };
        }
    }
}

fn refuse_nothing(len: usize) -> Result<()> {
    if len == 0 {
        let reason = "a region of 0 bytes cannot be registered";
        return Err(Error::invalid("memory region", reason));
    }
    Ok(())
}

fn too_much(len: usize, align: usize) -> Error {
    let reason = format!("no memory of {len} bytes aligned to {align}");
    Error::invalid("memory region", reason)
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match &self.source {
            // SAFETY: `start` was allocated with `layout` and is freed once, here. Whoever
            // registered the memory owns this, and drops it after the deregistration.
            &Source::Allocator(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            Source::Device(_) => {}
            &Source::Mapping(start, len) => {
                // SAFETY: the mapping is this one's, and unmapped once, here; as above.
                if unsafe { libc::munmap(start.as_ptr().cast(), len) } != 0 {
                    let errno = Errno::last();
                    tracing::error!(%errno, "munmap failed; the memory is leaked");
                }
            }
        }
    }
}
