//! A domain of extended reliable connections (XRC).

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use crate::context::Context;
use crate::error::{Errno, Error, Result};
use crate::receive::{XrcDomain, XrcDomainOpening};

/// The owner of an XRC domain (`ibv_xrcd`). Dropping this value closes the domain.
#[derive(Debug)]
pub(crate) struct XrcDomainHandle {
    raw: NonNull<sys::ibv_xrcd>,
    context: Arc<ContextHandle>,
}

// SAFETY: verbs are thread-safe on an XRC domain.
unsafe impl Send for XrcDomainHandle {}
// SAFETY: verbs are thread-safe on an XRC domain.
unsafe impl Sync for XrcDomainHandle {}

impl XrcDomainHandle {
    /// Opens the XRC domain that belongs to a file. Without a file, creates a domain that only this
    /// process can use.
    pub(crate) fn open(
        context: Arc<ContextHandle>,
        file: Option<(BorrowedFd<'_>, XrcDomainOpening)>,
    ) -> Result<Self> {
        use sys::ibv_xrcd_init_attr_mask as mask;
        let (fd, oflags) = match file {
            // An XRC domain without a file can only be created, not opened.
            None => (-1, libc::O_CREAT),
            Some((file, opening)) => {
                let flags = match opening {
                    XrcDomainOpening::OpenOrCreate => libc::O_CREAT,
                    XrcDomainOpening::CreateNew => libc::O_CREAT | libc::O_EXCL,
                    XrcDomainOpening::Open => 0,
                };
                (file.as_raw_fd(), flags)
            }
        };
        let mut attributes = sys::ibv_xrcd_init_attr {
            comp_mask: (mask::IBV_XRCD_INIT_ATTR_FD | mask::IBV_XRCD_INIT_ATTR_OFLAGS).0,
            fd,
            oflags,
        };
        // SAFETY: the handle of the context keeps it open, and the file is open during the call.
        let raw = unsafe { sys::ibv_open_xrcd(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, context }),
            None => {
                let errno = Errno::last();
                Err(Error::verb("ibv_open_xrcd", context.describe(), errno))
            }
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_xrcd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }
}

impl Drop for XrcDomainHandle {
    fn drop(&mut self) {
        // SAFETY: the domain is valid and closed once, here; queue pairs and shared receive queues
        // of it hold an `Arc` of this handle, so no such object is left.
        let errno = unsafe { sys::ibv_close_xrcd(self.raw.as_ptr()) };
        if errno != 0 {
            let device = self.context.name();
            tracing::error!(%device, errno = %positive(errno), "ibv_close_xrcd failed");
        }
    }
}

impl XrcDomain {
    /// Takes ownership of an XRC domain that other code opened, for example a vendor's extension.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid XRC domain of `context`, and no other code may close it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_xrcd) -> Self {
        let handle = XrcDomainHandle {
            raw: NonNull::new(raw).expect("an XRC domain"),
            context: Arc::clone(context.handle()),
        };
        Self::from_handle(context, handle)
    }
}
