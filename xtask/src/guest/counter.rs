//! Measures the frequency of this machine's time-stamp counter, which is also the counter of emulated
//! processors.

use std::thread;
use std::time::{Duration, Instant};

/// Duration of the measurement. The error of a single reading of the counter is about a millionth of
/// this duration.
const SPAN: Duration = Duration::from_millis(100);

/// Returns the frequency of the time-stamp counter in kHz.
///
/// By default a guest measures the frequency against another clock at its start. On a busy host, which
/// interrupts the guest during the measurement, the result was wrong by a factor of 2.5, and so were
/// all clocks of the guest.
pub(crate) fn kilohertz() -> u64 {
    let (begin, first) = reading();
    thread::sleep(SPAN);
    let (end, last) = reading();
    let milliseconds = (end - begin).as_secs_f64() * 1e3;
    ((last - first) as f64 / milliseconds).round() as u64
}

/// Returns a point in time and the value of the counter at that time, taken from the fastest of
/// several readings.
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

/// Returns 0: no guest runs on architectures other than x86-64.
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
