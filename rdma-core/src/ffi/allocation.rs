//! Memory that this crate allocates: zeroed, aligned, and at an address that never changes.
//!
//! The memory comes from the allocator, from a mapping, or from a device that allocates memory
//! itself.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use super::device_buffer::DeviceBuffer;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};

/// The size of an ordinary page in bytes.
pub(crate) const PAGE: usize = 4096;

/// Number of bits by which the base-2 logarithm of the huge page size is shifted left in the flags
/// of `mmap` (`MAP_HUGE_SHIFT`).
const HUGE_SHIFT: u32 = 26;

/// An owned block of memory from the allocator, from a device or from a mapping. Dropping this
/// value frees the memory.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    len: usize,
    source: Source,
}

/// The origin of the memory of an [`Allocation`]. The origin determines how the memory is freed.
enum Source {
    Allocator(Layout),
    /// Start and length of the whole mapping, which may be larger than the memory in use.
    Mapping(NonNull<u8>, usize),
    /// A buffer that the device allocated. The buffer is freed when its last owner is dropped: this
    /// allocation, or a registration of the memory.
    Device(Arc<DeviceBuffer>),
}

// SAFETY: the allocation owns its memory as a `Box<[u8]>` does.
unsafe impl Send for Allocation {}
// SAFETY: a shared allocation gives only shared access to its memory, as a `Box<[u8]>` does.
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
    /// Allocates `len` zeroed bytes from the global allocator. The memory is aligned to the larger
    /// of `align` and the page size.
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

    /// Allocates `len` zeroed bytes by the memory allocator of `domain`'s device (`ibv_alloc_buf`).
    /// The memory is aligned to the larger of `align` and the page size. Returns the error of the
    /// device if the device refuses.
    pub(crate) fn of_device(
        domain: &Arc<ProtectionDomainHandle>,
        len: usize,
        align: usize,
    ) -> Result<Self> {
        refuse_nothing(len)?;
        // The device aligns buffers to pages only. A stricter alignment needs `slack` additional
        // bytes.
        let slack = align.saturating_sub(PAGE);
        let size = len.checked_add(slack).ok_or_else(|| too_much(len, align))?;
        let buffer = DeviceBuffer::allocate(domain, size)?;
        let ahead = buffer.start().as_ptr().align_offset(align.max(PAGE));
        if ahead > slack {
            return Err(Error::invalid("memory of the device", "it is not aligned"));
        }
        Ok(Self {
            // SAFETY: `ahead` is at most `slack`, and the buffer has `len + slack` bytes.
            start: unsafe { buffer.start().add(ahead) },
            len,
            source: Source::Device(Arc::new(buffer)),
        })
    }

    /// Maps `len` zeroed bytes in huge pages of `page` bytes, aligned to `align` bytes. `page` must
    /// be a power of two.
    pub(crate) fn huge(len: usize, align: usize, page: usize) -> Result<Self> {
        let size = i32::try_from(page.trailing_zeros()).expect("a logarithm fits") << HUGE_SHIFT;
        Self::mapped(len, align, page, libc::MAP_HUGETLB | size)
    }

    /// Maps `len` zeroed bytes, aligned to the larger of `align` and `page`. Advises the kernel to
    /// use transparent huge pages of `page` bytes.
    pub(crate) fn transparent(len: usize, align: usize, page: usize) -> Result<Self> {
        let memory = Self::mapped(len, align.max(page), PAGE, 0)?;
        let Source::Mapping(start, mapped) = memory.source else {
            unreachable!("it is mapped");
        };
        // SAFETY: the range is exactly the mapping that `memory` owns; the advice changes no byte.
        let answer = unsafe { libc::madvise(start.as_ptr().cast(), mapped, libc::MADV_HUGEPAGE) };
        if answer != 0 {
            let errno = Errno::last();
            let object = format!("{len} bytes of memory");
            return Err(Error::verb("madvise", object, errno));
        }
        Ok(memory)
    }

    /// Maps at least `len` bytes of new anonymous memory, aligned to `align` bytes. Rounds the
    /// length up to whole pages of `page` bytes. `flags` are additional flags of `mmap`.
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
            let errno = Errno::last();
            let object = format!("{len} bytes of memory in pages of {page}");
            return Err(Error::verb("mmap", object, errno));
        }
        let mapping = NonNull::new(start.cast::<u8>()).expect("the kernel maps nothing at 0");
        let ahead = if slack == 0 {
            0
        } else {
            mapping.as_ptr().align_offset(align)
        };
        Ok(Self {
            // SAFETY: `ahead` is at most `slack`, and the mapping has at least `len + slack` bytes.
            start: unsafe { mapping.add(ahead) },
            len,
            source: Source::Mapping(mapping, size),
        })
    }

    /// Maps `len` bytes of a file into memory, beginning at `offset`. The mapping is shared: every
    /// process that maps or accesses the file sees the same bytes.
    ///
    /// # Safety
    ///
    /// While the allocation exists, no other code may access that part of the file or truncate it.
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
            let errno = Errno::last();
            let object = format!("{len} bytes of a file from {offset} on");
            return Err(Error::verb("mmap", object, errno));
        }
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at 0");
        // SAFETY: the bytes were just mapped for reading and writing; the caller guarantees that no
        // other code accesses that part of the file.
        Ok(unsafe { Self::from_mapping(start, len) })
    }

    /// Takes ownership of the memory mapping of `len` bytes at `start`. Dropping the returned value
    /// unmaps the memory.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `start` must be mapped for reading and writing. No other code may access
    /// them or unmap them.
    pub(crate) unsafe fn from_mapping(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            source: Source::Mapping(start, len),
        }
    }

    /// Returns the device's buffer that contains this memory, or `None` if the memory does not come
    /// from a device.
    pub(super) fn device_buffer(&self) -> Option<&Arc<DeviceBuffer>> {
        match &self.source {
            Source::Device(buffer) => Some(buffer),
            Source::Allocator(_) | Source::Mapping(..) => None,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is owned, and initialised with zeroes or the content of a file.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is owned and initialised, and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns a raw pointer to all bytes of this allocation, without borrowing the bytes.
    pub(super) fn span(&self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }

    /// Makes the kernel allocate all pages of the memory now, by rewriting the first byte of each
    /// page.
    pub(crate) fn touch(&mut self) {
        for page in self.bytes_mut().chunks_mut(PAGE) {
            let first = &raw mut page[0];
            // SAFETY: the byte lies inside this memory, which is exclusively borrowed. The accesses
            // are volatile so that the compiler keeps them.
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
            // SAFETY: `start` was allocated with `layout` and is freed once, here. A registration
            // of the memory owns this allocation, and drops it after the deregistration.
            &Source::Allocator(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            Source::Device(_) => {}
            &Source::Mapping(start, len) => {
                // SAFETY: this allocation owns the mapping and unmaps it once, here. A registration
                // of the memory drops the allocation after the deregistration.
                if unsafe { libc::munmap(start.as_ptr().cast(), len) } != 0 {
                    let errno = Errno::last();
                    tracing::error!(%errno, "munmap failed; the memory is leaked");
                }
            }
        }
    }
}
