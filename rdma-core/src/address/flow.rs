//! Flow steering: which packets a raw packet or datagram queue pair gets.

use std::sync::Arc;

use ibverbs_sys as sys;

use super::FlowRule;
use crate::error::Result;
use crate::ffi::FlowHandle;
use crate::queue_pair::QueuePair;

/// A rule that steers packets of a port to a queue pair, until it is dropped. Clones are the same
/// rule; it keeps the queue pair and its counters alive.
///
/// It is `Send` and `Sync`: nothing about it changes. Few devices can be steered: the others answer with an error that
/// [is unsupported](crate::Error::is_unsupported).
#[doc(alias = "ibv_flow")]
#[derive(Debug, Clone)]
pub struct Flow {
    handle: Arc<FlowHandle>,
}

impl Flow {
    /// Steers what a rule matches to a queue pair, which must be of raw packets or datagrams.
    ///
    /// # Errors
    ///
    /// The verb's: most devices cannot be steered, and those that can want privileges.
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

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut sys::ibv_flow {
        self.handle.as_raw()
    }
}
