use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// What an event names: an object as C knows it, and how many of the events about it the program
/// has fetched and acknowledged.
///
/// An object that goes away takes the events with it that nobody has fetched, and waits until
/// those that were fetched are acknowledged (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`).
#[derive(Debug, Default)]
pub struct Element {
    object: AtomicUsize,
    fetched: Mutex<Fetched>,
    acknowledged: Condvar,
}

#[derive(Debug, Default)]
struct Fetched {
    /// Events that the program has and has not acknowledged.
    open: u64,
    /// No event shall be queued any more.
    withdrawn: bool,
}

impl Element {
    /// An element whose object has no address yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Says where the object that C knows lies. Before that, nothing must be raised.
    pub fn identify(&self, address: usize) {
        self.object.store(address, Ordering::Release);
    }

    /// Where the object that C knows lies.
    pub fn address(&self) -> usize {
        self.object.load(Ordering::Acquire)
    }

    /// The program acknowledges `count` events.
    pub fn acknowledge(&self, count: u32) {
        let mut fetched = self.fetched.lock();
        fetched.open = fetched.open.saturating_sub(u64::from(count));
        if fetched.open == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until every event that was fetched is acknowledged: as long as the program takes,
    /// that is what the manual pages promise.
    pub fn wait_for_acknowledgements(&self) {
        let mut fetched = self.fetched.lock();
        self.acknowledged
            .wait_while(&mut fetched, |fetched| fetched.open > 0);
    }

    /// The program has fetched an event.
    pub(super) fn fetch(&self) {
        self.fetched.lock().open += 1;
    }

    /// From now on no event is queued.
    pub(super) fn withdraw(&self) {
        self.fetched.lock().withdrawn = true;
    }

    /// Whether events may be queued.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.fetched.lock().withdrawn
    }
}
