//! Flows: rules that steer received packets to a queue pair.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::context::positive;
use super::queue_pair::QueuePairHandle;
use crate::address::{Counters, Flow, FlowRule};
use crate::error::{Errno, Error, Result};
use crate::queue_pair::QueuePair;

/// The owner of a flow (`ibv_flow`), a rule that steers received packets to a queue pair. Dropping
/// this value destroys the flow.
#[derive(Debug)]
pub(crate) struct FlowHandle {
    raw: NonNull<sys::ibv_flow>,
    queue_pair: Arc<QueuePairHandle>,
    /// The counters that the flow updates, which must outlive the flow.
    counters: Mutex<Vec<Counters>>,
}

// SAFETY: verbs are thread-safe on a flow.
unsafe impl Send for FlowHandle {}
// SAFETY: verbs are thread-safe on a flow.
unsafe impl Sync for FlowHandle {}

impl FlowHandle {
    pub(crate) fn create(queue_pair: Arc<QueuePairHandle>, rule: &FlowRule) -> Result<Self> {
        const HEAD: usize = size_of::<sys::ibv_flow_attr>();
        let (attributes, layers) = rule.attributes()?;
        for counters in rule.counters() {
            counters.check(queue_pair.domain().context())?;
        }
        // An array of `u64`, so that the struct is aligned.
        let mut bytes = vec![0_u64; (HEAD + layers.len()).div_ceil(size_of::<u64>())];
        let begin: *mut u8 = bytes.as_mut_ptr().cast();
        // SAFETY: `bytes` has aligned room for the struct, and for the layers directly after it.
        let raw = unsafe {
            begin.cast::<sys::ibv_flow_attr>().write(attributes);
            begin
                .add(HEAD)
                .copy_from_nonoverlapping(layers.as_ptr(), layers.len());
            // The new handle keeps the queue pair and the counters valid. The struct states the
            // number of layers, and each layer states its size.
            sys::ibv_create_flow(queue_pair.as_raw(), begin.cast())
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self {
                raw,
                queue_pair,
                counters: Mutex::new(rule.counters().to_vec()),
            }),
            None => {
                let errno = Errno::last();
                Err(Error::verb("ibv_create_flow", queue_pair.describe(), errno))
            }
        }
    }

    pub(crate) fn queue_pair(&self) -> &QueuePairHandle {
        &self.queue_pair
    }

    /// Keeps `counters` alive until this flow (a rule that steers received packets to the queue
    /// pair) is destroyed. Until then the device may update the counters.
    pub(crate) fn keep(&self, counters: Counters) {
        self.counters.lock().push(counters);
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_flow {
        self.raw.as_ptr()
    }
}

impl Drop for FlowHandle {
    fn drop(&mut self) {
        // SAFETY: the flow is valid and destroyed once, here, before its queue pair and counters.
        let errno = unsafe { sys::ibv_destroy_flow(self.raw.as_ptr()) };
        if errno != 0 {
            // The flow still exists in the device and may count packets, so its counters must never
            // be destroyed.
            mem::forget(mem::take(self.counters.get_mut()));
            let errno = positive(errno);
            tracing::error!(queue_pair = %self.queue_pair.describe(), %errno, "ibv_destroy_flow failed");
        }
    }
}

impl Flow {
    /// Takes ownership of a flow that other code created, for example a vendor's extension.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid flow of `queue_pair` that updates no counters other than `counters`.
    /// No other code may destroy it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(
        queue_pair: &QueuePair,
        counters: &[Counters],
        raw: *mut sys::ibv_flow,
    ) -> Self {
        Self::from_handle(FlowHandle {
            raw: NonNull::new(raw).expect("a flow"),
            queue_pair: Arc::clone(queue_pair.handle()),
            counters: Mutex::new(counters.to_vec()),
        })
    }
}
