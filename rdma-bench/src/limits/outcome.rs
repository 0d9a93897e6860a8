//! The result of measuring a comparison (a row of the judge).

use serde::Serialize;
use serde_json::{Value, json};

use super::distance::Distance;
use super::goal::{Goal, Verdict};
use super::interval::Interval;
use super::row::{Row, Term};
use crate::compare::outcome::middle;
use crate::machine::Machine;

/// The results of two measurements, one after the other: the value under test and its reference
/// value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// The value under test: microseconds, messages per second, or a count.
    pub figure: f64,
    /// The reference value in the same unit as `figure`, if the comparison has one.
    pub yardstick: Option<f64>,
    /// The number that the goal bounds: the ratio, the difference in microseconds, or the value
    /// under test.
    pub judged: f64,
    /// The round trip of a cache line before and after the pair, in microseconds.
    pub cache_line: [f64; 2],
    /// The distance of the two processors (near if they share a cache) before and after the pair,
    /// derived from `cache_line`.
    #[serde(rename = "regimes")]
    pub distances: [Distance; 2],
    /// The JSON documents or the outputs of the programs.
    pub documents: Vec<Value>,
}

impl Pair {
    /// Creates the result of a pair of measurements: the value under test `figure` and the
    /// reference value `yardstick`. Computes from these values the number that `goal` bounds, such
    /// as their ratio. Returns `None` if the number cannot be computed, as for a ratio with a
    /// reference value of 0.
    pub(super) fn new(
        goal: Goal,
        figure: f64,
        yardstick: Option<f64>,
        cache_line: [f64; 2],
        documents: Vec<Value>,
    ) -> Option<Self> {
        Some(Self {
            figure,
            yardstick,
            judged: goal.judged(figure, yardstick)?,
            cache_line,
            distances: cache_line.map(Distance::of),
            documents,
        })
    }

    /// Returns `true` if a virtual processor moved to another core during this pair of
    /// measurements. The two processors of the test then shared a cache only before the pair, or
    /// only after the pair.
    pub fn has_moved(&self) -> bool {
        self.distances[0] != self.distances[1]
    }
}

/// The result of a comparison: its definition ([`Row`]), and all pairs of measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The comparison that was measured.
    pub row: Row,
    /// The pairs on which the verdict is based, in chronological order.
    pub pairs: Vec<Pair>,
    /// The pairs that do not count and were repeated, because a processor moved during them (see
    /// [`Pair::has_moved`]).
    pub repeated: Vec<Pair>,
}

impl Judged {
    /// Name of the JSON format, which each document contains. The number at its end is incremented
    /// when the meaning of a field changes.
    pub const SCHEMA: &'static str = "rdma-bench/limit/2";

    /// Returns the median, over all pairs of measurements, of the value that the comparison tests.
    pub fn figure(&self) -> f64 {
        middle(self.pairs.iter().map(|pair| pair.figure)).unwrap_or(f64::NAN)
    }

    /// Returns the median of the reference value over all pairs of measurements; `None` if the
    /// comparison has no reference value.
    pub fn yardstick(&self) -> Option<f64> {
        middle(self.pairs.iter().filter_map(|pair| pair.yardstick))
    }

    /// Returns the median, over all pairs of measurements, of the number that the goal bounds
    /// ([`Pair::judged`]). This number is the ratio or the difference of the value under test and
    /// the reference value, or the value under test alone.
    pub fn median(&self) -> f64 {
        middle(self.judged()).unwrap_or(f64::NAN)
    }

    /// Returns the 95 % confidence interval of [`Self::median`]; `None` for fewer than six pairs of
    /// measurements.
    pub fn interval(&self) -> Option<Interval> {
        Interval::of(self.judged())
    }

    /// Returns the verdict on the goal: met, missed or undecided. Returns `None` if fewer than six
    /// pairs were measured.
    pub fn verdict(&self) -> Option<Verdict> {
        let interval = self.interval()?;
        Some(self.row.goal.verdict(&interval))
    }

