//! Memory windows.

use std::sync::Arc;

use crate::error::Result;
use crate::ffi::WindowHandle;
use crate::protection_domain::ProtectionDomain;

/// A memory window: a remote key of its own, which requests of a queue pair bind to memory and end
/// again, at the speed of requests and in their order.
///
/// A [`WindowLease`](super::WindowLease) is what it is for. It is `Send` and `Sync`, and has one owner.
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
    /// For all queue pairs of the protection domain; the library chooses the keys, and only this
    /// process ends a binding.
    #[doc(alias = "IBV_MW_TYPE_1")]
    One,
    /// For the queue pair whose request binds it; the peer can end the binding too, by
    /// [sending](crate::SendRequest::send_with_invalidate).
    #[doc(alias = "IBV_MW_TYPE_2")]
    Two,
}

impl ProtectionDomain {
    /// Allocates a memory window, bound to nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no windows of this type,
    /// and the verb's.
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

    /// Which type it is of.
    pub fn kind(&self) -> WindowType {
        self.handle.kind()
    }

    /// The C object, valid for as long as this window.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mw {
        self.handle.as_raw()
    }
}
