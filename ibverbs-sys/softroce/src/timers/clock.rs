use crate::proto::Time;

/// The system's monotonic clock, since this was made.
#[derive(Debug)]
pub(super) struct Clock {
    /// Nanoseconds of the system's clock.
    origin: u64,
    /// Largest usual delay of the coarse clock, in nanoseconds.
    lag: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            origin: read(libc::clock_gettime, libc::CLOCK_MONOTONIC),
            lag: TICKS * read(libc::clock_getres, libc::CLOCK_MONOTONIC_COARSE),
        }
    }

    /// The present.
    #[inline]
    pub(super) fn now(&self) -> Time {
        self.since_origin(read(libc::clock_gettime, libc::CLOCK_MONOTONIC))
    }

    /// A moment that is later than the present, by [`TICKS`] of the system's clock at most; earlier only where the system was kept
    /// from counting its ticks. Reading the exact time costs four times as much, for the processor finishes what it has in
    /// hand before.
    #[inline]
    pub(super) fn coarse(&self) -> Time {
        self.since_origin(read(libc::clock_gettime, libc::CLOCK_MONOTONIC_COARSE) + self.lag)
    }

    #[inline]
    fn since_origin(&self, time: u64) -> Time {
        Time::from_nanos(time.saturating_sub(self.origin))
    }
}

/// Linux adds to this clock what is two ticks old already.
const TICKS: u64 = 3;

/// Returns what one of the system's functions says of a clock, in nanoseconds.
#[inline]
fn read(
    ask: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int,
    clock: libc::clockid_t,
) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both functions that it is called with write a whole `timespec`, and `time` is one.
    let answer = unsafe { ask(clock, &raw mut time) };
    // Linux has had these clocks since 2.6.32.
    debug_assert_eq!(answer, 0);
    // Enough for 584 years.
    1_000_000_000 * time.tv_sec as u64 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_present_is_rather_later() {
        let clock = Clock::new();
        let (mut last, mut later) = (Time::default(), 0);
        for _ in 0..1000 {
            let (before, coarse, after) = (clock.now(), clock.coarse(), clock.now());
            assert!(last <= before && before <= after);
            assert!(
                (coarse - after).as_nanos() <= clock.lag.into(),
                "{coarse:?} {after:?}"
            );
            later += usize::from(before <= coarse);
            last = after;
        }
        // Not each time: the system itself may be late.
        assert!(later > 0);
    }
}
