//! Memory windows: the owner of an `ibv_mw`. [`super::Lease`] binds and invalidates them.

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::positive;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Errno, Error, Result};
use crate::memory::WindowType;

/// The owner of a memory window (`ibv_mw`). Dropping this value frees the window.
#[derive(Debug)]
pub(crate) struct WindowHandle {
    /// The `ibv_mw` of the window; `None` after the window was freed.
    raw: Option<NonNull<sys::ibv_mw>>,
    kind: WindowType,
    domain: Arc<ProtectionDomainHandle>,
}

// SAFETY: verbs are thread-safe on a memory window, and `Lease` ensures that only one thread at a
// time writes its key.
unsafe impl Send for WindowHandle {}
// SAFETY: verbs are thread-safe on a memory window, and `Lease` ensures that only one thread at a
// time writes its key.
unsafe impl Sync for WindowHandle {}

impl WindowHandle {
    pub(crate) fn allocate(domain: Arc<ProtectionDomainHandle>, kind: WindowType) -> Result<Self> {
        let of = match kind {
            WindowType::One => sys::ibv_mw_type::IBV_MW_TYPE_1,
            WindowType::Two => sys::ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: the handle of the domain keeps it valid.
        let raw = unsafe { sys::ibv_alloc_mw(domain.as_raw(), of) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self::adopt(domain, raw, kind)),
            None => Err(refused(&domain, kind, Errno::last())),
        }
    }

    /// Takes ownership of a memory window, which must belong to `domain` and be of type `kind`.
    pub(super) fn adopt(
        domain: Arc<ProtectionDomainHandle>,
        raw: NonNull<sys::ibv_mw>,
        kind: WindowType,
    ) -> Self {
        Self {
            raw: Some(raw),
            kind,
            domain,
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_mw {
        self.raw.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    pub(crate) fn kind(&self) -> WindowType {
        self.kind
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        &self.domain
    }

    /// Returns the remote key of the window, which libibverbs has recorded in the `ibv_mw`; 0 after
    /// [`Self::end`].
    pub(super) fn key(&self) -> u32 {
        // SAFETY: the window exists until `end` clears `raw`.
        self.raw.map_or(0, |raw| unsafe { raw.as_ref().rkey })
    }

    /// Writes `key`, the remote key that the device uses for the window, into the `ibv_mw`.
    ///
    /// # Safety
    ///
    /// No other thread may read or write the key at the same time.
    pub(super) unsafe fn set_key(&self, key: u32) {
        if let Some(raw) = self.raw {
            // SAFETY: the window exists, and the caller guarantees exclusive access to the key.
            unsafe { (*raw.as_ptr()).rkey = key };
        }
    }

    /// Moves the window into a new handle, and leaves this handle empty. Dropping the empty handle
    /// frees nothing.
    pub(super) fn take(&mut self) -> Self {
        Self {
            raw: self.raw.take(),
            kind: self.kind,
            domain: Arc::clone(&self.domain),
        }
    }

    /// Frees the window, which ends the access that the window grants. Has no effect if the window
    /// was already freed.
    pub(crate) fn end(&mut self) -> Result<()> {
        let Some(raw) = self.raw else { return Ok(()) };
        // SAFETY: the window is allocated; `raw` is cleared below, so this succeeds once.
        let errno = unsafe { sys::ibv_dealloc_mw(raw.as_ptr()) };
        if errno != 0 {
            let errno = positive(errno);
            let object = format!("a memory window of {}", self.domain.context().describe());
            return Err(Error::verb("ibv_dealloc_mw", object, errno));
        }
        self.raw = None;
        Ok(())
    }
}

/// Returns the error of a failed allocation of a window of type `kind`: [`Error::Unsupported`] if
/// the device does not have such windows.
#[cold]
fn refused(domain: &ProtectionDomainHandle, kind: WindowType, errno: Errno) -> Error {
    use sys::ibv_device_cap_flags as Capability;
    let (has, what) = match kind {
        WindowType::One => (
            Capability::IBV_DEVICE_MEM_WINDOW.0,
            "memory windows of type 1",
        ),
        WindowType::Two => (
            Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
                | Capability::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0,
            "memory windows of type 2",
        ),
    };
    let context = domain.context();
    let lacks = |attributes: sys::ibv_device_attr| attributes.device_cap_flags & has == 0;
    if context.query_device().is_ok_and(lacks) {
        let device = context.name().to_owned();
        return Error::Unsupported { what, device };
    }
    Error::verb("ibv_alloc_mw", context.describe(), errno)
}

impl Drop for WindowHandle {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "a memory window is leaked");
        }
    }
}
