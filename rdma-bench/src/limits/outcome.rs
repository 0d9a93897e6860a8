//! What was found about a row.

use serde::Serialize;
use serde_json::{Value, json};

use super::regime::Regime;
use super::row::Row;
use crate::compare::outcome::middle;
use crate::machine::Machine;

/// A run of softroce and one of the yardstick, one after the other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    /// What softroce has: microseconds, or messages each second.
    pub figure: f64,
    /// What the yardstick has, in the same.
    pub yardstick: f64,
    /// The round trip of a cache line before and after, in microseconds.
    pub cache_line: [f64; 2],
    /// What that says.
    pub regimes: [Regime; 2],
    /// What the programs wrote or printed.
    pub documents: Vec<Value>,
}

impl Pair {
    /// Figure by yardstick.
    pub fn ratio(&self) -> f64 {
        self.figure / self.yardstick
    }

    /// Whether the processors moved.
    pub fn has_flipped(&self) -> bool {
        self.regimes[0] != self.regimes[1]
    }
}

/// A row with its pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The row.
    pub row: Row,
    /// The pairs that count, in the order of time.
    pub pairs: Vec<Pair>,
    /// Those that were taken again.
    pub repeated: Vec<Pair>,
}

impl Judged {
    /// The form of the document; another number when its meaning changes.
    pub const SCHEMA: &'static str = "rdma-bench/limit/1";

    /// The median of softroce's figures, and that of the yardstick's.
    pub fn figures(&self) -> [f64; 2] {
        let of =
            |figure: fn(&Pair) -> f64| middle(self.pairs.iter().map(figure)).unwrap_or(f64::NAN);
        [of(|pair| pair.figure), of(|pair| pair.yardstick)]
    }

    /// The median of the pairs' ratios, with the least and the most.
    pub fn ratio(&self) -> (f64, f64, f64) {
        let ratios = || self.pairs.iter().map(Pair::ratio);
        let least = ratios().fold(f64::INFINITY, f64::min);
        let most = ratios().fold(0.0, f64::max);
        (middle(ratios()).unwrap_or(f64::NAN), least, most)
    }

    /// Whether the goal is met.
    pub fn is_met(&self) -> bool {
        self.row.goal.is_met(self.ratio().0)
    }

    /// How many pairs count although the processors moved within them.
    pub fn flipped(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.has_flipped()).count()
    }

    /// Where the processors were in most pairs.
    pub fn regime(&self) -> Regime {
        let lines = self.pairs.iter().flat_map(|pair| pair.cache_line);
        Regime::of(middle(lines).unwrap_or(f64::NAN))
    }

    /// It as a document.
    pub fn document(&self, machine: &Machine) -> Value {
        let Row {
            figure, yardstick, ..
        } = &self.row;
        let part = |part: &super::Part| json!([part.times, part.source.to_string()]);
        let ([own, other], (ratio, least, most)) = (self.figures(), self.ratio());
        json!({
            "schema": Self::SCHEMA,
            "row": self.row.id,
            "what": self.row.what,
            "unit": if figure.source.is_time() { "usec" } else { "1/s" },
            "figure": part(figure),
            "yardstick": yardstick.iter().map(part).collect::<Vec<_>>(),
            "machine": machine,
            "pairs": self.pairs,
            "repeated": self.repeated,
            "summary": {
                "figure": own,
                "yardstick": other,
                "ratio": ratio,
                "ratio_min": least,
                "ratio_max": most,
                "flipped": self.flipped(),
                "regime": self.regime(),
                "goal": self.row.goal,
                "goal_met": self.is_met(),
            },
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::HOST;
    use super::*;

    pub(in crate::limits) fn pair(figure: f64, yardstick: f64, cache_line: [f64; 2]) -> Pair {
        Pair {
            figure,
            yardstick,
            cache_line,
            regimes: cache_line.map(Regime::of),
            documents: Vec::new(),
        }
    }

    pub(in crate::limits) fn judged(id: &str, pairs: &[(f64, f64)]) -> Judged {
        let row = HOST.iter().find(|row| row.id == id).unwrap();
        let pair = |&(figure, yardstick): &(f64, f64)| pair(figure, yardstick, [0.1, 0.1]);
        Judged {
            row: *row,
            pairs: pairs.iter().map(pair).collect(),
            repeated: Vec::new(),
        }
    }

    #[test]
    fn the_median_of_the_ratios_is_judged() {
        let rate = judged("G1", &[(95.0, 100.0), (10.0, 100.0), (91.0, 100.0)]);
        assert_eq!(rate.ratio(), (0.91, 0.1, 0.95));
        assert!(rate.is_met());
        assert!(!judged("G1", &[(89.0, 100.0)]).is_met());
        assert!(judged("G3", &[(2.0, 1.0)]).is_met());
        assert!(!judged("G3", &[(2.1, 1.0)]).is_met());
    }

    #[test]
    fn nothing_measured_is_nothing_met() {
        assert!(!judged("G1", &[]).is_met() && !judged("G3", &[]).is_met());
    }

    #[test]
    fn documents_keep_every_pair() {
        let document = judged("G4", &[(1.0, 2.0), (2.0, 2.0)]).document(&Machine::look());
        assert_eq!(document["pairs"].as_array().unwrap().len(), 2);
        assert_eq!(document["pairs"][0]["regimes"][0], "Near");
        assert_eq!(document["yardstick"][1][0], 0.5);
        assert_eq!(document["summary"]["goal_met"], true);
    }
}