    /// Returns the number of pairs of measurements in this result during which a virtual processor
    /// moved to another core of the host ([`Pair::has_moved`]). The judge repeats such a pair, up
    /// to a maximum number of repetitions. After this maximum, such pairs are part of the result.
    pub fn moved_pairs(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.has_moved()).count()
    }

    /// Returns the distance of the two processors of the measurement: near if they shared a cache,
    /// else far. Derived from the median of all measured times that a cache line took from one
    /// processor to the other and back.
    pub fn distance(&self) -> Distance {
        let lines = self.pairs.iter().flat_map(|pair| pair.cache_line);
        Distance::of(middle(lines).unwrap_or(f64::NAN))
    }

    /// Returns a JSON document with the comparison, its pairs and its verdict. `machine` describes
    /// the machine that measured.
    pub fn document(&self, machine: &Machine) -> Value {
        let row = &self.row;
        let term = |term: &Term| json!([term.times, term.to_string()]);
        json!({
            "schema": Self::SCHEMA,
            "row": row.id,
            "what": row.what,
            "command": row.command(),
            "unit": row.unit.quantity().unit(),
            "figure": term(&row.figure),
            "yardstick": row.yardstick.iter().map(term).collect::<Vec<_>>(),
            "goal": row.goal.document(),
            "machine": machine,
            "pairs": self.pairs,
            "repeated": self.repeated,
            "summary": {
                "figure": self.figure(),
                "yardstick": self.yardstick(),
                "judged": self.median(),
                "confidence": Interval::CONFIDENCE,
                "interval": self.interval().map(|interval| [interval.low, interval.high]),
                "verdict": self.verdict(),
                "flipped": self.moved_pairs(),
                "regime": self.distance(),
            },
        })
    }

    fn judged(&self) -> impl Iterator<Item = f64> {
        self.pairs.iter().map(|pair| pair.judged)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Row;
    use super::super::goal::Bound;
    use super::super::row::Unit;
    use super::super::rows::host_rows;
    use super::super::statistic::Statistic;
    use super::*;

    pub(in crate::limits) fn row(id: &str) -> Row {
        *host_rows().find(|row| row.id == id).expect("a row")
    }

    pub(in crate::limits) fn pair(goal: Goal, figure: f64, line: [f64; 2]) -> Pair {
        Pair::new(goal, figure, Some(1.0), line, Vec::new()).expect("a number")
    }

    /// Creates a result for tests, as if `row` had been measured with one pair for each element of
    /// `figures`, the values under test. The reference value of each pair is 1.
    pub(in crate::limits) fn judged(row: Row, figures: &[f64]) -> Judged {
        let pair = |figure: &f64| pair(row.goal, *figure, [0.1, 0.1]);
        Judged {
            row,
            pairs: figures.iter().map(pair).collect(),
            repeated: Vec::new(),
        }
    }

    #[test]
    fn rates_are_judged_by_the_interval_of_their_ratios() {
        let verdict = |figures: &[f64]| judged(row("G1"), figures).verdict();
        let met = [0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.90];
        assert_eq!(verdict(&met), Some(Verdict::Met));
        // The median alone would meet the goal.
        let spread = [0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.89];
        assert_eq!(verdict(&spread), Some(Verdict::Undecided));
        assert_eq!(verdict(&[0.89; 7]), Some(Verdict::Missed));
        // One outlier of nine is outside of the interval.
        assert_eq!(
            verdict(&[&met[..], &[0.5, 0.97]].concat()),
            Some(Verdict::Met)
        );
    }

    #[test]
    fn few_pairs_have_figures_and_no_verdict() {
        let quick = judged(row("G1"), &[0.5, 0.4, 0.6]);
        assert_eq!((quick.verdict(), quick.interval()), (None, None));
        assert_eq!((quick.figure(), quick.median()), (0.5, 0.5));
        let document = quick.document(&Machine::detect());
        assert_eq!(document["summary"]["verdict"], Value::Null);
        assert_eq!(judged(row("G1"), &[]).verdict(), None);
    }

    #[test]
    fn differences_are_in_microseconds() {
        let row = Row {
            goal: Goal::Difference(Bound::AtMost(0.2)),
            ..row("G3")
        };
        let near = judged(row, &[1.1, 1.0, 0.9, 1.1, 1.15, 1.1, 1.2 - 1e-9]);
        assert_eq!(near.verdict(), Some(Verdict::Met));
        assert!((near.median() - 0.1).abs() < 1e-9, "{}", near.median());
        assert_eq!(judged(row, &[1.5; 7]).verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn counters_are_judged_without_a_yardstick() {
        let figure = row("G3").figure.with(Statistic::Counter("/allocations"));
        let row = Row {
            unit: Unit::Count,
            figure,
            yardstick: &[],
            goal: Goal::Value(Bound::AtMost(0.0)),
            ..row("G3")
        };
        let counted = |figure| {
            let pair = Pair::new(row.goal, figure, None, [0.1, 0.1], Vec::new()).unwrap();
            let mut judged = judged(row, &[]);
            judged.pairs = vec![pair; 7];
            judged
        };
        assert_eq!(counted(0.0).verdict(), Some(Verdict::Met));
        assert_eq!(counted(1.0).verdict(), Some(Verdict::Missed));
        assert_eq!(counted(1.0).yardstick(), None);
        let document = counted(0.0).document(&Machine::detect());
        assert_eq!(document["unit"], "count");
        assert_eq!(document["summary"]["yardstick"], Value::Null);
    }

    #[test]
    fn a_ratio_to_nothing_is_no_pair() {
        let pair = |yardstick| Pair::new(row("G1").goal, 1.0, yardstick, [0.1; 2], Vec::new());
        assert_eq!((pair(Some(0.0)), pair(None)), (None, None));
    }

    #[test]
    fn documents_keep_every_pair_and_the_verdict() {
        let figures = [0.5, 1.0, 0.6, 0.7, 0.8, 1.5, 0.9];
        let document = judged(row("G4"), &figures).document(&Machine::detect());
        assert_eq!(document["schema"], "rdma-bench/limit/2");
        assert_eq!(document["pairs"].as_array().unwrap().len(), 7);
        assert_eq!(document["pairs"][0]["regimes"][0], "Near");
        assert_eq!(document["pairs"][0]["judged"], 0.5);
        assert_eq!(document["yardstick"][1][0], 0.5);
        assert_eq!(document["goal"], json!({"of": "ratio", "at_most": 1.5}));
        assert_eq!(document["summary"]["judged"], 0.8);
        assert_eq!(document["summary"]["interval"], json!([0.5, 1.5]));
        assert_eq!(document["summary"]["verdict"], "met");
        let command = "cargo xtask bench --device softroce --only G4";
        assert_eq!(document["command"], command);
    }
}
