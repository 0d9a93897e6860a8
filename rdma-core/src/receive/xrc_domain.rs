//! Domains of extended reliable connections (XRC).

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::XrcDomainHandle;

/// A domain of extended reliable connections (XRC): a group of target queue pairs and shared
/// receive queues. Each message to a target queue pair contains the number of a shared receive
/// queue of the same domain. The message consumes a receive of that queue. Clones refer to the same
/// domain.
///
/// Processes that open a domain with the same file share the domain: a connection that one process
/// has accepted delivers messages to the shared receive queues of all these processes. The domain
/// is `Send` and `Sync`, because it is immutable.
#[doc(alias = "ibv_xrcd")]
#[derive(Debug, Clone)]
pub struct XrcDomain {
    handle: Arc<XrcDomainHandle>,
    context: Context,
}

/// The mode in which [`XrcDomain::of_file`] opens an XRC domain. The mode determines whether the
/// call may create a new domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum XrcDomainOpening {
    /// Opening the domain if it exists, and creating it otherwise (`O_CREAT`).
    #[default]
    OpenOrCreate,
    /// Creating the domain, and failing if it exists (`O_CREAT | O_EXCL`).
    CreateNew,
    /// Opening the domain, and failing if it does not exist.
    Open,
}

impl XrcDomain {
    /// Creates an XRC (extended reliable connection) domain, which groups target queue pairs with
    /// the shared receive queues for their messages. No other process can open the domain.
    ///
    /// # Errors
    ///
    /// The error of `ibv_open_xrcd`. Most devices do not support XRC.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn anonymous(context: &Context) -> Result<Self> {
        let handle = XrcDomainHandle::open(Arc::clone(context.handle()), None)?;
        Ok(Self::from_handle(context, handle))
    }

    /// Opens or creates the XRC (extended reliable connection) domain that belongs to a file.
    /// Several processes can share the domain by the file. The inode of the file identifies the
    /// domain. The name and the content of the file have no effect. The program may close the file
    /// descriptor afterwards.
    ///
    /// # Errors
    ///
    /// The error of `ibv_open_xrcd`, for example if the device does not support XRC (most devices
    /// do not), if the domain does not exist but `opening` requires it, or if the domain exists but
    /// `opening` requires a new one.
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

    /// Returns the context (open device) to which the XRC domain belongs.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the underlying `ibv_xrcd`. The pointer is valid as long as this domain exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_xrcd {
        self.handle.as_raw()
    }
}
