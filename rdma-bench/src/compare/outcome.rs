//! What a comparison found.

use serde::Serialize;
use serde_json::{Value, json};

use super::{Case, Goal, Goals, Network, Perftest};
use crate::machine::Machine;
use crate::statistics::median;

/// One run of each program, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// What this program measured: microseconds, or messages each second.
    pub ours: f64,
    /// What perftest did, if it is there.
    pub perftest: Option<f64>,
    /// The document that this program wrote, with its samples.
    pub document: Value,
}

impl Pair {
    /// Ours by perftest's.
    pub fn ratio(&self) -> Option<f64> {
        self.perftest.map(|theirs| self.ours / theirs)
    }
}

/// Every pair of runs of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What was measured.
    pub case: Case,
    /// What its ratio must be.
    pub goal: Option<Goal>,
    /// The pairs in the order of time.
    pub pairs: Vec<Pair>,
}

impl Comparison {
    /// The form of the document; another number when its meaning changes.
    pub const SCHEMA: &'static str = "rdma-bench/comparison/1";

    /// The median of what this program measured.
    pub fn ours(&self) -> f64 {
        middle(self.pairs.iter().map(|pair| pair.ours)).unwrap_or(f64::NAN)
    }

    /// The median of what perftest measured.
    pub fn perftest(&self) -> Option<f64> {
        middle(self.pairs.iter().filter_map(|pair| pair.perftest))
    }

    /// The median of the pairs' ratios, with the least and the most.
    pub fn ratio(&self) -> Option<(f64, f64, f64)> {
        let ratios = || self.pairs.iter().filter_map(Pair::ratio);
        let least = ratios().fold(f64::INFINITY, f64::min);
        let most = ratios().fold(0.0, f64::max);
        Some((middle(ratios())?, least, most))
    }

    /// Whether the goal is met; none where there is no goal or nothing to compare with.
    pub fn is_met(&self) -> Option<bool> {
        let (ratio, ..) = self.ratio()?;
        self.goal.map(|goal| goal.is_met(ratio))
    }

    /// Whether more pairs would say nothing else: the middle ones agree.
    pub(super) fn is_settled(&self, goals: Goals) -> bool {
        let mut ratios: Vec<f64> = self.pairs.iter().filter_map(Pair::ratio).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let quarter = ratios.len() / 4;
        match (ratios.get(quarter), ratios.iter().nth_back(quarter)) {
            (Some(low), Some(high)) => high / low < goals.spread(),
            _ => true,
        }
    }

    /// It as a document.
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
                "goal_met": self.is_met(),
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
            goal: Goals::Wide.of(&case),
            pairs: pairs.iter().map(pair).collect(),
        }
    }

    #[test]
    fn the_median_of_the_ratios_decides() {
        let pairs = [(10.0, 10.0), (30.0, 10.0), (10.5, 10.0)];
        let latency = comparison(Metric::Latency, &pairs);
        assert_eq!(latency.ratio(), Some((1.05, 1.0, 3.0)));
        assert_eq!(latency.is_met(), Some(true));
        let pairs = [(80.0, 100.0), (89.0, 100.0), (95.0, 100.0)];
        assert_eq!(comparison(Metric::Bandwidth, &pairs).is_met(), Some(false));
    }

    #[test]
    fn without_perftest_nothing_is_judged() {
        let mut alone = comparison(Metric::Latency, &[(10.0, 10.0)]);
        alone.pairs[0].perftest = None;
        assert_eq!((alone.is_met(), alone.ours()), (None, 10.0));
        assert!(alone.is_settled(Goals::Wide));
    }

    #[test]
    fn outliers_do_not_unsettle() {
        let steady = [(1.0, 1.0), (1.02, 1.0), (1.01, 1.0), (9.0, 1.0), (1.0, 1.0)];
        assert!(comparison(Metric::Latency, &steady).is_settled(Goals::Wide));
        let wild = [(1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (9.0, 1.0), (1.0, 1.0)];
        assert!(!comparison(Metric::Latency, &wild).is_settled(Goals::Wide));
    }
}
