//! Goals for the ratio of this program's result to perftest's, on every device.

use std::fmt;

use serde::Serialize;

use super::Case;
use crate::test::Metric;

/// The bound that a ratio must meet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Goal {
    /// Maximum of a ratio of latencies.
    AtMost(f64),
    /// Minimum of a ratio of rates.
    AtLeast(f64),
}

impl Goal {
    /// The message sizes that have a goal, in bytes.
    pub(super) const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

    /// Returns the goal of a case: a result within ten percent of perftest's, which also holds on an
    /// emulated processor. Returns `None` for a size without a goal.
    pub fn of(case: &Case) -> Option<Self> {
        Self::SIZES
            .contains(&case.size)
            .then_some(match case.test.metric {
                Metric::Latency => Self::AtMost(1.10),
                Metric::Bandwidth => Self::AtLeast(0.90),
            })
    }

    /// Returns whether `ratio` meets the goal.
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
