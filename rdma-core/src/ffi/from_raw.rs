//! Objects of this crate made of C's, and other promises that only the program can make.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::allocation::Allocation;
use super::device_memory::DeviceMemoryHandle;
use super::owner::{Backing, StableMemoryMut};
use super::protection_domain::{ProtectionDomainHandle, ThreadDomainHandle};
use super::region::{RawRegion, RegionHandle, Registering};
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
    /// Takes over a mapping, which is unmapped when this is dropped.
    ///
    /// # Safety
    ///
    /// The `len` bytes at `start` are whole pages, mapped for reading and writing. Nobody else
    /// unmaps or changes the mapping, or accesses the memory, for as long as this exists; if it is
    /// of a file, nobody changes that part of the file or makes the file shorter.
    #[doc(alias = "mmap")]
    pub unsafe fn from_mapping(start: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller vouches for the mapping.
        Self::of(unsafe { Allocation::from_mapping(start, len) })
    }

    /// Maps `len` bytes of a file from `offset`, a multiple of the page size, on. What is written to
    /// the memory is written to the file.
    ///
    /// # Errors
    ///
    /// What the system says.
    ///
    /// # Safety
    ///
    /// Nobody else accesses that part of the file, or makes the file shorter, for as long as this
    /// exists: not another process either.
    #[doc(alias = "mmap")]
    pub unsafe fn map_file(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        // SAFETY: the caller vouches for the file.
        unsafe { Allocation::file(file, offset, len) }.map(Self::of)
    }
}

impl Buffer {
    /// Takes over a registration of `owner`'s memory that a vendor's extension made. It is
    /// deregistered by `ibv_dereg_mr`.
    ///
    /// `access` is what it was registered with, and `first` the address of the first byte in
    /// requests, if that is not its address in this process: `Some(0)` for a region that the device
    /// counts from 0, whatever `access` says.
    ///
    /// # Safety
    ///
    /// `raw` is a memory region of `domain` over the whole of the owner's memory, which grants peers
    /// no access, and which nobody else changes or deregisters. Its first byte has the address in
    /// requests that `first` says.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_mr")]
    pub unsafe fn from_raw<O: StableMemoryMut>(
        domain: &ProtectionDomain,
        raw: *mut sys::ibv_mr,
        owner: O,
        access: AccessFlags,
        first: Option<u64>,
    ) -> Self {
        let memory = Arc::new(Backing::exclusive(owner));
        // SAFETY: the caller vouches for the region.
        let raw = unsafe { RawRegion::new(Arc::clone(domain.handle()), raw) };
        let raw = raw.expect("a memory region");
        let how = Registering { access, first };
        Self::new(Span::whole(RegionHandle::adopt(raw, memory, how)))
    }
}

impl ProtectionDomain {
    /// Takes over a protection domain, which is freed by `ibv_dealloc_pd`.
    ///
    /// # Safety
    ///
    /// `raw` is a protection domain of `context` that nobody else frees. If it is a parent domain,
    /// what it is made of outlives this.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_pd")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_pd) -> Self {
        let raw = NonNull::new(raw).expect("a protection domain");
        let handle = ProtectionDomainHandle::adopt(Arc::clone(context.handle()), raw);
        Self::of(context, handle)
    }

    /// A parent domain of this one with a thread domain: the driver does not lock what is made in it,
    /// which is then faster, and may give it hardware of its own.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a thread domain of another context or if this is a parent
    /// domain, and the verb's error.
    ///
    /// # Safety
    ///
    /// All that is made in parent domains of this thread domain (queue pairs, their queues, shared
    /// receive queues ...) is used by one thread at a time only. The types of this crate do not
    /// see to it: most of them can be used by many threads at once.
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
    /// Takes over a thread domain, which is freed by `ibv_dealloc_td`.
    ///
    /// # Safety
    ///
    /// `raw` is a thread domain of `context` that nobody else frees.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_td")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_td) -> Self {
        let raw = NonNull::new(raw).expect("a thread domain");
        Self::of(ThreadDomainHandle::adopt(Arc::clone(context.handle()), raw))
    }
}

impl DeviceMemory {
    /// Takes over `len` bytes of device memory, which are freed by `ibv_free_dm`.
    ///
    /// # Safety
    ///
    /// `raw` is device memory of `context` with at least so many bytes, which nobody else frees.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_dm")]
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_dm, len: usize) -> Self {
        let raw = NonNull::new(raw).expect("device memory");
        let context = Arc::clone(context.handle());
        Self::of(DeviceMemoryHandle::adopt(context, raw, len))
    }
}

impl UnmappedRegion {
    /// Takes over a region that a vendor's extension made, which is deregistered by `ibv_dereg_mr`:
    /// `len` bytes that requests count from `first`, with what `access` says. `keep` is kept until
    /// after the deregistration.
    ///
    /// # Safety
    ///
    /// `raw` is a memory region of `domain` that nobody else deregisters. For as long as `keep` is
    /// kept, all that the region reaches is memory that no Rust reference is to.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_mr")]
    pub unsafe fn from_raw(
        domain: &ProtectionDomain,
        raw: *mut sys::ibv_mr,
        first: u64,
        len: u64,
        access: AccessFlags,
        keep: impl Any + Send + Sync,
    ) -> Self {
        // SAFETY: the caller vouches for the region.
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
    /// Takes over a memory window, which is freed by `ibv_dealloc_mw`.
    ///
    /// # Safety
    ///
    /// `raw` is a memory window of `domain` and of this type, bound to nothing and with its key in
    /// `rkey`, which nobody else binds or frees.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
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
