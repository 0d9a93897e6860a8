//! The samples of a measurement, and its results as JSON.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Name of the format of the JSON results. Each result contains this name. The number at its end is
/// incremented when the meaning of a field changes.
pub(crate) const SCHEMA: &str = "rdma-bench/connections/1";

/// The samples of one measurement, which ends after a given duration. Each sample is the average
/// time of the operations that were measured together.
#[derive(Debug)]
pub(crate) struct Samples {
    begun: Instant,
    time: Duration,
    /// The time of one operation in each sample, in nanoseconds.
    samples: Vec<f64>,
    operations: usize,
}

impl Samples {
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            begun: Instant::now(),
            time,
            samples: Vec::new(),
            operations: 0,
        }
    }

    /// Adds a sample: the average time of `operations` operations, which together took `taken`.
    /// Returns `true` when the duration of the measurement is over.
    pub(crate) fn add(&mut self, taken: Duration, operations: usize) -> bool {
        self.samples
            .push(taken.as_nanos() as f64 / operations as f64);
        self.operations += operations;
        self.begun.elapsed() >= self.time
    }

    /// Returns the result of the measurement as JSON: the median over all samples of the time of an
    /// operation, in microseconds.
    pub(crate) fn time(mut self) -> Value {
        self.samples.sort_unstable_by(f64::total_cmp);
        let rank = |share: f64| self.samples[((self.samples.len() - 1) as f64 * share) as usize];
        json!({
            "schema": SCHEMA,
            "unit": "usec",
            "count": self.operations,
            "figure": rank(0.5) / 1e3,
            "min": rank(0.0) / 1e3,
            "percentile_90": rank(0.9) / 1e3,
        })
    }

    /// Returns the result as a JSON object: the name of the format, the unit, the number of
    /// operations, and the rate. The rate is the median, over all samples, of the number of
    /// operations per second.
    pub(crate) fn rate(mut self) -> Value {
        self.samples.sort_unstable_by(f64::total_cmp);
        json!({
            "schema": SCHEMA,
            "unit": "1/s",
            "count": self.operations,
            "figure": 1e9 / self.samples[self.samples.len() / 2],
        })
    }

    /// Returns the time since the measurement began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the result as a JSON object whose rate is the inverse of the mean time of an
    /// operation. In contrast to [`Self::rate`], which uses the median time, rare slow operations
    /// lower this rate.
    pub(crate) fn overall_rate(self) -> Value {
        let mean = self.samples.iter().sum::<f64>() / self.samples.len() as f64;
        json!({
            "schema": SCHEMA,
            "unit": "1/s",
            "count": self.operations,
            "figure": 1e9 / mean,
        })
    }
}
