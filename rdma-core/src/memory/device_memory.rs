//! Memory of a device's own.

use std::sync::Arc;

use super::buffer::resolve;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::DeviceMemoryHandle;

/// Memory that a device has on itself: small, and nearer to it than the machine's. Clones are the
/// same memory.
///
/// This process copies to and from it; requests and peers use it once it is registered:
/// [`ProtectionDomain::register_device_memory`](crate::ProtectionDomain::register_device_memory).
/// It is `Send` and `Sync`: no Rust value lies there, so those who copy at once race for values only.
#[doc(alias = "ibv_dm")]
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    handle: Arc<DeviceMemoryHandle>,
}

impl DeviceMemory {
    pub(crate) fn of(handle: DeviceMemoryHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<DeviceMemoryHandle> {
        &self.handle
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.handle.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.handle.len() == 0
    }

    /// Copies `from` in, from `offset` on. Some devices copy whole words only.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it would not fit inside, and the verb's.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        resolve(offset..offset.saturating_add(from.len()), self.len())?;
        self.handle.write(offset, from)
    }

    /// Copies `to.len()` bytes out, from `offset` on. Some devices copy whole words only.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if they are not inside, and the verb's.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        resolve(offset..offset.saturating_add(to.len()), self.len())?;
        self.handle.read(offset, to)
    }

    /// The C object, valid for as long as this memory.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_dm {
        self.handle.as_raw()
    }
}

impl Context {
    /// Allocates `len` bytes of the device's own memory, aligned to `align`, a power of two.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes or an alignment that is no power of two, and the verb's;
    /// [unsupported](Error::is_unsupported) by many devices.
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
