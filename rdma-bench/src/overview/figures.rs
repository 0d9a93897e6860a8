//! Measures one row of the overview: an operation with one message size over one layer.

use std::path::Path;

use serde::Serialize;

use super::row::Row;
use crate::compare::outcome::middle;
use crate::compare::run::measure as run;
use crate::compare::{Case, Network, Program};
use crate::error::{Error, Result};
use crate::test::{Metric, Test};

/// The measured latency and rate of one operation with one message size over one library, such as
/// rdma-core. Shown as a row of the overview table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// The median of the latency, in microseconds.
    pub latency_p50: f64,
    /// The 99th percentile of the latency, in microseconds.
    pub latency_p99: f64,
    /// Operations per second.
    pub rate: f64,
}

/// Measures `row` (an operation with messages of one size over one layer) `runs` times: with the
/// program `rdma-bench` at `program`, or with perftest if the row is perftest's. Returns the median
/// of each measured value.
///
/// # Errors
///
/// [`Error::Program`] when a run fails.
pub fn measure(row: &Row, network: &Network, program: &Path, runs: usize) -> Result<Figures> {
    let options = row.subject.options(row.verb);
    let program = match row.subject.layer() {
        Some(layer) => Program::Ours(program.to_owned(), layer),
        None => Program::Perftest,
    };
    let (mut p50, mut p99, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        let case = case(row, Metric::Latency);
        let latency = run(&program, &case, network, options)?;
        p50.push(latency.figure);
        p99.push(latency.percentile_99.ok_or_else(|| Error::Program {
            program: program.name(&case),
            reason: "no 99th percentile in the results".into(),
        })?);
        let case = self::case(row, Metric::Bandwidth);
        rates.push(run(&program, &case, network, options)?.figure);
    }
    let median = |figures: Vec<f64>| middle(figures.into_iter()).unwrap_or(f64::NAN);
    Ok(Figures {
        latency_p50: median(p50),
        latency_p99: median(p99),
        rate: median(rates),
    })
}

/// Returns the test that measures the operation in `row`. The test measures the latency or the
/// bandwidth, according to `metric`. The test has enough messages to take some tenths of a second
/// on softroce, and seconds on an emulated device.
fn case(row: &Row, metric: Metric) -> Case {
    let iterations = match (metric, row.size) {
        (Metric::Latency, ..=8192) => 5_000,
        (Metric::Latency, ..=65536) => 1_000,
        (Metric::Latency, _) => 200,
        (Metric::Bandwidth, ..=512) => 100_000,
        (Metric::Bandwidth, ..=8192) => 30_000,
        (Metric::Bandwidth, ..=65536) => 4_000,
        (Metric::Bandwidth, _) => 300,
    };
    let verb = row.verb;
    Case {
        test: Test { verb, metric },
        size: row.size,
        iterations,
    }
}
