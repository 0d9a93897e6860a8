//! [`Stalls`]: the time for which the machine let threads of this process wait for a processor. A
//! call cannot end while the thread that must run next does not run.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// Time between two readings of the counters of the system.
const TICK: Duration = Duration::from_millis(5);

/// Time for which each thread of this process was ready to run and did not run, by thread ID, in
/// nanoseconds.
type Waits = HashMap<String, u64>;

/// Counters of the system, read periodically.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<Arc<Waits>>);

impl Stalls {
    /// Starts a thread that reads the counters.
    pub(crate) fn watch() -> &'static Self {
        let stalls: &'static Self = Box::leak(Box::default());
        thread::spawn(move || {
            loop {
                *stalls.0.lock() = Arc::new(waits());
                thread::sleep(TICK);
            }
        });
        stalls
    }

    /// Returns the last reading, as the begin of an interval.
    pub(crate) fn begin(&self) -> Arc<Waits> {
        Arc::clone(&self.0.lock())
    }
}

/// Returns the time for which all threads together have waited since `begin`. A call needs several
/// threads one after the other, so the longest wait of a single thread is no bound. Reads the
/// counters, so this function is for the few calls that are late.
pub(crate) fn total_since(begin: &Waits) -> Duration {
    let waited = waits().into_iter().map(|(thread, waited)| {
        let before = begin.get(&thread).copied().unwrap_or_default();
        waited.saturating_sub(before)
    });
    Duration::from_nanos(waited.sum())
}

/// Reads the time for which each thread of this process has waited for a processor: the second
/// number of `schedstat` (proc(5)).
fn waits() -> Waits {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let waits = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        let counters = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let waited = counters.split_whitespace().nth(1)?.parse().ok()?;
        Some((thread.file_name().into_string().ok()?, waited))
    });
    waits.collect()
}
