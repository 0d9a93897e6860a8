//! Memory that is part of a device (`ibv_dm`).

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use crate::error::{Errno, Error, Result};

/// The owner of memory on a device (`ibv_dm`). Dropping this value frees the memory.
#[derive(Debug)]
pub(crate) struct DeviceMemoryHandle {
    raw: NonNull<sys::ibv_dm>,
    len: usize,
    context: Arc<ContextHandle>,
    /// Set for imported memory, which belongs to another object. That object frees the memory.
    is_imported: bool,
}

// SAFETY: verbs are thread-safe on device memory, which holds no Rust value.
unsafe impl Send for DeviceMemoryHandle {}
// SAFETY: verbs are thread-safe on device memory, which holds no Rust value.
unsafe impl Sync for DeviceMemoryHandle {}

impl DeviceMemoryHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>, len: usize, align: u32) -> Result<Self> {
        let mut attributes = sys::ibv_alloc_dm_attr {
            length: len as _,
            log_align_req: align.trailing_zeros(),
            comp_mask: 0,
        };
        // SAFETY: the handle of the context keeps it open.
        let raw = unsafe { sys::ibv_alloc_dm(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self::adopt(context, raw, len)),
            None => {
                let errno = Errno::last();
                let object = format!("{len} bytes of {}", context.describe());
                Err(Error::verb("ibv_alloc_dm", object, errno))
            }
        }
    }

    /// Takes ownership of device memory. The caller must ensure that `raw` has at least `len` bytes
    /// and belongs to `context`.
    pub(super) fn adopt(
        context: Arc<ContextHandle>,
        raw: NonNull<sys::ibv_dm>,
        len: usize,
    ) -> Self {
        Self {
            raw,
            len,
            context,
            is_imported: false,
        }
    }

    /// Takes ownership of imported device memory. The caller must ensure that the memory belongs to
    /// `context`. A wrong `len` is harmless, because the library checks all accesses to the memory.
    pub(super) fn import(
        context: Arc<ContextHandle>,
        raw: NonNull<sys::ibv_dm>,
        len: usize,
    ) -> Self {
        Self {
            raw,
            len,
            context,
            is_imported: true,
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_dm {
        self.raw.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    /// Copies `from` into the device memory at `offset`. The caller must have checked that the
    /// range is inside the memory.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        assert!(offset + from.len() <= self.len, "outside of device memory");
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside the memory, and `from` is valid for its length.
        let errno = unsafe {
            let from_start = from.as_ptr().cast();
            sys::ibv_memcpy_to_dm(self.as_raw(), offset as u64, from_start, from.len() as _)
        };
        self.copied("ibv_memcpy_to_dm", errno)
    }

    /// Copies `to.len()` bytes of the device memory, beginning at `offset`, into `to`. The caller
    /// must have checked that the range lies inside the memory.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        assert!(offset + to.len() <= self.len, "outside of device memory");
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies inside the memory, and `to` is valid for its length.
        let errno = unsafe {
            let start = to.as_mut_ptr().cast();
            sys::ibv_memcpy_from_dm(start, self.as_raw(), offset as u64, to.len() as _)
        };
        self.copied("ibv_memcpy_from_dm", errno)
    }

    fn copied(&self, verb: &'static str, errno: i32) -> Result<()> {
        if errno == 0 {
            return Ok(());
        }
        let errno = positive(errno);
        let object = format!("memory of {}", self.context.describe());
        Err(Error::verb(verb, object, errno))
    }
}

impl Drop for DeviceMemoryHandle {
    fn drop(&mut self) {
        if self.is_imported {
            // SAFETY: the memory is imported and unimported once, here; every region of it that was
            // registered by this handle holds an `Arc` of the handle, so no such region is left.
            return unsafe { sys::ibv_unimport_dm(self.raw.as_ptr()) };
        }
        // SAFETY: the memory is allocated and freed once, here; every region of it holds an `Arc`
        // of this handle, so no such region is left.
        let errno = unsafe { sys::ibv_free_dm(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_free_dm failed");
        }
    }
}
