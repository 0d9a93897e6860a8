//! Goals for the ratio ours / perftest, on every device.

use std::fmt;

use serde::Serialize;

use super::Case;
use crate::test::Metric;

/// The most or the least that a ratio may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Goal {
    /// Of a latency: no more than this.
    AtMost(f64),
    /// Of a rate: no less than this.
    AtLeast(f64),
}

impl Goal {
    /// The sizes with a goal, in bytes.
    pub(super) const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

    /// Returns the goal of a case, if it has one: ten percent, which also holds where the processor is
    /// emulated.
    pub fn of(case: &Case) -> Option<Self> {
        Self::SIZES
            .contains(&case.size)
            .then_some(match case.test.metric {
                Metric::Latency => Self::AtMost(1.10),
                Metric::Bandwidth => Self::AtLeast(0.90),
            })
    }

    /// Returns whether a ratio meets the goal.
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
