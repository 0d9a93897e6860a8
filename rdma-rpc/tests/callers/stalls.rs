//! [`Stalls`]: the time for which the machine let this process wait for a processor. A call cannot
//! end while the threads of its process do not run.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two looks at the counters of the system.
const TICK: Duration = Duration::from_millis(5);

/// Lateness of a look that counts as a stall.
const LATE: Duration = Duration::from_millis(20);

/// Time for which threads of this process were ready to run and did not run.
#[derive(Debug)]
pub(crate) struct Stalls {
    epoch: Instant,
    /// Sum of all threads in microseconds, at the last look.
    total: AtomicU64,
    /// Time of the last look in microseconds.
    seen: AtomicU64,
}

impl Stalls {
    /// Starts a thread that looks at the counters.
    pub(crate) fn watch() -> &'static Self {
        let stalls: &'static Self = Box::leak(Box::new(Self {
            epoch: Instant::now(),
            total: AtomicU64::new(0),
            seen: AtomicU64::new(0),
        }));
        thread::spawn(move || {
            loop {
                stalls.total.fetch_max(waited(), Ordering::SeqCst);
                stalls.seen.store(stalls.now(), Ordering::SeqCst);
                thread::sleep(TICK);
            }
        });
        stalls
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }

    /// Returns the time of all stalls so far, with one that may not have ended.
    pub(crate) fn total(&self) -> Duration {
        let seen = self.seen.load(Ordering::SeqCst);
        let since = Duration::from_micros(self.now().saturating_sub(seen)).saturating_sub(TICK);
        let current = if since < LATE { Duration::ZERO } else { since };
        Duration::from_micros(self.total.load(Ordering::SeqCst)) + current
    }
}

/// Returns the time in microseconds for which the threads of this process have waited for a
/// processor: the second number of `schedstat`, in nanoseconds (proc(5)).
fn waited() -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    let waited = threads.filter_map(|thread| {
        let counters = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        counters.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    waited.sum::<u64>() / 1000
}
