use std::sync::Arc;

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::context::{Context, Element};

/// A queue pair as one open device knows it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    /// The open device.
    pub(crate) context: Arc<Context>,
    /// What its asynchronous events name.
    pub(crate) element: Arc<Element>,
}

/// All that know a queue pair: one, but for XRC targets, which can be opened (`ibv_open_qp(3)`).
#[derive(Debug)]
pub(super) struct Handles(Mutex<SmallVec<[Handle; 1]>>);

impl Handles {
    pub(super) fn new(first: Handle) -> Self {
        Self(Mutex::new(SmallVec::from_buf([first])))
    }

    /// One more; refused if the last one is gone.
    pub(super) fn add(&self, handle: Handle) -> bool {
        let mut handles = self.0.lock();
        let alive = !handles.is_empty();
        if alive {
            handles.push(handle);
        }
        alive
    }

    /// One less; whether it was the last.
    pub(super) fn remove(&self, element: &Arc<Element>) -> bool {
        let mut handles = self.0.lock();
        handles.retain(|handle| !Arc::ptr_eq(&handle.element, element));
        handles.is_empty()
    }

    /// None of an open device any more; whether that had some, and no other device has any.
    pub(super) fn remove_all(&self, context: &Arc<Context>) -> bool {
        let mut handles = self.0.lock();
        let before = handles.len();
        handles.retain(|handle| !Arc::ptr_eq(&handle.context, context));
        handles.len() < before && handles.is_empty()
    }

    /// Tells all of them.
    pub(super) fn raise(&self, kind: ibv_event_type) {
        for handle in self.0.lock().iter() {
            handle.context.raise(kind, &handle.element);
        }
    }
}
