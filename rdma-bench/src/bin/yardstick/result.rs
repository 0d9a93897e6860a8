//! The result of a measurement, as a line of JSON.

use serde_json::json;

/// Name of the format of the JSON results. Each result contains this name. The number at its end is
/// incremented when the meaning of a field changes.
const SCHEMA: &str = "rdma-bench/yardstick/1";

/// The result of a measurement: a rate, or the statistics of a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measured {
    /// The rate of an operation.
    Rate {
        /// Number of operations.
        count: u64,
        /// Operations per second.
        per_second: f64,
    },
    /// The duration of one operation, in microseconds.
    Time {
        /// Number of samples.
        count: usize,
        /// The minimum of the samples.
        min: f64,
        /// The median of the samples.
        median: f64,
        /// The 90th percentile of the samples.
        percentile_90: f64,
    },
}

impl Measured {
    /// Creates the result of a measurement in which `count` operations together took `seconds`: the
    /// rate of the operations.
    pub(crate) fn rate(count: u64, seconds: f64) -> Self {
        Self::Rate {
            count,
            per_second: count as f64 / seconds,
        }
    }

    /// Creates the result of a measurement of times: the statistics of `samples`, each the duration
    /// of an operation in nanoseconds. Fails if there are no samples.
    pub(crate) fn time(mut samples: Vec<f64>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !samples.is_empty(),
            "the measurement ended before the first sample"
        );
        samples.sort_unstable_by(f64::total_cmp);
        let rank = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize] / 1e3;
        Ok(Self::Time {
            count: samples.len(),
            min: rank(0.0),
            median: rank(0.5),
            percentile_90: rank(0.9),
        })
    }

    /// Returns this result of a measurement as one line of JSON, which the program `yardstick`
    /// prints.
    pub(crate) fn line(&self) -> String {
        let document = match *self {
            Self::Rate { count, per_second } => json!({
                "schema": SCHEMA,
                "unit": "1/s",
                "count": count,
                "figure": per_second,
            }),
            Self::Time {
                count,
                min,
                median,
                percentile_90,
            } => json!({
                "schema": SCHEMA,
                "unit": "usec",
                "count": count,
                "figure": median,
                "min": min,
                "percentile_90": percentile_90,
            }),
        };
        document.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_figure() {
        let time = Measured::time(vec![3000.0, 1000.0, 2000.0, 9000.0, 4000.0]).unwrap();
        let line: serde_json::Value = serde_json::from_str(&time.line()).unwrap();
        assert_eq!((&line["figure"], &line["min"]), (&json!(3.0), &json!(1.0)));
        assert_eq!(line["unit"], "usec");
        assert!(Measured::time(Vec::new()).is_err());
        assert_eq!(
            Measured::rate(10, 0.5),
            Measured::Rate {
                count: 10,
                per_second: 20.0
            }
        );
    }
}
