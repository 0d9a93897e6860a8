//! Counters of packets that flow rules steer.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::context::{ContextHandle, positive};
use crate::address::{Counters, Flow};
use crate::context::Context;
use crate::error::{Errno, Error, Result};

/// The owner of a set of packet counters (`ibv_counters`). Dropping this value destroys the
/// counters.
#[derive(Debug)]
pub(crate) struct CountersHandle {
    raw: NonNull<sys::ibv_counters>,
    context: Arc<ContextHandle>,
    /// A lock that serializes the verbs on the counters, because libibverbs does not document these
    /// verbs as thread-safe.
    verbs_lock: Mutex<()>,
}

// SAFETY: `verbs_lock` ensures that only one thread at a time uses the counters.
unsafe impl Send for CountersHandle {}
// SAFETY: `verbs_lock` ensures that only one thread at a time uses the counters.
unsafe impl Sync for CountersHandle {}

impl CountersHandle {
    pub(crate) fn create(context: Arc<ContextHandle>) -> Result<Self> {
        let mut attributes = sys::ibv_counters_init_attr { comp_mask: 0 };
        // SAFETY: the new handle keeps the handle of the context, which keeps the context open.
        let raw = unsafe { sys::ibv_create_counters(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                context,
                verbs_lock: Mutex::default(),
            }),
            None => {
                let errno = Errno::last();
                Err(Error::verb(
                    "ibv_create_counters",
                    context.describe(),
                    errno,
                ))
            }
        }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_counters {
        self.raw.as_ptr()
    }

    /// Checks that the counters belong to `context`, the context of a flow. Returns an error if the
    /// counters belong to another context, because a driver would treat a pointer from another
    /// context as one of its own objects.
    pub(crate) fn check(&self, context: &Arc<ContextHandle>) -> Result<()> {
        if Arc::ptr_eq(&self.context, context) {
            return Ok(());
        }
        let reason = "they are of another context than the flow";
        Err(Error::invalid("counters", reason))
    }

    pub(crate) fn attach(
        &self,
        counter: sys::ibv_counter_description,
        index: u32,
        flow: Option<&Flow>,
    ) -> Result<()> {
        let mut attributes = sys::ibv_counter_attach_attr {
            counter_desc: counter,
            index,
            comp_mask: 0,
        };
        if let Some(flow) = flow {
            self.check(flow.handle().queue_pair().domain().context())?;
        }
        let flow = flow.map_or(ptr::null_mut(), Flow::as_raw);
        let _guard = self.verbs_lock.lock();
        // SAFETY: counters, attributes and flow are valid.
        let errno = unsafe {
            sys::ibv_attach_counters_point_flow(self.raw.as_ptr(), &mut attributes, flow)
        };
        self.checked("ibv_attach_counters_point_flow", errno)
    }

    pub(crate) fn read(&self, values: &mut [u64], cached: bool) -> Result<()> {
        use sys::ibv_read_counters_flags as flag;
        let flags = if cached {
            flag::IBV_READ_COUNTERS_ATTR_PREFER_CACHED.0
        } else {
            0
        };
        let count = u32::try_from(values.len()).unwrap_or(u32::MAX);
        let _guard = self.verbs_lock.lock();
        // SAFETY: the counters are valid, and `values` has room for at least `count`.
        let errno =
            unsafe { sys::ibv_read_counters(self.raw.as_ptr(), values.as_mut_ptr(), count, flags) };
        self.checked("ibv_read_counters", errno)
    }

    fn checked(&self, verb: &'static str, errno: i32) -> Result<()> {
        if errno == 0 {
            Ok(())
        } else {
            let errno = positive(errno);
            Err(Error::verb(verb, self.context.describe(), errno))
        }
    }
}

impl Drop for CountersHandle {
    fn drop(&mut self) {
        // SAFETY: the counters are valid and destroyed once, here; every flow that was created with
        // them keeps an `Arc` of this handle, so no such flow is left.
        let errno = unsafe { sys::ibv_destroy_counters(self.raw.as_ptr()) };
        if errno != 0 {
            let device = self.context.name();
            tracing::error!(%device, errno = %positive(errno), "ibv_destroy_counters failed");
        }
    }
}

impl Counters {
    /// Takes ownership of counters that other code created, for example a vendor's extension.
    ///
    /// # Safety
    ///
    /// `raw` must be valid counters of `context`, and no other code may use or destroy them.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(context: &Context, raw: *mut sys::ibv_counters) -> Self {
        Self::from_handle(CountersHandle {
            raw: NonNull::new(raw).expect("counters"),
            context: Arc::clone(context.handle()),
            verbs_lock: Mutex::default(),
        })
    }
}
