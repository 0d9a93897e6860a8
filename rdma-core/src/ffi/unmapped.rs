//! Memory regions to which no Rust reference can point: device memory, dma-bufs and null regions.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::device_memory::DeviceMemoryHandle;
use super::elements::LocalKey;
use super::protection_domain::ProtectionDomainHandle;
use super::region::{RawRegion, RegistrationParameters};
use crate::error::{Errno, Error, Result};
use crate::memory::AccessFlags;

/// The owner of a memory region (`ibv_mr`) over memory that is not mapped into this process, such
/// as device memory, so that no Rust reference can point to it.
pub(crate) struct UnmappedHandle {
    raw: RawRegion,
    /// Address that requests use for the first byte.
    first: u64,
    len: u64,
    access: AccessFlags,
    /// The owner of the memory, which is dropped after the deregistration.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for UnmappedHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmappedHandle")
            .field("raw", &self.raw)
            .field("first", &format_args!("{:#x}", self.first))
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

impl UnmappedHandle {
    /// Creates a null region. RDMA reads of the region return zeroes, and the device discards
    /// writes to the region.
    pub(crate) fn null(domain: Arc<ProtectionDomainHandle>) -> Result<Self> {
        // SAFETY: the handle of the domain keeps it valid.
        let raw = unsafe { sys::ibv_alloc_null_mr(domain.as_raw()) };
        // SAFETY: `raw` is null, or a region that the verb has just created.
        let made = unsafe { RawRegion::new(Arc::clone(&domain), raw) };
        Ok(Self {
            raw: made.ok_or_else(|| failed("ibv_alloc_null_mr", &domain, String::new))?,
            first: 0,
            len: u64::MAX,
            access: AccessFlags::LOCAL_WRITE,
            keep: None,
        })
    }

    /// Registers a range of device memory. The caller must have checked that the range lies inside
    /// the memory.
    pub(crate) fn of_device(
        domain: Arc<ProtectionDomainHandle>,
        memory: Arc<DeviceMemoryHandle>,
        (offset, len): (u64, usize),
        access: AccessFlags,
    ) -> Result<Self> {
        let access = access | AccessFlags::ZERO_BASED;
        // SAFETY: the handle of the domain keeps it valid, and the new handle keeps the memory
        // until after the deregistration. Device memory contains no Rust value.
        let raw = unsafe {
            let (pd, dm) = (domain.as_raw(), memory.as_raw());
            sys::ibv_reg_dm_mr(pd, dm, offset, len as _, access.bits())
        };
        // SAFETY: `raw` is null, or a region that the verb has just created.
        let made = unsafe { RawRegion::new(Arc::clone(&domain), raw) };
        let what = || format!("{len} bytes of device memory with access {access}");
        Ok(Self {
            raw: made.ok_or_else(|| failed("ibv_reg_dm_mr", &domain, what))?,
            first: 0,
            len: len as u64,
            access,
            keep: Some(memory),
        })
    }

    /// Registers a range of a dma-buf (memory of another device), to which the file descriptor
    /// `buffer` refers. `first` is the address that requests use for the first byte.
    pub(crate) fn of_buffer(
        domain: Arc<ProtectionDomainHandle>,
        buffer: BorrowedFd<'_>,
        (offset, len): (u64, usize),
        first: u64,
        access: AccessFlags,
    ) -> Result<Self> {
        let how = RegistrationParameters {
            access,
            first: Some(first),
        };
        let flags = how.explicit(offset)?.access.bits().cast_signed();
        // SAFETY: the handle of the domain keeps it valid, and the kernel keeps the buffer. Code
        // that maps the buffer must ensure that no references to the mapping exist.
        let raw = unsafe {
            let (pd, fd) = (domain.as_raw(), buffer.as_raw_fd());
            sys::ibv_reg_dmabuf_mr(pd, offset, len as _, first, fd, flags)
        };
        // SAFETY: `raw` is null, or a region that the verb has just created.
        let made = unsafe { RawRegion::new(Arc::clone(&domain), raw) };
        let what = || format!("{len} bytes of a dma-buf with access {access}");
        Ok(Self {
            raw: made.ok_or_else(|| failed("ibv_reg_dmabuf_mr", &domain, what))?,
            first,
            len: len as u64,
            access,
            keep: None,
        })
    }

    /// Takes ownership of the memory region `raw`. `first`, `len` and `access` must be the address
    /// that requests use for the first byte, the length and the access flags of the region. `keep`,
    /// the owner of the memory, is dropped after the deregistration.
    pub(super) fn adopt(
        raw: RawRegion,
        (first, len): (u64, u64),
        access: AccessFlags,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            raw,
            first,
            len,
            access,
            keep: Some(keep),
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_mr {
        self.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn lkey(&self) -> LocalKey {
        self.raw.lkey()
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.raw.rkey()
    }

    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }
}

#[cold]
fn failed(
    verb: &'static str,
    domain: &ProtectionDomainHandle,
    what: impl FnOnce() -> String,
) -> Error {
    // Building the description may change `errno`.
    let errno = Errno::last();
    let (what, device) = (what(), domain.context().describe());
    let object = if what.is_empty() {
        device
    } else {
        format!("{what} on {device}")
    };
    Error::verb(verb, object, errno)
}

impl Drop for UnmappedHandle {
    fn drop(&mut self) {
        if let Err(error) = self.raw.end() {
            // The device may still use the memory, so its owner must never be dropped.
            std::mem::forget(self.keep.take());
            tracing::error!(%error, "deregistration failed; the memory is leaked");
        }
    }
}
