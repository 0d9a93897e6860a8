//! Objects that several contexts share: contexts that are opened from the command descriptor of
//! another context, and objects that are imported by their handles.

use std::any::Any;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::ContextHandle;
use super::device_memory::DeviceMemoryHandle;
use super::protection_domain::ProtectionDomainHandle;
use super::region::RawRegion;
use super::unmapped::UnmappedHandle;
use crate::context::Context;
use crate::error::{Errno, Error, Result};
use crate::memory::{AccessFlags, Buffer, DeviceMemory, UnmappedRegion};
use crate::protection_domain::ProtectionDomain;

impl Context {
    /// Returns the command descriptor of the context: the file descriptor for commands to the
    /// kernel. Returns `None` for devices without such a descriptor. This process or another
    /// process passes a duplicate of the descriptor to [`Self::import`].
    #[doc(alias = "cmd_fd")]
    pub fn command_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the context is open; the field never changes.
        let number = unsafe { (*self.as_raw()).cmd_fd };
        // SAFETY: the descriptor stays open until the context is closed, after the borrow has
        // ended.
        (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }

    /// Opens the device again, as a context that shares objects with this context: each of the two
    /// contexts can [import](Self::import_protection_domain) the objects of the other context. The
    /// asynchronous events of an object arrive at the context that created the object.
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`] if the context has no command descriptor.
    /// - The error of `fcntl(2)`.
    /// - The error of `ibv_import_device`. Few drivers of network cards
    ///   [support](Error::is_unsupported) the verb. The kernel's Soft-RoCE does not support the
    ///   verb.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = rdma_core::Context::open("softroce0")?;
    /// let domain = context.protection_domain()?;
    /// let second = context.share()?;
    /// let same = second.import_protection_domain(domain.object_handle())?;
    /// let buffer = same.allocate(4096)?;
    /// # drop(buffer);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_import_device")]
    pub fn share(&self) -> Result<Self> {
        let Some(command) = self.command_fd() else {
            return Err(Error::Unsupported {
                what: "a command descriptor",
                device: self.name().to_owned(),
            });
        };
        let duplicate = command.try_clone_to_owned().map_err(|error| {
            let errno = Errno(error.raw_os_error().unwrap_or(libc::EIO));
            Error::verb("fcntl", self.handle().describe(), errno)
        })?;
        // SAFETY: the descriptor is that of a context of this process, so all objects of both
        // contexts are created in this process.
        unsafe { Self::import(duplicate) }
    }

    /// Opens a context from a duplicate of the command descriptor of another context. The other
    /// context may belong to another process, which passes the descriptor over a Unix socket. The
    /// new context closes the descriptor.
    ///
    /// # Errors
    ///
    /// The error of `ibv_import_device`: `EINVAL` for descriptors that belong to no device,
    /// [unsupported](Error::is_unsupported) for drivers without the verb. libibverbs does not
    /// report whether it has closed the descriptor, so the descriptor stays open after this error.
    /// softroce supports only descriptors of the same process.
    ///
    /// [`Error::UnknownDevice`] if the device is no longer present, or the error of
    /// `ibv_get_device_list`. In both cases the new context is closed, with its descriptor.
    ///
    /// # Safety
    ///
    /// Every object whose asynchronous events arrive on the new context must have been created in
    /// this process, because [`Self::async_events`] dereferences the objects that events name.
    #[doc(alias = "ibv_import_device")]
    pub unsafe fn import(command: OwnedFd) -> Result<Self> {
        let number = command.as_raw_fd();
        // The library closes the descriptor when the context is closed. After an error, it may have
        // closed the descriptor already.
        // SAFETY: the descriptor is open, and belongs to the library from here on.
        let raw = unsafe { sys::ibv_import_device(command.into_raw_fd()) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            let object = format!("command descriptor {number}");
            return Err(Error::verb("ibv_import_device", object, errno));
        };
        // SAFETY: the context was just opened, and the caller guarantees the requirement on events.
        unsafe { Self::from_raw(raw) }.inspect_err(|_| {
            // SAFETY: the context was just opened and has no owner, because `from_raw` has failed.
            if unsafe { sys::ibv_close_device(raw.as_ptr()) } != 0 {
                let errno = Errno::last();
                tracing::error!(%errno, "ibv_close_device failed");
            }
        })
    }

    /// Imports a protection domain by its [handle](ProtectionDomain::object_handle). The domain
    /// must belong to this context or to a context that shares the objects of this context. Objects
    /// that are created in the imported domain belong to this context. The domain is freed when the
    /// original value is dropped, which fails while the domain has objects. Dropping the returned
    /// value does not free the domain.
    ///
    /// # Errors
    ///
    /// The error of `ibv_import_pd`, for example `ENOENT` if no such domain exists.
    #[doc(alias = "ibv_import_pd")]
    #[doc(alias = "ibv_unimport_pd")]
    pub fn import_protection_domain(&self, handle: u32) -> Result<ProtectionDomain> {
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_import_pd(self.as_raw(), handle) };
        let raw = imported("ibv_import_pd", self.handle(), handle, raw)?;
        let domain = ProtectionDomainHandle::import(Arc::clone(self.handle()), raw);
        Ok(ProtectionDomain::of(self, domain))
    }

    /// Imports `len` bytes of device memory by its [handle](DeviceMemory::object_handle). The
    /// memory must belong to this context or to a context that shares the objects of this context.
    /// The memory is freed when the original value is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, and the error of `ibv_import_dm`. If the memory has
    /// fewer than `len` bytes, verbs that access the missing bytes fail.
    #[doc(alias = "ibv_import_dm")]
    #[doc(alias = "ibv_unimport_dm")]
    pub fn import_device_memory(&self, handle: u32, len: usize) -> Result<DeviceMemory> {
        if len == 0 {
            return Err(Error::invalid(
                "device memory",
                "0 bytes cannot be imported",
            ));
        }
        // SAFETY: the context is open.
        let raw = unsafe { sys::ibv_import_dm(self.as_raw(), handle) };
        let raw = imported("ibv_import_dm", self.handle(), handle, raw)?;
        let context = Arc::clone(self.handle());
        Ok(DeviceMemory::of(DeviceMemoryHandle::import(
            context, raw, len,
        )))
    }
}

impl ProtectionDomain {
    /// Returns the handle of this domain: a number by which other contexts
    /// [import](Context::import_protection_domain) the domain.
    #[doc(alias = "ibv_pd")]
    pub fn object_handle(&self) -> u32 {
        // SAFETY: the domain exists; the field never changes.
        unsafe { (*self.as_raw()).handle }
    }

    /// Imports a memory region by its [handle](Buffer::object_handle), with the same length and
    /// keys. The region must belong to the context of this domain or to a context that shares
    /// objects with that context. The region is deregistered when the original value is dropped.
    ///
    /// `first` is the address that requests use for the first byte, and `access` contains the
    /// access flags of the region. The caller must state both, because the library does not report
    /// them. `keep` is a value that must live as long as the returned region. `keep` is dropped
    /// after that region.
    ///
    /// # Errors
    ///
    /// The error of `ibv_import_mr`, for example `ENOENT` if no such region exists.
    ///
    /// # Safety
    ///
    /// Requests and peers access the memory through the result although its owner does not know
    /// them. Until `keep` is dropped, no Rust reference to the memory of the region may exist in
    /// any process, and no code may rely on its content.
    #[doc(alias = "ibv_import_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub unsafe fn import_region(
        &self,
        handle: u32,
        first: u64,
        access: AccessFlags,
        keep: impl Any + Send + Sync,
    ) -> Result<UnmappedRegion> {
        // SAFETY: the handle of the domain keeps it valid.
        let raw = unsafe { sys::ibv_import_mr(self.as_raw(), handle) };
        let raw = imported("ibv_import_mr", self.handle().context(), handle, raw)?;
        // SAFETY: the region was just imported.
        let len = unsafe { raw.as_ref().length } as u64;
        // SAFETY: the region was just imported, and no other code has a pointer to it.
        let raw = unsafe { RawRegion::import(Arc::clone(self.handle()), raw) };
        let region = UnmappedHandle::adopt(raw, (first, len), access, Arc::new(keep));
        Ok(UnmappedRegion::new(region))
    }
}

impl DeviceMemory {
    /// Returns the handle of this memory: a number by which other contexts
    /// [import](Context::import_device_memory) the memory.
    #[doc(alias = "ibv_dm")]
    pub fn object_handle(&self) -> u32 {
        // SAFETY: the memory exists; the field never changes.
        unsafe { (*self.as_raw()).handle }
    }
}

impl Buffer {
    /// Returns the handle of this buffer's memory region: a number by which protection domains of
    /// other contexts [import](ProtectionDomain::import_region) the region.
    #[doc(alias = "ibv_mr")]
    pub fn object_handle(&self) -> u32 {
        // SAFETY: the region exists; the field never changes.
        unsafe { (*self.as_raw()).handle }
    }
}

impl UnmappedRegion {
    /// Returns the handle of this region: a number by which protection domains of other contexts
    /// [import](ProtectionDomain::import_region) the region.
    #[doc(alias = "ibv_mr")]
    pub fn object_handle(&self) -> u32 {
        // SAFETY: the region exists; the field never changes.
        unsafe { (*self.as_raw()).handle }
    }
}

/// Returns the pointer `raw` that the importing verb `verb` has returned, or an error with the
/// current `errno` if the pointer is null.
fn imported<T>(
    verb: &'static str,
    context: &ContextHandle,
    handle: u32,
    raw: *mut T,
) -> Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(|| {
        let errno = Errno::last();
        let object = format!("handle {handle} of {}", context.describe());
        Error::verb(verb, object, errno)
    })
}
