use std::sync::Arc;

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::context::{Context, Element};

/// A reference from an open device (`ibv_context`) of the program to a queue pair. Asynchronous
/// events of the queue pair are raised in each open device that has a reference.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    /// Context of the open device.
    pub(crate) context: Arc<Context>,
    /// Subject of asynchronous events: the C object of the queue pair in this open device.
    pub(crate) element: Arc<Element>,
}

/// All references from open devices (`ibv_context`) of the program to a queue pair. Usually only
/// one reference exists. A shared XRC target has a reference from each device that has opened it
/// (`ibv_open_qp(3)`).
#[derive(Debug)]
pub(super) struct Handles(Mutex<SmallVec<[Handle; 1]>>);

impl Handles {
    pub(super) fn new(first: Handle) -> Self {
        Self(Mutex::new(SmallVec::from_buf([first])))
    }

    /// Adds `handle`, a reference from an open device, to the references to this queue pair, and
    /// returns `true`. If no reference is left, the queue pair is being destroyed. In this case,
    /// adds nothing and returns `false`.
    pub(super) fn add(&self, handle: Handle) -> bool {
        let mut handles = self.0.lock();
        let alive = !handles.is_empty();
        if alive {
            handles.push(handle);
        }
        alive
    }

    /// Removes the reference from an open device (`ibv_context`) to the queue pair. `element`
    /// identifies the reference. This structure represents the queue pair in the open device.
    /// Returns `true` if no reference is left. The caller must then destroy the queue pair.
    pub(super) fn remove(&self, element: &Arc<Element>) -> bool {
        let mut handles = self.0.lock();
        handles.retain(|handle| !Arc::ptr_eq(&handle.element, element));
        handles.is_empty()
    }

    /// Removes all references from the open device `context` to the queue pair. Returns `true` if
    /// references were removed and no reference is left. The caller must then destroy the queue
    /// pair.
    pub(super) fn remove_all(&self, context: &Arc<Context>) -> bool {
        let mut handles = self.0.lock();
        let before = handles.len();
        handles.retain(|handle| !Arc::ptr_eq(&handle.context, context));
        handles.len() < before && handles.is_empty()
    }

    /// Raises the asynchronous event `kind` in all open devices that refer to the queue pair.
    pub(super) fn raise(&self, kind: ibv_event_type) {
        for handle in self.0.lock().iter() {
            handle.context.raise(kind, &handle.element);
        }
    }
}
