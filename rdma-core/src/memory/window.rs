//! Memory windows.

use std::sync::Arc;

use crate::error::Result;
use crate::ffi::WindowHandle;
use crate::protection_domain::ProtectionDomain;

/// A memory window: a remote key that grants peers access to a part of a memory region. A work
/// request binds the window to the memory, and another work request invalidates the key. Binding a
/// window is faster than registering memory, and is ordered with the other requests of the queue
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
    /// Type 1: valid for all queue pairs of the protection domain. libibverbs chooses the key at
    /// each binding, and only this process can end the binding.
    #[doc(alias = "IBV_MW_TYPE_1")]
    One,
    /// Type 2: valid for the queue pair whose request binds it. Besides this process, the peer can
    /// end the binding, by [sending with invalidate](crate::SendRequest::send_with_invalidate).
    #[doc(alias = "IBV_MW_TYPE_2")]
    Two,
}

impl ProtectionDomain {
    /// Allocates a memory window of type `kind`. The window grants no access until a work request
    /// binds the window to memory.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device does not support windows of
    /// type `kind`, and the error of `ibv_alloc_mw`.
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

    /// Returns the type of the memory window.
    pub fn kind(&self) -> WindowType {
        self.handle.kind()
    }

    /// Returns the underlying `ibv_mw`. The pointer is valid as long as this window exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mw {
        self.handle.as_raw()
    }
}
