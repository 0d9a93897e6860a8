use crate::proto::Time;

/// The system's monotonic clock. Its times are nanoseconds since the creation of this value.
#[derive(Debug)]
pub(super) struct Clock {
    /// Time of the creation, in nanoseconds of the system's clock.
    origin: u64,
    /// Maximum time in nanoseconds by which the coarse clock usually is behind the exact clock.
    lag: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            origin: read(libc::clock_gettime, libc::CLOCK_MONOTONIC),
            lag: TICKS * read(libc::clock_getres, libc::CLOCK_MONOTONIC_COARSE),
        }
    }

    /// Returns the present time, without the inaccuracy of [`coarse`](Self::coarse).
    #[inline]
    pub(super) fn now(&self) -> Time {
        self.since_origin(read(libc::clock_gettime, libc::CLOCK_MONOTONIC))
    }

    /// Returns the approximate present time, four times as fast as [`now`](Self::now). Reads a
    /// clock that is updated only at timer ticks, and adds the maximum lag of this clock, [`TICKS`]
    /// ticks. So the result is later than the present time by at most this lag. The result is
    /// earlier than the present time only if the kernel was kept from counting ticks.
    #[inline]
    pub(super) fn coarse(&self) -> Time {
        self.since_origin(read(libc::clock_gettime, libc::CLOCK_MONOTONIC_COARSE) + self.lag)
    }

    #[inline]
    fn since_origin(&self, time: u64) -> Time {
        Time::from_nanos(time.saturating_sub(self.origin))
    }
}

/// Maximum lag of the coarse clock behind the exact clock, in timer ticks. Linux updates the coarse
/// clock once per tick, with a value that can be two ticks old. So the value can be three ticks old
/// before the next update.
const TICKS: u64 = 3;

/// Calls `ask`, which is `clock_gettime` or `clock_getres`, for the system's clock `clock`. Returns
/// the time or the resolution of the clock in nanoseconds.
#[inline]
fn read(
    ask: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int,
    clock: libc::clockid_t,
) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the functions passed by all callers write a whole `timespec`, and `time` is a live
    // one.
    let answer = unsafe { ask(clock, &raw mut time) };
    // The call cannot fail: Linux has had these clocks since 2.6.32.
    debug_assert_eq!(answer, 0);
    // The 64 bits of the result suffice for 584 years.
    1_000_000_000 * time.tv_sec as u64 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_time_exceeds_the_precise_time_by_at_most_the_lag() {
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
        // The condition need not be met in every iteration, because the kernel itself may be late.
        assert!(later > 0);
    }
}
