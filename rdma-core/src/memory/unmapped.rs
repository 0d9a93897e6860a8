//! Registered memory that is not mapped into the process.

use std::ops::{Bound, RangeBounds};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::gather::{Elements, Gather, Scatter, sealed};
use super::{AccessFlags, DeviceMemory, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::{LocalKey, UnmappedHandle};
use crate::protection_domain::ProtectionDomain;

/// Registered memory that is not mapped into this process: [device memory](DeviceMemory), a dma-buf
/// (memory of another device), or a null region (reads return zeroes, and writes are discarded).
///
/// The memory holds no Rust value, so writes by the local device, by peers and by other devices are
/// sound. Clones and parts share the region, and any number of requests can use it at the same
/// time. `UnmappedRegion` is `Send` and `Sync`. The region cannot be the source of an
/// [inline](crate::SendRequest::inline) request, because this process would have to copy the data.
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

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access rights that the device and peers have to the region.
    pub fn access(&self) -> AccessFlags {
        self.handle.access()
    }

    /// Returns the part `range` of the region. The result shares the memory with this region.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the region.
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

    /// Returns the address, length and key that a peer needs to access the region. Peers can access
    /// the region only if it was registered with remote rights. A null region has no valid remote
    /// key.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.address(),
            len: self.len,
            rkey: self.handle.rkey(),
        }
    }

    /// Returns the underlying `ibv_mr`. The pointer is valid as long as this region exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.handle.as_raw()
    }

    #[inline]
    fn address(&self) -> u64 {
        self.handle.first().wrapping_add(self.start)
    }
}

impl ProtectionDomain {
    /// Creates a null region of unlimited length: reads return zeroes, and the device discards
    /// writes. A [part](UnmappedRegion::slice) of the region can be the destination of message
    /// bytes that the program does not need.
    ///
    /// # Errors
    ///
    /// The error of `ibv_alloc_null_mr`. Many devices do [not support](Error::is_unsupported) null
    /// regions.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn null_region(&self) -> Result<UnmappedRegion> {
        UnmappedHandle::null(Arc::clone(self.handle())).map(UnmappedRegion::new)
    }

    /// Registers the part `range` of the device memory `memory`. Peers get the remote rights in
    /// `access`. Requests use the address 0 for the first byte of the range.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory, [`Error::InvalidArgument`]
    /// for 0 bytes or for memory of another context, and the error of `ibv_reg_dm_mr`.
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

    /// Registers `len` bytes of a dma-buf (memory of another device, such as a graphics card),
    /// beginning at `offset`. The file descriptor may be closed afterwards.
    ///
    /// In requests, the first byte has the address `first`, which must have the same offset within
    /// a page as `offset`. Peers get the remote rights in `access`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, and the error of `ibv_reg_dmabuf_mr`. Software
    /// devices do [not support](Error::is_unsupported) dma-bufs.
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
