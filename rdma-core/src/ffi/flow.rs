//! A rule that steers packets.

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

/// Owner of an `ibv_flow`.
#[derive(Debug)]
pub(crate) struct FlowHandle {
    raw: NonNull<sys::ibv_flow>,
    queue_pair: Arc<QueuePairHandle>,
    /// What it counts in, which must outlive it.
    counters: Mutex<Vec<Counters>>,
}

// SAFETY: verbs are thread-safe on a flow.
unsafe impl Send for FlowHandle {}
// SAFETY: as above.
unsafe impl Sync for FlowHandle {}

impl FlowHandle {
    pub(crate) fn create(queue_pair: Arc<QueuePairHandle>, rule: &FlowRule) -> Result<Self> {
        const HEAD: usize = size_of::<sys::ibv_flow_attr>();
        let (attributes, layers) = rule.attributes()?;
        for counters in rule.counters() {
            counters.check(queue_pair.domain().context())?;
        }
        // Of u64s, so that the struct lies aligned.
        let mut bytes = vec![0_u64; (HEAD + layers.len()).div_ceil(size_of::<u64>())];
        let begin: *mut u8 = bytes.as_mut_ptr().cast();
        // SAFETY: `bytes` has room for the struct, aligned, and for the layers directly after it.
        let raw = unsafe {
            begin.cast::<sys::ibv_flow_attr>().write(attributes);
            begin
                .add(HEAD)
                .copy_from_nonoverlapping(layers.as_ptr(), layers.len());
            // The queue pair is valid for as long as its handle, which the new handle keeps as it
            // does the counters; the layers are as many as the struct says, each with its size.
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

    /// Keeps counters for as long as the flow.
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
            // It may still count: its counters must never be destroyed.
            mem::forget(mem::take(self.counters.get_mut()));
            let errno = positive(errno);
            tracing::error!(queue_pair = %self.queue_pair.describe(), %errno, "ibv_destroy_flow failed");
        }
    }
}

impl Flow {
    /// Takes over a flow that was made elsewhere, for example by a vendor's extension.
    ///
    /// # Safety
    ///
    /// `raw` is a valid flow of `queue_pair` that counts in `counters` at the most, and which
    /// nothing else destroys.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
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
