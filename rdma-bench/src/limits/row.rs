//! The definition of one comparison of the judge: a row of its table.

use std::fmt;

use super::goal::{Bound, Goal};
use super::source::Source;
use super::statistic::Statistic;

/// A comparison of two measured values: the value under test (the figure), the reference value (the
/// yardstick), and the goal that the result must meet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The name of the row, such as `G8a`: a letter, the number of the goal, and a small letter if
    /// the goal has several rows.
    pub id: &'static str,
    /// A description of the two compared values, of the form "measured value / reference value".
    pub what: &'static str,
    /// The unit in which tables show the two values.
    pub unit: Unit,
    /// The measurement of the value under test.
    pub figure: Term,
    /// The measurements whose sum is the reference value. Empty if the goal is about the figure
    /// alone.
    pub yardstick: &'static [Term],
    /// The condition that the measured values must meet.
    pub goal: Goal,
}

impl Row {
    /// Returns whether `name` selects this row: by its full name (`G8a`), by the name without the
    /// small letter (`G8`), or by the first letter (`G`). Ignores the case of letters.
    pub fn matches_name(&self, name: &str) -> bool {
        let goal = self.id.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let letter = goal.trim_end_matches(|c: char| c.is_ascii_digit());
        [self.id, goal, letter]
            .iter()
            .any(|id| id.eq_ignore_ascii_case(name))
    }

    /// Returns the shell command that runs this comparison alone.
    pub fn command(&self) -> String {
        format!("cargo xtask bench --device softroce --only {}", self.id)
    }

    /// Returns the goal of this comparison as text for tables, for example `ratio at most 1.10`.
    pub fn goal_text(&self) -> String {
        let (word, number) = match self.goal.bound() {
            Bound::AtMost(number) => ("at most", number),
            Bound::AtLeast(number) => ("at least", number),
        };
        let (unit, factor) = self.unit.name_and_factor();
        match self.goal {
            Goal::Ratio(_) => format!("ratio {word} {number:.2}"),
            Goal::Difference(_) => format!("{word} {number:.3} {unit} more"),
            Goal::Value(_) if self.unit == Unit::Count => format!("{word} {number}"),
            Goal::Value(_) => format!("{word} {} {unit}", number * factor),
        }
    }
}

/// A measured number in a comparison, times a factor: a program, run with its arguments, measures
/// the number. The value under test is one such term. The reference value is a sum of terms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// The factor by which the measured number is multiplied.
    pub times: f64,
    /// The program that measures the number, with its arguments.
    pub source: Source,
    /// The statistic that is taken from the result of the program.
    pub statistic: Statistic,
}

impl Term {
    /// Creates a term (a number to be measured) from a program. The number is the main result of a
    /// run of the program `source`: the median time of an operation, or the average rate.
    pub const fn of(source: Source) -> Self {
        Self::times(1.0, source)
    }

    /// Creates a term (a number to be measured) from a program and a factor. The number is the main
    /// result of a run of the program `source`, multiplied by `times`. The main result is the
    /// median time of an operation, or the average rate.
    pub const fn times(times: f64, source: Source) -> Self {
        Self {
            times,
            source,
            statistic: Statistic::Typical,
        }
    }

    /// Returns this term (a number to be measured) with another statistic of the program's result,
    /// such as a percentile instead of the median.
    pub const fn with(self, statistic: Statistic) -> Self {
        Self { statistic, ..self }
    }

    /// Returns the kind of the measured number: time, rate or count.
    pub fn quantity(&self) -> Quantity {
        match self.statistic {
            Statistic::Counter(_) => Quantity::Count,
            Statistic::Beside => Quantity::Rate,
            _ => self.source.quantity(),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        match self.statistic {
            Statistic::Typical => Ok(()),
            statistic => write!(f, ": {statistic}"),
        }
    }
}

/// The kind of a measured number: a time, a rate or a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A time in microseconds.
    Time,
    /// A rate: a number per second.
    Rate,
    /// A count, which has no unit.
    Count,
}

impl Quantity {
    /// Returns the unit of this kind of number in JSON documents, such as `usec` for times.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Time => "usec",
            Self::Rate => "1/s",
            Self::Count => "count",
        }
    }
}

/// The unit in which tables show measured values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// Messages per second.
    Messages,
    /// Bytes per second, for messages of this size in bytes.
    Bytes(usize),
    /// A count, which has no unit.
    Count,
}

impl Unit {
    /// Returns the name of this unit, and the factor that converts a measured number to this unit.
    /// The measured number is a time in microseconds, a rate in messages per second, or a count.
    pub fn name_and_factor(self) -> (&'static str, f64) {
        match self {
            Self::Microseconds => ("usec", 1.0),
            Self::Messages => ("kmsg/s", 1e-3),
            Self::Bytes(size) => ("MB/s", size as f64 * 1e-6),
            Self::Count => ("count", 1.0),
        }
    }

    /// Returns the kind of the numbers that have this unit: a time, a rate or a count.
    pub fn quantity(self) -> Quantity {
        match self {
            Self::Microseconds => Quantity::Time,
            Self::Messages | Self::Bytes(_) => Quantity::Rate,
            Self::Count => Quantity::Count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::row;
    use super::*;

    #[test]
    fn rows_are_called_by_name_by_goal_or_by_letter() {
        let called = |id: &'static str, name: &str| Row { id, ..row("G1") }.matches_name(name);
        for name in ["E12b", "e12b", "E12B", "E12", "e12", "E", "e"] {
            assert!(called("E12b", name), "{name}");
        }
        for name in ["E1", "E12a", "E12bc", "12", "b", "", "EE", "G"] {
            assert!(!called("E12b", name), "{name}");
        }
        assert!(called("G1", "G1") && !called("G12", "G1") && !called("G1", "G1a"));
    }

    #[test]
    fn goals_are_shown_in_the_unit_of_the_row() {
        let text = |unit, goal| {
            let row = row("G1");
            Row { unit, goal, ..row }.goal_text()
        };
        let ratio = Goal::Ratio(Bound::AtLeast(0.9));
        assert_eq!(text(Unit::Messages, ratio), "ratio at least 0.90");
        let difference = Goal::Difference(Bound::AtMost(0.2));
        let shown = text(Unit::Microseconds, difference);
        assert_eq!(shown, "at most 0.200 usec more");
        let rate = Goal::Value(Bound::AtLeast(2e6));
        assert_eq!(text(Unit::Messages, rate), "at least 2000 kmsg/s");
        let count = Goal::Value(Bound::AtMost(4.0));
        assert_eq!(text(Unit::Count, count), "at most 4");
    }

    #[test]
    fn rates_beside_a_latency_are_rates() {
        let term = row("G17a").figure.with(Statistic::Typical);
        assert_eq!(term.quantity(), Quantity::Time);
        assert_eq!(term.with(Statistic::Beside).quantity(), Quantity::Rate);
        assert_eq!(
            row("G17b").figure.to_string(),
            "rdma-bench send_lat -s 8 --beside 1048576: rate beside"
        );
    }

    #[test]
    fn counters_are_counts_whatever_measures_them() {
        let figure = row("G3").figure;
        assert_eq!(figure.quantity(), Quantity::Time);
        let counter = figure.with(Statistic::Counter("/results/n_iterations"));
        assert_eq!(counter.quantity(), Quantity::Count);
        assert_eq!(
            counter.to_string(),
            "rdma-bench write_lat -s 8: /results/n_iterations"
        );
    }
}
