//! Memory that a device gives for regions of a protection domain.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};

/// Owner of an `ibv_buf`, and of its memory.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    raw: NonNull<sys::ibv_buf>,
    start: NonNull<u8>,
    /// `ibv_alloc_buf(3)`: it outlives the buffer.
    domain: Arc<ProtectionDomainHandle>,
}

// SAFETY: verbs are thread-safe on a buffer; its memory is owned as that of a `Box<[u8]>` is.
unsafe impl Send for DeviceBuffer {}
// SAFETY: as above; what is shared gives out addresses only.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// `len` zeroed bytes, not none, page-aligned.
    pub(super) fn allocate(domain: &Arc<ProtectionDomainHandle>, len: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is valid for as long as its handle, which the new one keeps.
        let start = unsafe { sys::ibv_alloc_buf(domain.as_raw(), len, &mut raw) };
        let (Some(start), Some(raw)) = (NonNull::new(start.cast::<u8>()), NonNull::new(raw)) else {
            let object = format!("{len} bytes of {}", domain.context().describe());
            return Err(Error::verb("ibv_alloc_buf", object, Errno::last()));
        };
        let buffer = Self {
            raw,
            start,
            domain: Arc::clone(domain),
        };
        // SAFETY: all of the memory, which nobody else has yet. Nothing is said of what is in it.
        unsafe { start.write_bytes(0, len) };
        Ok(buffer)
    }

    pub(super) fn as_raw(&self) -> *mut sys::ibv_buf {
        self.raw.as_ptr()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Whether the verb for its regions takes this domain: the very one that it is of.
    pub(super) fn is_of(&self, domain: &ProtectionDomainHandle) -> bool {
        self.domain.as_raw() == domain.as_raw()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated, and freed once, here. Whoever registered the memory owns this, and drops
        // it after the deregistration.
        unsafe { sys::ibv_free_buf(self.raw.as_ptr()) };
    }
}
