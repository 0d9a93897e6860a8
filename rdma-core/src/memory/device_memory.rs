//! Memory that is located on the device.

use std::sync::Arc;

use super::buffer::resolve;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::DeviceMemoryHandle;

/// Memory that is located on the RDMA device instead of in the host (`ibv_dm`). A device accesses
/// such memory faster than host memory, but has little of it. Clones refer to the same memory.
///
/// This process accesses the memory only by copies. Requests and peers can use the memory after the
/// program has registered it: see
/// [`ProtectionDomain::register_device_memory`](crate::ProtectionDomain::register_device_memory).
/// `DeviceMemory` is `Send` and `Sync`: the memory holds no Rust value. Therefore concurrent copies
/// can read or leave mixed data, but cause no undefined behaviour.
#[doc(alias = "ibv_dm")]
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    handle: Arc<DeviceMemoryHandle>,
}

impl DeviceMemory {
    /// Alignment in bytes, for the offset and the length of a copy, that [`Self::write_at`] and
    /// [`Self::read_at`] accept on all known devices. Known devices copy only whole words of at
    /// most this length. No verb reports the word length of a device.
    pub const WORD: usize = 4;

    pub(crate) fn of(handle: DeviceMemoryHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<DeviceMemoryHandle> {
        &self.handle
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.handle.len()
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.handle.len() == 0
    }

    /// Copies `from` into the device memory at `offset`. The offset and the length should be
    /// multiples of [`Self::WORD`]: other copies fail on network cards and on softroce.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory, and the error of
    /// `ibv_memcpy_to_dm`: `EINVAL` if the copy does not consist of whole words.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        resolve(offset..offset.saturating_add(from.len()), self.len())?;
        self.handle.write(offset, from)
    }

    /// Copies `to.len()` bytes of the device memory, beginning at `offset`, into `to`. The offset
    /// and the length should be multiples of [`Self::WORD`]: other copies fail on network cards and
    /// on softroce.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside of the memory, and the error of
    /// `ibv_memcpy_from_dm`: `EINVAL` if the copy does not consist of whole words.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        resolve(offset..offset.saturating_add(to.len()), self.len())?;
        self.handle.read(offset, to)
    }

    /// Returns the underlying `ibv_dm`. The pointer is valid as long as this memory exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_dm {
        self.handle.as_raw()
    }
}

impl Context {
    /// Allocates `len` bytes of memory on the device, aligned to `align` bytes. `align` must be a
    /// power of two.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes or an alignment that is not a power of two, and the
    /// error of `ibv_alloc_dm`. Many devices do [not support](Error::is_unsupported) device memory.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn device_memory(&self, len: usize, align: u32) -> Result<DeviceMemory> {
        let what = "device memory";
        if len == 0 {
            return Err(Error::invalid(what, "0 bytes cannot be allocated"));
        }
        if !align.is_power_of_two() {
            return Err(Error::invalid(what, format!("{align} is no power of two")));
        }
        DeviceMemoryHandle::allocate(Arc::clone(self.handle()), len, align).map(DeviceMemory::of)
    }
}
