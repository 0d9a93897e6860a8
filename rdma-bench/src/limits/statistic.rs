//! The numbers that the judge reads from the result of a program.

use std::fmt;

use serde_json::Value;

/// The number that a comparison takes from the result of a program, such as the median or a
/// percentile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Statistic {
    /// The median of a latency, or the average of a rate.
    #[default]
    Typical,
    /// The 99th percentile of a latency.
    P99,
    /// The 99.9th percentile of a latency.
    P99_9,
    /// The average rate of the messages that a latency test sends on a second queue pair.
    Beside,
    /// A number in the JSON document of the program, at the given JSON pointer
    /// (`/results/n_iterations`).
    Counter(&'static str),
}

impl Statistic {
    /// Returns the percentile of the latency that this statistic selects, as text: "50.0", "99.0"
    /// or "99.9". Returns `None` for a statistic that is no percentile.
    pub(super) fn percentile(self) -> Option<&'static str> {
        match self {
            Self::Typical => Some("50.0"),
            Self::P99 => Some("99.0"),
            Self::P99_9 => Some("99.9"),
            Self::Beside | Self::Counter(_) => None,
        }
    }

    /// Returns the number for this statistic, such as the median or the 99th percentile, from
    /// `document`, the JSON result that a benchmark program wrote. Returns `None` if the document
    /// does not have the number.
    pub(crate) fn in_document(self, document: &Value) -> Option<f64> {
        let results = &document["results"];
        let number = match self {
            Self::Typical => &document["figure"],
            Self::P99 => &results["percentile_99"],
            Self::P99_9 => &results["percentile_99.9"],
            Self::Beside => &results["beside"]["MsgRate"],
            Self::Counter(pointer) => document.pointer(pointer)?,
        };
        // The document gives millions of messages per second.
        let factor = if self == Self::Beside { 1e6 } else { 1.0 };
        self.if_valid(number.as_f64()? * factor)
    }

    /// Returns the number for this statistic, such as the median or the 99th percentile, from
    /// `columns`, the result line of a latency test of perftest. Returns `None` if perftest does
    /// not print the number.
    pub(crate) fn in_columns(self, columns: &[f64]) -> Option<f64> {
        let column = match self {
            Self::Typical => 4,
            Self::P99 => 7,
            Self::P99_9 => 8,
            Self::Beside | Self::Counter(_) => return None,
        };
        self.if_valid(*columns.get(column)?)
    }

    /// Returns `number`, a measured value of this statistic, if the value is valid. Otherwise
    /// returns `None`. A valid time or rate is positive, and a valid count is not negative.
    pub(super) fn if_valid(self, number: f64) -> Option<f64> {
        let least = match self {
            Self::Counter(_) => 0.0,
            _ => f64::MIN_POSITIVE,
        };
        (number.is_finite() && number >= least).then_some(number)
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Typical => "typical",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
            Self::Beside => "rate beside",
            Self::Counter(pointer) => pointer,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALLOCATIONS: Statistic = Statistic::Counter("/counters/allocations");

    #[test]
    fn percentiles_and_counters_are_read_from_documents() {
        let document = json!({
            "results": {
                "t_typical": 1.0,
                "percentile_99": 2.0,
                "percentile_99.9": 3.0,
                "beside": {"MsgRate": 0.5},
            },
            "counters": {"allocations": 0, "name": "none"},
        });
        assert_eq!(Statistic::P99.in_document(&document), Some(2.0));
        assert_eq!(Statistic::P99_9.in_document(&document), Some(3.0));
        assert_eq!(Statistic::Beside.in_document(&document), Some(500_000.0));
        assert_eq!(ALLOCATIONS.in_document(&document), Some(0.0));
        for absent in ["/counters/calls", "/counters/name", "counters"] {
            assert_eq!(Statistic::Counter(absent).in_document(&document), None);
        }
        assert_eq!(Statistic::P99.in_document(&json!({"results": []})), None);
    }

    #[test]
    fn percentiles_are_read_from_perftests_columns() {
        let columns = [8.0, 200.0, 9.78, 247.11, 10.10, 12.48, 11.83, 159.45, 247.2];
        assert_eq!(Statistic::Typical.in_columns(&columns), Some(10.10));
        assert_eq!(Statistic::P99.in_columns(&columns), Some(159.45));
        assert_eq!(Statistic::P99_9.in_columns(&columns), Some(247.2));
        assert_eq!(Statistic::P99.in_columns(&columns[..5]), None);
        assert_eq!(Statistic::Beside.in_columns(&columns), None);
        assert_eq!(ALLOCATIONS.in_columns(&columns), None);
    }

    #[test]
    fn times_are_positive_numbers() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Statistic::P99.if_valid(wrong), None);
        }
        assert_eq!(ALLOCATIONS.if_valid(-1.0), None);
    }
}
