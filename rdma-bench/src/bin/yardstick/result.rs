//! What a measurement found, as a line of JSON.

use serde_json::json;

/// The form of the line; another number when its meaning changes.
const SCHEMA: &str = "rdma-bench/yardstick/1";

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Measured {
    /// How many times a second.
    Rate {
        /// Of how many.
        count: u64,
        /// How many times a second.
        per_second: f64,
    },
    /// How long one takes, in microseconds.
    Time {
        /// Of how many samples.
        count: usize,
        /// The least.
        min: f64,
        /// The median.
        median: f64,
        /// 90 of 100 are no more.
        percentile_90: f64,
    },
}

impl Measured {
    /// `count` times in `seconds`.
    pub(crate) fn rate(count: u64, seconds: f64) -> Self {
        Self::Rate {
            count,
            per_second: count as f64 / seconds,
        }
    }

    /// The figures of samples in nanoseconds, of which there are some.
    pub(crate) fn time(mut samples: Vec<f64>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            !samples.is_empty(),
            "the time was over before a sample was taken"
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

    /// It as a line of JSON.
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
