//! Address handles.

use std::sync::Arc;

use super::AddressVector;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{AddressHandleOwner, ContextHandle};
use crate::protection_domain::ProtectionDomain;

/// An address handle: an object of the device that contains the path to a destination port. The
/// [`Destination`] of each datagram contains an address handle.
///
/// Clones refer to the same handle. Dropping the last clone destroys the handle. A request that
/// uses the handle keeps a clone until it has completed. Address handles are `Send` and `Sync`,
/// because they are immutable.
#[doc(alias = "ibv_ah")]
#[derive(Debug, Clone)]
pub struct AddressHandle {
    owner: Arc<AddressHandleOwner>,
}

impl AddressHandle {
    /// Creates an address handle for the destination that `vector` describes, like
    /// [`ProtectionDomain::address_handle`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a vector with values out of
    /// range, and the error of `ibv_create_ah`, for example because no route leads to the GID.
    #[doc(alias = "ibv_create_ah")]
    pub fn new(domain: &ProtectionDomain, vector: &AddressVector) -> Result<Self> {
        let owner = AddressHandleOwner::create(Arc::clone(domain.handle()), vector)?;
        Ok(Self::from_owner(owner))
    }

    /// Creates an address handle for replies to a received datagram.
    ///
    /// `grh` is the memory of the receive, which begins with the header of the datagram. Only the
    /// first 40 bytes are used. `port` is the port that received the datagram.
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

    /// Returns the context (open device) to which the address handle belongs.
    #[inline]
    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        self.owner.context()
    }

    /// Returns an error if the address handle does not belong to `context`. The driver of another
    /// device would interpret the pointer of the handle as one of its own objects.
    #[inline]
    pub(crate) fn check(&self, context: &Arc<ContextHandle>) -> Result<()> {
        if Arc::ptr_eq(self.owner.context(), context) {
            return Ok(());
        }
        let reason = "it is of another context than the queue pair";
        Err(Error::invalid("address handle", reason))
    }

    /// Returns the underlying `ibv_ah`. The pointer is valid as long as this handle exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_ah {
        self.owner.as_raw()
    }
}

/// The destination of a datagram: the path to a port, and the queue pair at that port.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The address handle of the destination port.
    #[doc(alias = "ah")]
    pub handle: AddressHandle,
    /// The number of the destination queue pair, 24 bits, or [`Destination::EVERY_MEMBER`] for a
    /// multicast group.
    #[doc(alias = "remote_qpn")]
    pub queue_pair: u32,
    /// The Q_Key of the destination queue pair. If the highest bit is set, the device instead sends
    /// the Q_Key of the sending queue pair (IBTA volume 1, 10.2.5).
    #[doc(alias = "remote_qkey")]
    pub qkey: u32,
}

impl Destination {
    /// The queue pair number that addresses every member of a multicast group (IBTA volume 1,
    /// 10.5.1).
    pub const EVERY_MEMBER: u32 = 0x00ff_ffff;
}
