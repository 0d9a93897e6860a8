//! Flow steering, which directs packets to raw packet and datagram queue pairs.

use std::sync::Arc;

use ibverbs_sys as sys;

use super::FlowRule;
use crate::error::Result;
use crate::ffi::FlowHandle;
use crate::queue_pair::QueuePair;

/// An active flow: the device delivers the packets of a port that match a rule to a queue pair.
/// Clones refer to the same flow. Dropping the last clone ends the flow. A flow keeps its queue
/// pair and its counters alive.
///
/// A flow is `Send` and `Sync`, because it is immutable. Few devices support flow steering. On
/// other devices [`Self::steer`] returns an error that [is
/// unsupported](crate::Error::is_unsupported).
#[doc(alias = "ibv_flow")]
#[derive(Debug, Clone)]
pub struct Flow {
    handle: Arc<FlowHandle>,
}

impl Flow {
    /// Makes the device deliver the packets that match `rule` to `queue_pair`. The queue pair must
    /// be a raw packet or datagram queue pair.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_flow`. Most devices do not support flow steering, and most of the
    /// others require privileges.
    #[doc(alias = "ibv_create_flow")]
    pub fn steer(queue_pair: &QueuePair, rule: &FlowRule) -> Result<Self> {
        let handle = FlowHandle::create(Arc::clone(queue_pair.handle()), rule)?;
        Ok(Self::from_handle(handle))
    }

    pub(crate) fn from_handle(handle: FlowHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    pub(crate) fn handle(&self) -> &FlowHandle {
        &self.handle
    }

    /// Returns the underlying `ibv_flow`. The pointer is valid as long as this flow exists.
    pub fn as_raw(&self) -> *mut sys::ibv_flow {
        self.handle.as_raw()
    }
}
