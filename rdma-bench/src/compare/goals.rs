//! The goals of the comparisons with perftest, which are the same for every device.

use std::fmt;

use serde::Serialize;

use super::Case;
use crate::test::Metric;

/// A bound of a measured number, for instance of the ratio of two results.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Goal {
    /// The maximum of the number: for latencies and their ratios, less is better.
    AtMost(f64),
    /// The minimum of the number: for rates and their ratios, more is better.
    AtLeast(f64),
}

impl Goal {
    /// The message sizes, in bytes, for which the comparison with perftest has a goal: rdma-bench
    /// must be about as fast as perftest. For other sizes, [`Self::of`] returns `None`.
    pub(super) const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

    /// Returns the goal of the test `case`: the latency or the bandwidth of rdma-bench may be at
    /// most ten percent worse than that of perftest. This margin also suffices on emulated
    /// processors. Returns `None` for a message size without a goal.
    pub fn of(case: &Case) -> Option<Self> {
        Self::SIZES
            .contains(&case.size)
            .then_some(match case.test.metric {
                Metric::Latency => Self::AtMost(1.10),
                Metric::Bandwidth => Self::AtLeast(0.90),
            })
    }

    /// Returns whether `ratio` (the result of `rdma-bench` divided by the result of perftest) meets
    /// this goal.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most:.2}"),
            Self::AtLeast(least) => write!(f, ">= {least:.2}"),
        }
    }
}
