//! The goals of comparisons, and the verdicts whether they are met.

use serde::Serialize;
use serde_json::{Value, json};

use super::interval::Interval;
/// The upper or lower bound that a goal sets for a number.
pub use crate::compare::Goal as Bound;

/// The goal of a comparison: a bound for a number that is computed from the measured value under
/// test and, in most comparisons, from a measured reference value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Bounds the value under test divided by the reference value.
    Ratio(Bound),
    /// Bounds the value under test minus the reference value, in microseconds.
    Difference(Bound),
    /// Bounds the value under test alone: microseconds, a rate per second, or a count.
    Value(Bound),
}

impl Goal {
    /// Returns the number that this goal bounds: the ratio or the difference of `figure` (the value
    /// under test) and `yardstick` (the reference value), or `figure` alone. Returns `None` if the
    /// reference value is missing, or if a ratio has the reference value 0.
    pub fn judged(self, figure: f64, yardstick: Option<f64>) -> Option<f64> {
        let number = match self {
            Self::Ratio(_) => figure / yardstick?,
            Self::Difference(_) => figure - yardstick?,
            Self::Value(_) => figure,
        };
        number.is_finite().then_some(number)
    }

    /// Returns the maximum or the minimum that this goal sets for the result of a comparison.
    pub fn bound(self) -> Bound {
        match self {
            Self::Ratio(bound) | Self::Difference(bound) | Self::Value(bound) => bound,
        }
    }

    /// Returns the verdict on this goal: met, missed or undecided. `interval` is the confidence
    /// interval of the measured number that this goal bounds, such as a ratio. The goal is
    /// undecided if only one end of the interval meets the bound.
    pub fn verdict(self, interval: &Interval) -> Verdict {
        let bound = self.bound();
        match [interval.low, interval.high].map(|end| bound.is_met(end)) {
            [true, true] => Verdict::Met,
            [false, false] => Verdict::Missed,
            _ => Verdict::Undecided,
        }
    }

    /// Returns the kind of number that this goal bounds, as text for JSON documents: `ratio`,
    /// `difference` or `value`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ratio(_) => "ratio",
            Self::Difference(_) => "difference",
            Self::Value(_) => "value",
        }
    }

    /// Returns this goal as a JSON object with two fields: the kind of the number that must meet
    /// the goal (such as `ratio`), and its maximum or minimum.
    pub(super) fn document(self) -> Value {
        match self.bound() {
            Bound::AtMost(most) => json!({"of": self.name(), "at_most": most}),
            Bound::AtLeast(least) => json!({"of": self.name(), "at_least": least}),
        }
    }
}

/// The result of comparing a goal with the confidence interval of the measured number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole confidence interval meets the goal.
    Met,
    /// The whole confidence interval misses the goal.
    Missed,
    /// The bound of the goal is inside the confidence interval.
    Undecided,
}

impl Verdict {
    /// Returns the word by which tables show this verdict, such as `met`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(goal: Goal, low: f64, high: f64) -> Verdict {
        let median = (low + high) / 2.0;
        goal.verdict(&Interval { median, low, high })
    }

    #[test]
    fn the_whole_interval_must_be_on_one_side() {
        let at_least = Goal::Ratio(Bound::AtLeast(0.9));
        assert_eq!(verdict(at_least, 0.9, 1.0), Verdict::Met);
        assert_eq!(verdict(at_least, 0.89, 1.0), Verdict::Undecided);
        assert_eq!(verdict(at_least, 0.8, 0.89), Verdict::Missed);
        let at_most = Goal::Difference(Bound::AtMost(0.2));
        assert_eq!(verdict(at_most, -0.1, 0.2), Verdict::Met);
        assert_eq!(verdict(at_most, 0.1, 0.21), Verdict::Undecided);
        assert_eq!(verdict(at_most, 0.21, 0.4), Verdict::Missed);
    }

    #[test]
    fn each_kind_judges_its_own_number() {
        let bound = Bound::AtMost(1.0);
        let (ratio, difference) = (Goal::Ratio(bound), Goal::Difference(bound));
        assert_eq!(ratio.judged(3.0, Some(2.0)), Some(1.5));
        assert_eq!(difference.judged(3.0, Some(2.0)), Some(1.0));
        assert_eq!(Goal::Value(bound).judged(3.0, None), Some(3.0));
        assert_eq!(ratio.judged(3.0, Some(0.0)), None);
        assert_eq!(difference.judged(3.0, None), None);
    }
}
