use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since an epoch. The caller chooses the epoch, which must be the
/// same for all queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Creates the time that is `nanoseconds` after the epoch, which the caller chooses.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the time as the number of nanoseconds since the epoch, which the caller chooses.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub for Time {
    type Output = Duration;

    /// Returns the duration from `earlier` to this time, or zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
