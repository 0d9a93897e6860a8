//! Measures the frequency of this machine's time-stamp counter, which is also the counter of
//! emulated processors.

use std::thread;
use std::time::{Duration, Instant};

/// Duration of the measurement of the time-stamp counter's frequency. The error of a single reading
/// of the counter is about a millionth of this duration.
const MEASUREMENT: Duration = Duration::from_millis(100);

/// Returns the frequency of this machine's time-stamp counter in kHz. The kernel of an emulated
/// virtual machine (the guest) gets this frequency as a parameter.
///
/// Without the parameter, a guest measures the frequency when it boots. On a host that was busy at
/// that time, the result was wrong by a factor of 2.5, and so were all clocks of the guest.
pub(crate) fn kilohertz() -> u64 {
    let (begin, first) = reading();
    thread::sleep(MEASUREMENT);
    let (end, last) = reading();
    let milliseconds = (end - begin).as_secs_f64() * 1e3;
    ((last - first) as f64 / milliseconds).round() as u64
}

/// Reads the clock and the time-stamp counter at nearly the same time, and returns both values.
/// Reads them several times, and returns the values of the reading that took the least time.
fn reading() -> (Instant, u64) {
    let readings = (0..20).map(|_| {
        let before = Instant::now();
        let count = ticks();
        (before.elapsed(), before, count)
    });
    let shortest = readings.min_by_key(|(took, ..)| *took);
    shortest.map_or_else(|| (Instant::now(), ticks()), |(_, at, count)| (at, count))
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns 0 in place of the time-stamp counter on architectures other than x86-64. The counter is
/// needed only for the virtual machine (the guest), which runs only on x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::kilohertz;

    #[test]
    fn repeated_measurements_agree() {
        let (one, other) = (kilohertz(), kilohertz());
        assert!(one > 100_000, "{one}");
        assert!(one.abs_diff(other) < one / 100, "{one} and {other}");
    }
}
