//! Conversion of libibverbs objects to objects of this crate, and other `unsafe` constructors.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::allocation::Allocation;
use super::device_memory::DeviceMemoryHandle;
use super::owner::{Backing, StableMemoryMut};
use super::protection_domain::{ProtectionDomainHandle, ThreadDomainHandle};
use super::region::{RawRegion, RegionHandle, RegistrationParameters};
use super::span::Span;
use super::unmapped::UnmappedHandle;
use super::window::WindowHandle;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{
    AccessFlags, Buffer, DeviceMemory, HostMemory, MemoryWindow, UnmappedRegion, WindowType,
};
use crate::protection_domain::{ProtectionDomain, ThreadDomain};

impl HostMemory {
    /// Takes ownership of the memory mapping of `len` bytes at `start`. Dropping the returned value
    /// unmaps the memory.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `start` must be whole pages, mapped for reading and writing. While the
    /// value exists, no other code may unmap or change the mapping, or access the memory. If the
    /// mapping is of a file, no code may change that part of the file or truncate the file.
    #[doc(alias = "mmap")]
    pub unsafe fn from_mapping(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller guarantees the requirements on the mapping.
        Self::of(unsafe { Allocation::from_mapping(start, len) })
    }

    /// Maps `len` bytes of a file into memory, beginning at `offset`. Data that is written to the
    /// memory is written to the file. `offset` must be a multiple of the page size.
    ///
    /// # Errors
    ///
    /// The error of `mmap`.
    ///
    /// # Safety
    ///
    /// While the value exists, the file must have at least `offset + len` bytes, because an access
    /// beyond the end of the file raises `SIGBUS`. While the value exists, no other code of this or
    /// any other process may access that part of the file.
    #[doc(alias = "mmap")]
    pub unsafe fn map_file(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        // SAFETY: the caller guarantees that no other code accesses that part of the file.
        unsafe { Allocation::file(file, offset, len) }.map(Self::of)
    }
}

impl Buffer {
    /// Takes ownership of a memory region that a vendor's extension has created over `owner`'s
    /// memory. The region is later deregistered by `ibv_dereg_mr`.
    ///
    /// `access` must be the access flags of the registration. `first` is the address that requests
    /// use for the first byte; `None` means that requests use the address in this process. For a
    /// zero-based region, `first` must be `Some(0)`, even if `access` does not contain the flag of
    /// zero-based regions.
    ///
    /// # Safety
    ///
    /// `raw` must be a memory region of `domain` over the whole of the owner's memory that grants
    /// no remote access. Requests must use the address that `first` states for the first byte. No
    /// other code may change or deregister the region.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_mr")]
    pub unsafe fn from_raw<O: StableMemoryMut>(
        domain: &ProtectionDomain,
        raw: *mut sys::ibv_mr,
        owner: O,
        access: AccessFlags,
        first: Option<u64>,
    ) -> Self {
        let memory = Arc::new(Backing::exclusive(owner));
        // SAFETY: the caller guarantees that no other code deregisters the region.
        let raw = unsafe { RawRegion::new(Arc::clone(domain.handle()), raw) };
        let raw = raw.expect("a memory region");
        let how = RegistrationParameters { access, first };
        Self::new(Span::whole(RegionHandle::adopt(raw, memory, how)))
    }
}

impl ProtectionDomain {
    /// Takes ownership of a protection domain that other code created. The domain is later freed by
    /// `ibv_dealloc_pd`.
    ///
    /// # Safety
    ///
    /// `raw` must be a protection domain of `context`, and no other code may free it. If it is a
    /// parent domain, the domains that it was created from must outlive the returned value.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_pd")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_pd) -> Self {
        let raw = NonNull::new(raw).expect("a protection domain");
        let handle = ProtectionDomainHandle::adopt(Arc::clone(context.handle()), raw);
        Self::of(context, handle)
    }

    /// Creates a parent domain that combines this domain with a thread domain. The driver takes no
    /// locks for objects that are created in the parent domain, which makes these objects faster.
    /// Some drivers also reserve hardware resources for these objects.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if the thread domain belongs to another context, or if this
    ///   domain is itself a parent domain.
    /// - The error of `ibv_alloc_parent_domain`.
    ///
    /// # Safety
    ///
    /// All objects created in parent domains of this thread domain (queue pairs, their queues,
    /// shared receive queues ...) must be used by only one thread at a time. The types of this
    /// crate do not enforce this: most of them can be used by many threads at the same time.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub unsafe fn parent_with(&self, thread: &ThreadDomain) -> Result<Self> {
        if !Arc::ptr_eq(thread.handle().context(), self.handle().context()) {
            let reason = "it is of another context";
            return Err(Error::invalid("thread domain", reason));
        }
        self.make_parent(Some(Arc::clone(thread.handle())))
    }
}

impl ThreadDomain {
    /// Takes ownership of a thread domain that other code created. The domain is later freed by
    /// `ibv_dealloc_td`.
    ///
    /// # Safety
    ///
    /// `raw` must be a thread domain of `context`, and no other code may free it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_td")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_td) -> Self {
        let raw = NonNull::new(raw).expect("a thread domain");
        Self::of(ThreadDomainHandle::adopt(Arc::clone(context.handle()), raw))
    }
}

impl DeviceMemory {
    /// Takes ownership of `len` bytes of device memory that other code allocated. The memory is
    /// later freed by `ibv_free_dm`.
    ///
    /// # Safety
    ///
    /// `raw` must be device memory of `context` with at least `len` bytes, and no other code may
    /// free it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_dm")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_dm, len: usize) -> Self {
        let raw = NonNull::new(raw).expect("device memory");
        let context = Arc::clone(context.handle());
        Self::of(DeviceMemoryHandle::adopt(context, raw, len))
    }
}

impl UnmappedRegion {
    /// Takes ownership of a memory region of `len` bytes that a vendor's extension has created with
    /// the access flags `access`. `first` is the address that requests use for the first byte. The
    /// region is later deregistered by `ibv_dereg_mr`. `keep` is a value that must live as long as
    /// the region, for example the owner of the memory; `keep` is dropped after the deregistration.
    ///
    /// # Safety
    ///
    /// `raw` must be a memory region of `domain`, and no other code may deregister it. Until `keep`
    /// is dropped, no Rust reference to the memory of the region may exist.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_mr")]
    pub unsafe fn from_raw(
        domain: &ProtectionDomain,
        raw: *mut sys::ibv_mr,
        first: u64,
        len: u64,
        access: AccessFlags,
        keep: impl Any + Send + Sync,
    ) -> Self {
        // SAFETY: the caller guarantees that no other code deregisters the region.
        let raw = unsafe { RawRegion::new(Arc::clone(domain.handle()), raw) };
        let raw = raw.expect("a memory region");
        Self::new(UnmappedHandle::adopt(
            raw,
            (first, len),
            access,
            Arc::new(keep),
        ))
    }
}

impl MemoryWindow {
    /// Takes ownership of a memory window that other code allocated. The window is later freed by
    /// `ibv_dealloc_mw`.
    ///
    /// # Safety
    ///
    /// `raw` must be an unbound memory window of `domain` and of type `kind`, with its key in
    /// `rkey`. No other code may bind or free it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_mw")]
    pub unsafe fn from_raw(
        domain: &ProtectionDomain,
        raw: *mut sys::ibv_mw,
        kind: WindowType,
    ) -> Self {
        let raw = NonNull::new(raw).expect("a memory window");
        let domain = Arc::clone(domain.handle());
        Self::of(WindowHandle::adopt(domain, raw, kind))
    }
}
