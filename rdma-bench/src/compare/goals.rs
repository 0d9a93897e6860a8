//! What the ratio ours / perftest must be.

use std::fmt;

use serde::Serialize;

use super::Case;
use crate::test::Metric;

/// What a ratio must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Goal {
    /// Latency: no more than this.
    AtMost(f64),
    /// Rates: no less than this.
    AtLeast(f64),
}

impl Goal {
    /// Whether a ratio meets it.
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

/// Which cases have a goal, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Goals {
    /// Ten percent at four sizes: for a virtual machine whose processor is emulated.
    #[default]
    Wide,
    /// A few percent where they can be measured, and many pairs: latency and message rate of 8
    /// bytes, bandwidth of 64 KiB.
    Close,
}

impl Goals {
    /// The sizes with a goal in [`Self::Wide`].
    const WIDE: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
    /// The sizes in [`Self::Close`]: of latency and rate, and of bandwidth.
    const RATE: usize = 8;
    const BANDWIDTH: usize = 64 << 10;

    /// That of a case.
    pub fn of(self, case: &Case) -> Option<Goal> {
        match (self, case.test.metric, case.size) {
            (Self::Wide, metric, size) => Self::WIDE.contains(&size).then_some(match metric {
                Metric::Latency => Goal::AtMost(1.10),
                Metric::Bandwidth => Goal::AtLeast(0.90),
            }),
            (Self::Close, Metric::Latency, Self::RATE) => Some(Goal::AtMost(1.03)),
            (Self::Close, Metric::Bandwidth, Self::RATE) => Some(Goal::AtLeast(0.97)),
            (Self::Close, Metric::Bandwidth, Self::BANDWIDTH) => Some(Goal::AtLeast(0.98)),
            (Self::Close, ..) => None,
        }
    }

    /// The sizes of a short run.
    pub(super) fn sizes(self) -> &'static [usize] {
        match self {
            Self::Wide => &Self::WIDE,
            Self::Close => &[Self::RATE, Self::BANDWIDTH],
        }
    }

    /// How many times as many messages a long run takes as a short one. The device in user space is
    /// fast, and what the scheduler does in a moment must not show: at 8 bytes a run of bandwidth
    /// takes a third of a second.
    pub(super) fn factor(self, metric: Metric) -> usize {
        match (self, metric) {
            (Self::Wide, _) => 4,
            (Self::Close, Metric::Latency) => 16,
            (Self::Close, Metric::Bandwidth) => 64,
        }
    }

    /// The fewest pairs of a long run.
    pub(super) fn pairs(self) -> usize {
        match self {
            Self::Wide => 5,
            Self::Close => 7,
        }
    }

    /// The most. Where the ratios of pairs differ by a tenth, the median of 15 is known to three
    /// percent only, which is all that a close goal allows.
    pub(super) fn most_pairs(self) -> usize {
        match self {
            Self::Wide => 15,
            Self::Close => 31,
        }
    }

    /// How far the middle half of the ratios may spread for more pairs to be needless.
    pub(super) fn spread(self) -> f64 {
        match self {
            Self::Wide => 1.1,
            Self::Close => 1.02,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::{Test, Verb};

    #[test]
    fn close_goals_are_for_rates_and_one_bandwidth() {
        let goal = |metric, size| {
            let test = Test {
                verb: Verb::Write,
                metric,
            };
            Goals::Close.of(&Case {
                test,
                size,
                iterations: 1000,
            })
        };
        assert_eq!(goal(Metric::Latency, 8), Some(Goal::AtMost(1.03)));
        assert_eq!(goal(Metric::Bandwidth, 8), Some(Goal::AtLeast(0.97)));
        assert_eq!(goal(Metric::Bandwidth, 65536), Some(Goal::AtLeast(0.98)));
        assert_eq!(goal(Metric::Latency, 65536), None);
        assert_eq!(goal(Metric::Bandwidth, 4096), None);
    }
}
