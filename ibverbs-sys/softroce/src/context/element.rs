use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// Event record of an object of the program, such as a queue pair. Events name the object by the
/// address of its C structure, which the record contains. The record counts the events of the
/// object that the program has fetched and not acknowledged.
///
/// When an object is destroyed, events that were not fetched are removed, and the destruction waits
/// until fetched events are acknowledged (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`).
#[derive(Debug, Default)]
pub struct Element {
    object: AtomicUsize,
    fetched: Mutex<Fetched>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Fetched {
    /// Number of fetched events that are not acknowledged.
    open: u64,
    /// Set when the object is being destroyed: no more events of the object may be queued.
    withdrawn: bool,
}

impl Element {
    /// Creates the event record of a new object, such as a queue pair. Events name the object by
    /// the address of its C structure, which is set later ([`identify`](Self::identify)).
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the address of the object's C structure (`ibv_qp`, for example), by which events name
    /// the object. Must be called before the first event of the object is raised.
    pub fn identify(&self, address: usize) {
        self.object.store(address, Ordering::Release);
    }

    /// Returns the address of the object's C structure (`ibv_qp`, for example), by which events
    /// name the object.
    pub fn address(&self) -> usize {
        self.object.load(Ordering::Acquire)
    }

    /// Acknowledges `count` events of this object. The program must have fetched the events before.
    pub fn acknowledge(&self, count: u32) {
        let mut fetched = self.fetched.lock();
        fetched.open = fetched.open.saturating_sub(u64::from(count));
        if fetched.open == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until the program has acknowledged all fetched events of the object. The wait has no
    /// time limit, as the manual pages specify.
    pub fn wait_for_acknowledgements(&self) {
        let mut fetched = self.fetched.lock();
        self.acknowledged
            .wait_while(&mut fetched, |fetched| fetched.open > 0);
    }

    /// Counts an event of this object that the program has fetched. The program must acknowledge
    /// the event before the object can be destroyed.
    pub(super) fn fetch(&self) {
        self.fetched.lock().open += 1;
    }

    /// Prevents further events of the object from being queued, because the object is being
    /// destroyed.
    pub(super) fn withdraw(&self) {
        self.fetched.lock().withdrawn = true;
    }

    /// Returns whether events of the object may no longer be queued, because the object is being
    /// destroyed.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.fetched.lock().withdrawn
    }
}
