//! Registered memory that is not the process's.

use std::ops::{Bound, RangeBounds};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::gather::{Elements, Gather, Scatter, sealed};
use super::{AccessFlags, DeviceMemory, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::{LocalKey, UnmappedHandle};
use crate::protection_domain::ProtectionDomain;

/// A region of memory that this process cannot look at, or a part of it: of
/// [device memory](DeviceMemory), of a dma-buf (another device's memory), or of nothing at all.
///
/// No Rust value lies there, so this is sound whoever writes: the local device, peers, others. Clones
/// and parts share it, and any number of requests can use it at once. It is `Send` and `Sync`. It
/// cannot be the source of an [inline](crate::SendRequest::inline) request, whose data this process
/// copies.
#[doc(alias = "ibv_mr")]
#[derive(Debug, Clone)]
pub struct UnmappedRegion {
    handle: Arc<UnmappedHandle>,
    start: u64,
    len: u64,
}

impl UnmappedRegion {
    pub(crate) fn new(handle: UnmappedHandle) -> Self {
        Self {
            start: 0,
            len: handle.len(),
            handle: Arc::new(handle),
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the device and peers may do with it.
    pub fn access(&self) -> AccessFlags {
        self.handle.access()
    }

    /// A part of it, sharing the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            let len = self.len;
            return Err(Error::OutOfRange { start, end, len });
        }
        Ok(Self {
            handle: Arc::clone(&self.handle),
            start: self.start + start,
            len: end - start,
        })
    }

    /// What a peer needs to reach it, if it was registered for that. Of a null region it is of no use:
    /// that has no remote key.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.address(),
            len: self.len,
            rkey: self.handle.rkey(),
        }
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.handle.as_raw()
    }

    #[inline]
    fn address(&self) -> u64 {
        self.handle.first().wrapping_add(self.start)
    }
}

impl ProtectionDomain {
    /// A region that reads as zeroes and forgets what is written, with room for any number of bytes:
    /// what of a message nobody wants to see goes to a [part](UnmappedRegion::slice) of it.
    ///
    /// # Errors
    ///
    /// The verb's; [unsupported](Error::is_unsupported) by many devices.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_region(&self) -> Result<UnmappedRegion> {
        UnmappedHandle::null(Arc::clone(self.handle())).map(UnmappedRegion::new)
    }

    /// Registers `range` of device memory. Peers may do what `access` says, and requests count its
    /// bytes from 0.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside, [`Error::InvalidArgument`] for no bytes or
    /// memory of another context, and the verb's.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_device_memory(
        &self,
        memory: &DeviceMemory,
        range: impl RangeBounds<usize>,
        access: AccessFlags,
    ) -> Result<UnmappedRegion> {
        let range = super::buffer::resolve(range, memory.len())?;
        let what = "device memory to register";
        if range.is_empty() {
            return Err(Error::invalid(what, "0 bytes cannot be registered"));
        }
        if !Arc::ptr_eq(memory.handle().context(), self.handle().context()) {
            return Err(Error::invalid(what, "it is of another context"));
        }
        let place = (range.start as u64, range.len());
        let (domain, memory) = (Arc::clone(self.handle()), Arc::clone(memory.handle()));
        let access = access | AccessFlags::LOCAL_WRITE;
        UnmappedHandle::of_device(domain, memory, place, access).map(UnmappedRegion::new)
    }

    /// Registers `len` bytes, from `offset` on, of the dma-buf behind a file descriptor: memory of a
    /// graphics card or of another device. The descriptor may be closed afterwards.
    ///
    /// Requests call the first byte `first`, which is to have the same offset in a page as `offset`.
    /// Peers may do what `access` says.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no bytes, and the verb's; [unsupported](Error::is_unsupported)
    /// by devices in software.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        first: u64,
        access: AccessFlags,
    ) -> Result<UnmappedRegion> {
        if len == 0 {
            let reason = "0 bytes cannot be registered";
            return Err(Error::invalid("dma-buf to register", reason));
        }
        let access = access | AccessFlags::LOCAL_WRITE;
        let domain = Arc::clone(self.handle());
        UnmappedHandle::of_buffer(domain, buffer, (offset, len), first, access)
            .map(UnmappedRegion::new)
    }
}

impl sealed::Sealed for UnmappedRegion {}

impl sealed::Contiguous for UnmappedRegion {
    #[inline]
    fn address(&self) -> u64 {
        self.address()
    }

    #[inline]
    fn size(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    #[inline]
    fn lkey(&self) -> LocalKey {
        self.handle.lkey()
    }

    #[inline]
    fn is_mapped(&self) -> bool {
        false
    }
}

impl Gather for UnmappedRegion {
    #[inline]
    fn gather(&self, elements: &mut Elements<'_>) {
        elements.push(self);
    }
}

impl Scatter for UnmappedRegion {}
