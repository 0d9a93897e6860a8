//! Domains of extended reliable connections.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::XrcDomainHandle;

/// A domain of extended reliable connections (XRC): its target queue pairs deliver to any of its
/// shared receive queues. Clones are the same one.
///
/// Processes that open a domain with the same file share it: a connection that one of them
/// accepted delivers to the shared receive queues of all. It is `Send` and `Sync`: nothing about it
/// changes.
#[doc(alias = "ibv_xrcd")]
#[derive(Debug, Clone)]
pub struct XrcDomain {
    handle: Arc<XrcDomainHandle>,
    context: Context,
}

/// Whether the domain of a file may, must or must not be there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum XrcDomainOpening {
    /// Opened if it is there, else made (`O_CREAT`).
    #[default]
    OpenOrCreate,
    /// Made; an error if it is there (`O_CREAT | O_EXCL`).
    CreateNew,
    /// Opened; an error if it is not there.
    Open,
}

impl XrcDomain {
    /// Makes a domain that no other process can open.
    ///
    /// # Errors
    ///
    /// The verb's: most devices do not have XRC.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn anonymous(context: &Context) -> Result<Self> {
        let handle = XrcDomainHandle::open(Arc::clone(context.handle()), None)?;
        Ok(Self::from_handle(context, handle))
    }

    /// Opens or makes the domain that belongs to a file: to its inode, whatever its name or content.
    /// The descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// The verb's: most devices do not have XRC; the domain is there already, or not, against
    /// `opening`.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn of_file(
        context: &Context,
        file: BorrowedFd<'_>,
        opening: XrcDomainOpening,
    ) -> Result<Self> {
        let file = Some((file, opening));
        let handle = XrcDomainHandle::open(Arc::clone(context.handle()), file)?;
        Ok(Self::from_handle(context, handle))
    }

    pub(crate) fn from_handle(context: &Context, handle: XrcDomainHandle) -> Self {
        Self {
            handle: Arc::new(handle),
            context: context.clone(),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<XrcDomainHandle> {
        &self.handle
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The C object, valid for as long as this domain.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_xrcd {
        self.handle.as_raw()
    }
}
