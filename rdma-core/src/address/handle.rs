//! Address handles.

use std::sync::Arc;

use super::AddressVector;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{AddressHandleOwner, ContextHandle};
use crate::protection_domain::ProtectionDomain;

/// The path to a port, prepared for the device: the destination of a datagram.
///
/// Clones are the same handle. The handle is destroyed with the last clone, and a request that
/// names it keeps one until it has completed. Address handles are `Send` and `Sync`: they never
/// change.
#[doc(alias = "ibv_ah")]
#[derive(Debug, Clone)]
pub struct AddressHandle {
    owner: Arc<AddressHandleOwner>,
}

impl AddressHandle {
    /// Makes a handle; the same as [`ProtectionDomain::address_handle`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a vector out of range, and the
    /// verb's, for example without a route to the GID.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(domain: &ProtectionDomain, vector: &AddressVector) -> Result<Self> {
        let owner = AddressHandleOwner::create(Arc::clone(domain.handle()), vector)?;
        Ok(Self::from_owner(owner))
    }

    /// Makes a handle of the way back to where a datagram came from.
    ///
    /// `grh` is the beginning of the receive's memory, of which the first 40 bytes are used, and
    /// `port` the one that received it.
    ///
    /// # Errors
    ///
    /// The errors of [`AddressVector::from_completion`] and [`Self::new`].
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn from_completion(
        domain: &ProtectionDomain,
        completion: &WorkCompletion,
        grh: &[u8],
        port: u8,
    ) -> Result<Self> {
        let context = domain.context();
        let vector = AddressVector::from_completion(context, completion, grh, port)?;
        Self::new(domain, &vector)
    }

    pub(crate) fn from_owner(owner: AddressHandleOwner) -> Self {
        Self {
            owner: Arc::new(owner),
        }
    }

    /// Returns the context of the handle.
    #[inline]
    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        self.owner.context()
    }

    /// Checks that requests to queue pairs of this context can use the handle: a different driver
    /// would take the pointer for one of its own.
    #[inline]
    pub(crate) fn check(&self, context: &Arc<ContextHandle>) -> Result<()> {
        if Arc::ptr_eq(self.owner.context(), context) {
            return Ok(());
        }
        let reason = "it is of another context than the queue pair";
        Err(Error::invalid("address handle", reason))
    }

    /// Returns the C object, valid for as long as this handle.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_ah {
        self.owner.as_raw()
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The way to the port.
    #[doc(alias = "ah")]
    pub handle: AddressHandle,
    /// The queue pair's number, 24 bits; [`Destination::EVERY_MEMBER`] for a group.
    #[doc(alias = "remote_qpn")]
    pub queue_pair: u32,
    /// The queue pair's Q_Key. With the highest bit set, the sender's own is sent (IBTA volume 1,
    /// 10.2.5).
    #[doc(alias = "remote_qkey")]
    pub qkey: u32,
}

impl Destination {
    /// The queue pair number that means every member of a group (IBTA volume 1, 10.5.1).
    pub const EVERY_MEMBER: u32 = 0x00ff_ffff;
}
