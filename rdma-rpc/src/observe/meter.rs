//! [`Meter`]: the metrics of a call, recorded through the crate `metrics`.

use std::borrow::Cow;
use std::time::Instant;

use metrics::{counter, gauge, histogram};

use super::Outcome;

/// Metrics of a call in progress: its labels, and the time of its beginning. Recorded when this
/// value is dropped.
#[derive(Debug)]
pub(super) struct Meter {
    /// Label of the end that records the metrics: `client` or `server`.
    side: &'static str,
    method: Cow<'static, str>,
    begun: Instant,
    /// Outcome of the call; `None` for a call that was cancelled or whose deadline has passed.
    outcome: Option<Outcome>,
}

impl Meter {
    /// Begins the metrics of a call, and counts the call as in flight. `side` is the label of the
    /// end that records the metrics: `client` or `server`.
    pub(super) fn begin(side: &'static str, method: Cow<'static, str>) -> Self {
        gauge!("rdma_rpc_calls_in_flight", "side" => side, "method" => method.clone())
            .increment(1.0);
        Self {
            side,
            method,
            begun: Instant::now(),
            outcome: None,
        }
    }

    /// Records the metrics of the call, with this outcome.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let (side, method) = (self.side, &self.method);
        let outcome = match self.outcome {
            Some(Outcome::Ok) => "ok",
            Some(Outcome::Service) => "error",
            Some(Outcome::Panicked) => "panicked",
            Some(Outcome::Failed) => "failed",
            None => "cancelled",
        };
        gauge!("rdma_rpc_calls_in_flight", "side" => side, "method" => method.clone())
            .decrement(1.0);
        count(side, method.clone(), outcome);
        histogram!("rdma_rpc_call_seconds", "side" => side, "method" => method.clone())
            .record(self.begun.elapsed());
    }
}

/// Increments the metric `rdma_rpc_calls_total`, the number of calls, with the labels `side`,
/// `method` and `outcome`.
fn count(side: &'static str, method: Cow<'static, str>, outcome: &'static str) {
    counter!(
        "rdma_rpc_calls_total",
        "side" => side,
        "method" => method,
        "outcome" => outcome
    )
    .increment(1);
}

/// Counts a call of `method` that a server refused before the call was started.
pub(super) fn count_refused(method: &'static str) {
    count("server", method.into(), "refused");
}
