//! Stops of the process inside of the device that a test asks for. Only test builds have them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// A point in the device's code at which the process can be made to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StopPoint {
    /// Bytes of a message are about to be copied from the memory of another process: the copy is announced, and the other
    /// process allows it.
    Copy,
    /// The bytes are copied, and the message is not accepted yet.
    Copied,
}

/// Number of passes until the stop; 0 if there is none.
static LEFT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Makes the process stop itself when its threads have reached `point` `passes` times, once.
pub fn stop_at(point: StopPoint, passes: u64) {
    LEFT[point as usize].store(passes, Ordering::SeqCst);
}

/// Stops the process if [`stop_at`] was called for `point`, and this is the pass.
pub(crate) fn pass(point: StopPoint) {
    let left = &LEFT[point as usize];
    if left.load(Ordering::Relaxed) == 0 {
        return;
    }
    let order = Ordering::SeqCst;
    let before = left.fetch_update(order, order, |left| left.checked_sub(1));
    if before == Ok(1) {
        let sent = kill_process(getpid(), Signal::STOP);
        sent.expect("a process may stop itself");
        // Another thread may take the signal: this one goes no further until it has stopped, too.
        thread::sleep(Duration::from_millis(50));
    }
}
