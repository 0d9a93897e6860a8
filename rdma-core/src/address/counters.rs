//! Counters of the packets that flow rules steer.

use std::sync::Arc;

use ibverbs_sys as sys;

use super::Flow;
use crate::context::Context;
use crate::error::Result;
use crate::ffi::{ContextHandle, CountersHandle};

/// A set of counters of the packets that match [flow rules](super::FlowRule). Clones refer to the
/// same counters.
///
/// The counter at each index counts the quantity that [`Self::attach`] selected for that index. A
/// flow updates the counters if its rule contains [`count`](super::FlowRule::count). Few devices
/// support counters. On other devices the constructor returns an error that [is
/// unsupported](crate::Error::is_unsupported).
///
/// `Counters` are `Send` and `Sync`: a lock serialises attaching and reading.
#[doc(alias = "ibv_counters")]
#[derive(Debug, Clone)]
pub struct Counters {
    handle: Arc<CountersHandle>,
}

/// The quantity that a counter of [`Counters`] measures: packets or bytes.
#[doc(alias = "ibv_counter_description")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counter {
    /// The number of packets.
    Packets,
    /// The number of bytes of the packets.
    Bytes,
}

impl Counters {
    /// Creates a set of counters on the device of `context`. All counters are zero.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_counters`. Most devices do not support counters.
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

    /// Selects the quantity (packets or bytes) that the counter with the index `index` counts, for
    /// every flow that is created with these counters later.
    ///
    /// # Errors
    ///
    /// The error of `ibv_attach_counters_point_flow`: the device does not support this counter, or
    /// a flow already uses these counters.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach(&self, counter: Counter, index: u32) -> Result<()> {
        self.handle.attach(counter.to_raw(), index, None)
    }

    /// Selects the quantity (packets or bytes) that the counter at `index` counts, for an existing
    /// flow.
    ///
    /// # Errors
    ///
    /// The error of `ibv_attach_counters_point_flow`. Most devices with counters support them only
    /// for flows that are created with the counters.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach_to(&self, flow: &Flow, counter: Counter, index: u32) -> Result<()> {
        self.handle.attach(counter.to_raw(), index, Some(flow))?;
        flow.handle().keep(self.clone());
        Ok(())
    }

    pub(crate) fn check(&self, context: &Arc<ContextHandle>) -> Result<()> {
        self.handle.check(context)
    }

    /// Reads the values of the first `values.len()` counters from the device into `values`.
    ///
    /// # Errors
    ///
    /// The error of `ibv_read_counters`.
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64]) -> Result<()> {
        self.handle.read(values, false)
    }

    /// Reads the first `values.len()` counters like [`Self::read`], but from the driver's cache if
    /// the driver has a cache.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read`].
    #[doc(alias = "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")]
    pub fn read_cached(&self, values: &mut [u64]) -> Result<()> {
        self.handle.read(values, true)
    }

    /// Returns the underlying `ibv_counters`. The pointer is valid as long as these counters exist.
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
