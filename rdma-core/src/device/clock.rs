//! The clock with which a device timestamps completions.

use std::time::Duration;

use crate::context::Context;
use crate::error::Result;

/// The clock with which a device timestamps completions, returned by [`Context::clock`].
/// `DeviceClock` is `Send` and `Sync`, like the context.
///
/// ```
/// let context = rdma_core::Context::open("softroce0")?;
/// let clock = context.clock()?;
/// let before = clock.now()?;
/// println!("this took {:?}", clock.between(before, clock.now()?));
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceClock {
    context: Context,
    kilohertz: u64,
    mask: u64,
}

impl DeviceClock {
    pub(crate) fn new(context: Context, kilohertz: u64, mask: u64) -> Self {
        Self {
            context,
            kilohertz,
            mask,
        }
    }

    /// Returns the current time of the device's clock: the number of ticks since an unspecified
    /// start.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_rt_values_ex`.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn now(&self) -> Result<u64> {
        self.context.handle().query_clock()
    }

    /// Returns the frequency of the device's clock in kHz.
    pub fn kilohertz(&self) -> u64 {
        self.kilohertz
    }

    /// Returns the mask of the bits that are valid in a clock reading and in a timestamp of a
    /// completion.
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// Converts a number of ticks of the device's clock to a duration.
    pub fn duration(&self, ticks: u64) -> Duration {
        duration(ticks, self.kilohertz)
    }

    /// Returns the time from `earlier` to `later`. Both arguments are clock ticks: readings of the
    /// device's clock, or timestamps of completions. The result is correct even if the clock has
    /// wrapped around once in between.
    pub fn between(&self, earlier: u64, later: u64) -> Duration {
        self.duration(later.wrapping_sub(earlier) & self.mask)
    }
}

fn duration(ticks: u64, kilohertz: u64) -> Duration {
    let nanoseconds = u128::from(ticks) * 1_000_000 / u128::from(kilohertz.max(1));
    let seconds = u64::try_from(nanoseconds / 1_000_000_000).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanoseconds % 1_000_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_time() {
        assert_eq!(duration(1_000_000, 1_000_000), Duration::from_millis(1));
        assert_eq!(duration(156_250, 156_250), Duration::from_millis(1));
        assert_eq!(duration(u64::MAX, 1_000_000).as_secs(), 18_446_744_073);
        assert!(duration(u64::MAX, 1).as_secs() > 1 << 53);
        assert_eq!(duration(5, 0), Duration::from_millis(5));
    }
}
