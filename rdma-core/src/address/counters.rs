//! Counters of steered packets.

use std::sync::Arc;

use ibverbs_sys as sys;

use super::Flow;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::{ContextHandle, CountersHandle};

/// Counters of what flows steer. Clones are the same counters.
///
/// Each place of theirs counts something, as was told by [`Self::attach`]; a flow counts in them if
/// its rule [says so](super::FlowRule::count). Few devices have any: the others answer with an error
/// that [is unsupported](crate::Error::is_unsupported).
///
/// They are `Send` and `Sync`: a lock lets one thread at a time attach or read.
#[doc(alias = "ibv_counters")]
#[derive(Debug, Clone)]
pub struct Counters {
    handle: Arc<CountersHandle>,
}

/// What a counter counts.
#[doc(alias = "ibv_counter_description")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counter {
    /// Packets.
    Packets,
    /// Their bytes.
    Bytes,
}

impl Counters {
    /// Makes counters, all at zero.
    ///
    /// # Errors
    ///
    /// The verb's: most devices have none.
    #[doc(alias = "ibv_create_counters")]
    pub fn new(context: &Context) -> Result<Self> {
        let handle = CountersHandle::create(Arc::clone(context.handle()))?;
        Ok(Self::from_handle(handle))
    }

    pub(crate) fn from_handle(handle: CountersHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    /// Counts this in the place `index`, for every flow that is made with these counters later.
    ///
    /// # Errors
    ///
    /// The verb's: the device does not count this, or a flow has been made with them.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach(&self, counter: Counter, index: u32) -> Result<()> {
        self.handle.attach(counter.to_raw(), index, None)
    }

    /// Counts this in the place `index`, for a flow that is there already.
    ///
    /// # Errors
    ///
    /// The verb's: most devices that count do so only for flows made with the counters.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach_to(&self, flow: &Flow, counter: Counter, index: u32) -> Result<()> {
        self.handle.attach(counter.to_raw(), index, Some(flow))?;
        flow.handle().keep(self.clone());
        Ok(())
    }

    pub(crate) fn check(&self, context: &Arc<ContextHandle>) -> Result<()> {
        self.handle.check(context)
    }

    /// Reads the first counters into `values`, from the device.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        self.handle.read(values, false)
    }

    /// Like [`Self::read`], from what the driver read last, where it keeps that.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    #[doc(alias = "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")]
    pub fn read_cached(&self, values: &mut [u64]) -> Result<()> {
        self.handle.read(values, true)
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut sys::ibv_counters {
        self.handle.as_raw()
    }
}

impl Counter {
    fn to_raw(self) -> sys::ibv_counter_description {
        match self {
            Self::Packets => sys::ibv_counter_description::IBV_COUNTER_PACKETS,
            Self::Bytes => sys::ibv_counter_description::IBV_COUNTER_BYTES,
        }
    }
}
