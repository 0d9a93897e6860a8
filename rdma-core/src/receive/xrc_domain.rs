//! XRC domains.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::XrcDomainHandle;

/// A domain of extended reliable connections (XRC). Target queue pairs of the domain deliver
/// messages to any shared receive queue of the domain. Clones refer to the same domain.
///
/// Processes that open a domain with the same file share it: a connection that one process accepted
/// delivers to the shared receive queues of all of them. The domain is `Send` and `Sync`, because
/// it is immutable.
#[doc(alias = "ibv_xrcd")]
#[derive(Debug, Clone)]
pub struct XrcDomain {
    handle: Arc<XrcDomainHandle>,
    context: Context,
}

/// The choice whether opening a domain by a file may create the domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum XrcDomainOpening {
    /// Open the domain if it exists, else create it (`O_CREAT`).
    #[default]
    OpenOrCreate,
    /// Create the domain; fail if it exists (`O_CREAT | O_EXCL`).
    CreateNew,
    /// Open the domain; fail if it does not exist.
    Open,
}

impl XrcDomain {
    /// Creates a domain that no other process can open.
    ///
    /// # Errors
    ///
    /// The error of the verb. Most devices do not support XRC.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn anonymous(context: &Context) -> Result<Self> {
        let handle = XrcDomainHandle::open(Arc::clone(context.handle()), None)?;
        Ok(Self::from_handle(context, handle))
    }

    /// Opens or creates the domain that belongs to a file. The inode identifies the domain; name
    /// and content of the file are ignored. The file descriptor may be closed afterwards.
    ///
    /// # Errors
    ///
    /// The error of the verb: the device does not support XRC (most devices do not), the domain
    /// does not exist but `opening` requires it, or it exists but `opening` requires a new one.
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

    /// Returns the context of the device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the C object. The pointer is valid as long as this domain exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_xrcd {
        self.handle.as_raw()
    }
}
