//! Injected stops of the process (`SIGSTOP`) inside the device. Compiled only for tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// A point in the device's code at which a test can make the process stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StopPoint {
    /// Before bytes of a message are copied from the memory of another process. The copy is already
    /// marked as in progress, and the other process has permitted it.
    Copy,
    /// After bytes of a message were copied from the memory of another process, and before the
    /// message is accepted.
    Copied,
}

/// For each [`StopPoint`], the number of times that threads must still reach the point before the
/// process stops itself. Set by [`stop_at`]; 0 if no stop is requested.
static REMAINING_PASSES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Makes the process stop itself once (`SIGSTOP`), so that a test can examine how a peer process
/// handles the stop. The process stops when its threads have reached `point` for the `passes`-th
/// time after this call.
pub fn stop_at(point: StopPoint, passes: u64) {
    REMAINING_PASSES[point as usize].store(passes, Ordering::SeqCst);
}

/// Records that a thread has reached `point`. A test can request a stop at this point by
/// [`stop_at`]. If threads have now reached the point for the requested number of times, stops the
/// process (`SIGSTOP`).
pub(crate) fn pass(point: StopPoint) {
    let left = &REMAINING_PASSES[point as usize];
    if left.load(Ordering::Relaxed) == 0 {
        return;
    }
    let order = Ordering::SeqCst;
    let before = left.fetch_update(order, order, |left| left.checked_sub(1));
    if before == Ok(1) {
        let sent = kill_process(getpid(), Signal::STOP);
        sent.expect("a process may stop itself");
        // Another thread may handle the signal first, so this thread waits until it is stopped,
        // too.
        thread::sleep(Duration::from_millis(50));
    }
}
