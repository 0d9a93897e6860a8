//! The tests that are compared with perftest. A case is a test with messages of one size.

use std::fmt;

use serde_json::{Value, json};

use super::{Goal, Network};
use crate::machine::Machine;
use crate::settings::Settings;
use crate::test::{Metric, Test, Verb};

/// The effort of a comparison with perftest: how many message sizes are measured, how long each run
/// is, and how many pairs of runs are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// A few sizes and short runs, which take minutes even on emulated processors.
    Quick,
    /// Every size, with runs long enough to decide whether a goal is met.
    Full,
}

impl Effort {
    /// Returns the numbers of pairs of runs after which the results are compared with the goal, in
    /// rising order. The measurement ends when the results show that the goal is met or missed. The
    /// measurement ends at the latest after the last of these numbers.
    pub(super) fn checks(self) -> &'static [usize] {
        match self {
            Self::Quick => &[3],
            Self::Full => &[7, 11, 15],
        }
    }

    fn sizes(self) -> Vec<usize> {
        match self {
            Self::Quick => Goal::SIZES.to_vec(),
            Self::Full => (1..=20).map(|exponent| 1 << exponent).collect(),
        }
    }

    /// Returns the number of messages that one run of a test sends at this level of effort. The
    /// number depends on the message size `size`, and on whether the test measures the latency or
    /// the bandwidth (`metric`).
    fn iterations(self, metric: Metric, size: usize) -> usize {
        let most = match metric {
            Metric::Latency => 1000,
            Metric::Bandwidth => 4000,
        };
        // Large messages: about the same number of bytes for every size.
        let quick = ((24 << 20) / (size + 4096)).clamp(20, most);
        match self {
            Self::Quick => quick,
            Self::Full => quick * 4,
        }
    }
}

/// A test with messages of one size that both `rdma-bench` and perftest can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The operation and the quantity to measure.
    pub test: Test,
    /// The message size in bytes.
    pub size: usize,
    /// The number of messages to measure.
    pub iterations: usize,
}

impl Case {
    /// Returns all tests that are compared with perftest, one for each message size. `effort`
    /// determines the message sizes and the numbers of messages.
    pub fn all(effort: Effort) -> Vec<Self> {
        let mut cases = Vec::new();
        for verb in [Verb::Send, Verb::Write, Verb::Read, Verb::FetchAndAdd] {
            for metric in [Metric::Latency, Metric::Bandwidth] {
                let sizes = if verb.is_atomic() {
                    vec![8]
                } else {
                    effort.sizes()
                };
                cases.extend(sizes.into_iter().map(|size| Self {
                    test: Test { verb, metric },
                    size,
                    iterations: effort.iterations(metric, size),
                }));
            }
        }
        cases
    }

    /// Returns the settings with which `rdma-bench` runs this test. The queue depth and the
    /// signaling interval equal those of perftest, so that the results of both programs are
    /// comparable.
    pub(crate) fn settings(&self) -> Settings {
        let moderation = if self.size > 8192 { 1 } else { 100 };
        Settings {
            cq_moderation: Some(moderation.min(self.iterations)),
            ..Settings::default()
        }
    }

    /// Returns a JSON document of the format `schema` with this test, the device, the machine, and
    /// all entries of the JSON object `findings`.
    pub(super) fn document(
        &self,
        schema: &str,
        network: &Network,
        machine: &Machine,
        findings: Value,
    ) -> Value {
        let mut document = json!({
            "schema": schema,
            "test": self.test.to_string(),
            "size": self.size,
            "iterations": self.iterations,
            "unit": self.test.metric.unit(),
            "device": network.device,
            "port": network.port,
            "gid_index": network.gid_index,
            "mtu": network.mtu,
            "machine": machine,
        });
        if let (Some(document), Value::Object(findings)) = (document.as_object_mut(), findings) {
            document.extend(findings);
        }
        document
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.test, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_cases_are_the_judged_ones() {
        let judged = |case: &&Case| Goal::of(case).is_some();
        let quick = Case::all(Effort::Quick);
        assert_eq!(quick.iter().filter(judged).count(), quick.len());
        assert_eq!(quick.len(), 26);
        assert!(quick.iter().all(|case| case.iterations >= 20));
        let full = Case::all(Effort::Full);
        assert_eq!(full.iter().filter(judged).count(), 26);
    }
}
