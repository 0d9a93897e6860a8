//! The time-stamp counter of this machine, which is the emulated processors' as well.

use std::thread;
use std::time::{Duration, Instant};

/// How long it is watched: what a reading is off by is a millionth of this.
const SPAN: Duration = Duration::from_millis(100);

/// How often it counts in a millisecond.
///
/// A guest finds out by watching another clock at its start. On a busy host, which keeps it from
/// running in between, that went wrong by a factor of 2.5, and all its clocks with it.
pub(crate) fn kilohertz() -> u64 {
    let (begin, first) = reading();
    thread::sleep(SPAN);
    let (end, last) = reading();
    let milliseconds = (end - begin).as_secs_f64() * 1e3;
    ((last - first) as f64 / milliseconds).round() as u64
}

/// A moment, and the count at it: of several readings the one that took the shortest.
fn reading() -> (Instant, u64) {
    let readings = (0..20).map(|_| {
        let before = Instant::now();
        let count = count();
        (before.elapsed(), before, count)
    });
    let shortest = readings.min_by_key(|(took, ..)| *took);
    shortest.map_or_else(|| (Instant::now(), count()), |(_, at, count)| (at, count))
}

#[cfg(target_arch = "x86_64")]
fn count() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// No guest runs there.
#[cfg(not(target_arch = "x86_64"))]
fn count() -> u64 {
    0
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::kilohertz;

    #[test]
    fn it_is_the_same_whenever_it_is_measured() {
        let (one, other) = (kilohertz(), kilohertz());
        assert!(one > 100_000, "{one}");
        assert!(one.abs_diff(other) < one / 100, "{one} and {other}");
    }
}
