//! The result of a comparison with perftest.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Case, Goal, Network, Perftest};
use crate::limits::{self, Interval, Verdict};
use crate::machine::Machine;
use crate::statistics::median;

/// The results of two runs of one test, one after the other: the result of `rdma-bench` and the
/// result of perftest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The result of this program: microseconds, or messages per second.
    pub ours: f64,
    /// The result of perftest in the same unit, if perftest can be used.
    pub perftest: Option<f64>,
    /// The JSON document that this program wrote, with its samples.
    pub document: Value,
}

impl Pair {
    /// Returns the result of `rdma-bench` (a latency or a message rate) divided by the result of
    /// perftest; `None` if perftest did not run.
    pub fn ratio(&self) -> Option<f64> {
        self.perftest.map(|theirs| self.ours / theirs)
    }
}

/// The comparison of `rdma-bench` with perftest in one test: the results of every pair of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The test that was measured, with its message size.
    pub case: Case,
    /// The goal for the ratio of the two programs' results, if the test has a goal.
    pub goal: Option<Goal>,
    /// The results of all pairs of runs, in chronological order.
    pub pairs: Vec<Pair>,
}

impl Comparison {
    /// Name of the JSON format, which each document contains. The number at its end is incremented
    /// when the meaning of a field changes.
    pub const SCHEMA: &'static str = "rdma-bench/comparison/2";

    /// Returns the median of the latencies or message rates that `rdma-bench` measured in all pairs
    /// of runs.
    pub fn ours(&self) -> f64 {
        middle(self.pairs.iter().map(|pair| pair.ours)).unwrap_or(f64::NAN)
    }

    /// Returns the median of perftest's results; `None` if perftest did not run.
    pub fn perftest(&self) -> Option<f64> {
        middle(self.pairs.iter().filter_map(|pair| pair.perftest))
    }

    /// Returns the median, the minimum and the maximum of the ratios of all pairs of runs, in this
    /// order. A ratio is the result of `rdma-bench` divided by the result of perftest. Returns
    /// `None` if perftest did not run.
    pub fn ratio(&self) -> Option<(f64, f64, f64)> {
        let ratios = || self.pairs.iter().filter_map(Pair::ratio);
        let least = ratios().fold(f64::INFINITY, f64::min);
        let most = ratios().fold(0.0, f64::max);
        Some((middle(ratios())?, least, most))
    }

    /// Returns the median of the ratios of all pairs of runs, with its 95 % confidence interval. A
    /// ratio is the result of `rdma-bench` divided by the result of perftest. Returns `None` for
    /// fewer than six pairs, which are too few for such an interval.
    pub fn interval(&self) -> Option<Interval> {
        Interval::of(self.pairs.iter().filter_map(Pair::ratio))
    }

    /// Compares the goal with the confidence interval of the ratio (the result of `rdma-bench`
    /// divided by the result of perftest). The verdict is *met* or *missed* if the whole interval
    /// meets or misses the goal, else *undecided*. Returns `None` without a goal, without results
    /// of perftest, and for fewer than six pairs of runs, which give no interval.
    pub fn verdict(&self) -> Option<Verdict> {
        let goal = limits::Goal::Ratio(self.goal?);
        Some(goal.verdict(&self.interval()?))
    }

    /// Returns a JSON document with this comparison, the device `network`, the machine and the
    /// version of perftest.
    pub fn document(
        &self,
        network: &Network,
        machine: &Machine,
        perftest: Option<&Perftest>,
    ) -> Value {
        let case = &self.case;
        let ratio = self.ratio();
        let findings = json!({
            "perftest_version": perftest.map(|perftest| &perftest.version),
            "pairs": self.pairs,
            "summary": {
                "ours": self.ours(),
                "perftest": self.perftest(),
                "ratio": ratio.map(|(middle, ..)| middle),
                "ratio_min": ratio.map(|(_, least, _)| least),
                "ratio_max": ratio.map(|(.., most)| most),
                "goal": self.goal,
                "interval": self.interval(),
                "verdict": self.verdict(),
            },
        });
        case.document(Self::SCHEMA, network, machine, findings)
    }
}

pub(crate) fn middle(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| median(&sorted))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::test::{Metric, Test, Verb};

    pub(in crate::compare) fn comparison(metric: Metric, pairs: &[(f64, f64)]) -> Comparison {
        let pair = |&(ours, theirs)| Pair {
            ours,
            perftest: Some(theirs),
            document: Value::Null,
        };
        let case = Case {
            test: Test {
                verb: Verb::Send,
                metric,
            },
            size: 8,
            iterations: 1000,
        };
        Comparison {
            case,
            goal: Goal::of(&case),
            pairs: pairs.iter().map(pair).collect(),
        }
    }

    #[test]
    fn the_whole_interval_decides() {
        let ratios = |ratios: [f64; 7]| comparison(Metric::Latency, &ratios.map(|it| (it, 1.0)));
        let near = ratios([1.0, 1.02, 1.05, 1.05, 1.06, 1.08, 1.09]);
        assert_eq!(near.ratio(), Some((1.05, 1.0, 1.09)));
        assert_eq!(near.verdict(), Some(Verdict::Met));
        let wide = ratios([1.0, 1.02, 1.05, 1.05, 1.06, 1.08, 1.2]);
        assert_eq!(wide.verdict(), Some(Verdict::Undecided));
        assert_eq!(ratios([1.2; 7]).verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn without_perftest_or_with_few_pairs_nothing_is_judged() {
        let mut alone = comparison(Metric::Latency, &[(10.0, 10.0); 7]);
        for pair in &mut alone.pairs {
            pair.perftest = None;
        }
        assert_eq!((alone.verdict(), alone.ours()), (None, 10.0));
        let few = comparison(Metric::Latency, &[(10.0, 10.0); 3]);
        assert_eq!(few.verdict(), None);
    }
}
