//! A protection domain.

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use crate::error::{Errno, Error, Result};

/// Owner of an `ibv_pd`.
#[derive(Debug)]
pub(crate) struct ProtectionDomainHandle {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<ContextHandle>,
}

// SAFETY: verbs are thread-safe on a protection domain.
unsafe impl Send for ProtectionDomainHandle {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomainHandle {}

impl ProtectionDomainHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>) -> Result<Self> {
        // SAFETY: the context is open for as long as its handle.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_raw()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, context }),
            None => Err(Error::verb(
                "ibv_alloc_pd",
                context.describe(),
                Errno::last(),
            )),
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }
}

impl Drop for ProtectionDomainHandle {
    fn drop(&mut self) {
        // SAFETY: the domain is allocated and freed once, here; every object in it holds an `Arc`
        // of this handle, so none is left.
        let errno = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_dealloc_pd failed");
        }
    }
}
