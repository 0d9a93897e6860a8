//! Memory windows.

use std::sync::Arc;

use crate::error::Result;
use crate::ffi::WindowHandle;
use crate::protection_domain::ProtectionDomain;

/// A memory window: a remote key that work requests bind to memory and invalidate again. Binding by
/// a work request is faster than a registration, and ordered with the other requests of the queue
/// pair.
///
/// [`WindowLease`](super::WindowLease) binds the window to memory. A window has one owner, and is
/// `Send` and `Sync`.
#[doc(alias = "ibv_mw")]
#[derive(Debug)]
pub struct MemoryWindow {
    handle: WindowHandle,
}

/// The types of memory windows (IBTA volume 1, 10.6.7).
#[doc(alias = "ibv_mw_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowType {
    /// Type 1: valid for all queue pairs of the protection domain. The library chooses the keys,
    /// and only this process can end a binding.
    #[doc(alias = "IBV_MW_TYPE_1")]
    One,
    /// Type 2: valid for the queue pair whose request binds it. The peer can also end the binding,
    /// by [sending with invalidate](crate::SendRequest::send_with_invalidate).
    #[doc(alias = "IBV_MW_TYPE_2")]
    Two,
}

impl ProtectionDomain {
    /// Allocates a memory window, which is not bound yet.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no windows of this type,
    /// and the error of the verb.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn memory_window(&self, kind: WindowType) -> Result<MemoryWindow> {
        WindowHandle::allocate(Arc::clone(self.handle()), kind).map(MemoryWindow::of)
    }
}

impl MemoryWindow {
    pub(crate) fn of(handle: WindowHandle) -> Self {
        Self { handle }
    }

    pub(super) fn handle(&self) -> &WindowHandle {
        &self.handle
    }

    pub(super) fn into_handle(self) -> WindowHandle {
        self.handle
    }

    /// Returns the type of the window.
    pub fn kind(&self) -> WindowType {
        self.handle.kind()
    }

    /// Returns the C object. The pointer is valid as long as this window exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mw {
        self.handle.as_raw()
    }
}
