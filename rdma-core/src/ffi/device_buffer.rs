//! Host memory that a device allocates for regions of a protection domain (`ibv_buf`).

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};

/// The owner of a buffer that a device allocated (`ibv_buf`). Dropping this value frees the memory.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    raw: NonNull<sys::ibv_buf>,
    start: NonNull<u8>,
    /// The protection domain for which the buffer was allocated. The domain must outlive the buffer
    /// (`ibv_alloc_buf(3)`).
    domain: Arc<ProtectionDomainHandle>,
}

// SAFETY: verbs are thread-safe on a buffer, which owns its memory as a `Box<[u8]>` does.
unsafe impl Send for DeviceBuffer {}
// SAFETY: verbs are thread-safe on a buffer, and a shared buffer gives out only addresses.
unsafe impl Sync for DeviceBuffer {}

impl DeviceBuffer {
    /// Allocates a buffer of `len` zeroed bytes by the device of `domain`. The buffer is aligned to
    /// a page. `len` must not be 0.
    pub(super) fn allocate(domain: &Arc<ProtectionDomainHandle>, len: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the new handle keeps the handle of the domain, which keeps the domain valid.
        let start = unsafe { sys::ibv_alloc_buf(domain.as_raw(), len, &mut raw) };
        let (Some(start), Some(raw)) = (NonNull::new(start.cast::<u8>()), NonNull::new(raw)) else {
            let errno = Errno::last();
            let object = format!("{len} bytes of {}", domain.context().describe());
            return Err(Error::verb("ibv_alloc_buf", object, errno));
        };
        let buffer = Self {
            raw,
            start,
            domain: Arc::clone(domain),
        };
        // SAFETY: the range is the whole of the memory, which no other code can access yet. The
        // verb does not define its content.
        unsafe { start.write_bytes(0, len) };
        Ok(buffer)
    }

    pub(super) fn as_raw(&self) -> *mut sys::ibv_buf {
        self.raw.as_ptr()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns whether the buffer belongs to `domain`. Only in that domain can `ibv_reg_buf_mr`
    /// register the buffer.
    pub(super) fn is_of(&self, domain: &ProtectionDomainHandle) -> bool {
        self.domain.as_raw() == domain.as_raw()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is allocated and freed once, here. A registration of the memory keeps
        // this owner until after the deregistration.
        unsafe { sys::ibv_free_buf(self.raw.as_ptr()) };
    }
}
