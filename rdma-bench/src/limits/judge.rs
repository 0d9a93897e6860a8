//! Runs a comparison: measures the value under test (figure) and the reference value (yardstick) in
//! turns, until the goal is decided.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::goal::Verdict;
use super::outcome::{Judged, Pair};
use super::row::{Row, Term};
use super::run::Reading;
use super::source::Source;
use super::statistic::Statistic;
use crate::compare::Network;
use crate::error::{Error, Result};

/// The number and the duration of the measurements of one comparison. Measurements come in pairs:
/// one of the value under test, and one of the reference value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// The numbers of pairs after which the judge evaluates the goal, in rising order. The
    /// measurement ends when an evaluation gives *met* or *missed*, at the latest after the last of
    /// these numbers.
    pub checks: &'static [usize],
    /// Maximum number of pairs that are measured again because a processor moved during the pair
    /// (see [`Pair::has_moved`]).
    pub repeats: usize,
    /// Approximate duration of one run of a program.
    pub time: Duration,
}

impl Effort {
    /// The effort that suffices to decide the goal of a comparison: up to 31 pairs of measurements
    /// (one of the value under test, and one of the reference value).
    ///
    /// The measurement ends early if the 95 % confidence interval decides the goal after a number
    /// of pairs in `checks`. Each check adds a chance of a wrong verdict, so there are few checks.
    /// Suppose that the true median is exactly at the goal. The probability of the verdict *met* is
    /// then 1.5 % with one check after 31 pairs, and 3.9 % with these five checks. With a check
    /// after every pair, the probability would be 6.2 %.
    pub const FULL: Self = Self {
        checks: &[7, 11, 15, 23, 31],
        repeats: 10,
        time: Duration::from_millis(500),
    };
    /// The effort of a quick run: three pairs of measurements for each comparison. Three pairs show
    /// that the comparison can be measured, but are too few for the verdict that its goal is met or
    /// missed.
    pub const QUICK: Self = Self {
        checks: &[3],
        repeats: 2,
        time: Duration::from_millis(100),
    };

    /// Returns the effort for a machine with emulated processors: the same number of pairs of
    /// measurements, but four times the duration of each run of a program.
    pub fn emulated(self) -> Self {
        Self {
            time: self.time * 4,
            ..self
        }
    }
}

/// The paths of the programs that take part in comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The path of `rdma-bench`.
    pub bench: PathBuf,
    /// The path of `yardstick`, which measures the machine without RDMA.
    pub yardstick: PathBuf,
    /// The path of `connections`, which measures connections within one process.
    pub connections: PathBuf,
    /// The path of `streams`, which measures streams between two processes.
    pub streams: PathBuf,
    /// The path of softroce's example `attacker`, if it was built.
    pub attacker: Option<PathBuf>,
    /// The path of `rdma-bench-peers`, which measures other RPC frameworks, if it was built.
    pub peers: Option<PathBuf>,
    /// The directory of rdma-async's examples that comparisons run, if they were built.
    pub examples: Option<PathBuf>,
    /// The path of the program that measures web servers over streams, if it was built.
    pub web: Option<PathBuf>,
}

impl Programs {
    /// Returns the path of softroce's example `attacker`, which sends forged packets to a
    /// connection. Fails if the example was not built.
    pub(super) fn attacker(&self) -> Result<&Path> {
        built("attacker", self.attacker.as_deref())
    }

    /// Returns the path of the program `rdma-bench-peers`, which measures other RPC frameworks.
    /// Fails if the program was not built.
    pub(super) fn peers(&self) -> Result<&Path> {
        built("rdma-bench-peers", self.peers.as_deref())
    }

    /// Returns the path of rdma-async's example `name`. Fails if the examples were not built.
    pub(super) fn example(&self, name: &str) -> Result<PathBuf> {
        Ok(built(name, self.examples.as_deref())?.join(name))
    }

    /// Returns the path of the program `web`, which measures web servers over streams. Fails if the
    /// program was not built.
    pub(super) fn web(&self) -> Result<&Path> {
        built("web", self.web.as_deref())
    }
}

/// Returns `path`, the path of an optional benchmark program. Fails if `path` is `None`, because
/// the program was not built. `name` is the name of the program in the error.
fn built<'p>(name: &str, path: Option<&'p Path>) -> Result<&'p Path> {
    path.ok_or_else(|| Error::Program {
        program: name.into(),
        reason: "it was not built: `cargo xtask bench --device softroce` builds it".into(),
    })
}

/// The networks, each with an RDMA device, on which rdma-bench measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    /// The softroce device.
    pub softroce: Network,
    /// The kernel's Soft-RoCE device, if the machine has one.
    pub kernel: Option<Network>,
}

/// The judge: measures comparisons ([`Row`]), and decides whether their goals are met.
#[derive(Debug)]
pub struct Judge {
    programs: Programs,
    networks: Networks,
    effort: Effort,
    /// The programs (with arguments) that were run before, each with the number of messages for
    /// which a run has the intended duration.
    counts: Vec<(Source, usize)>,
}

impl Judge {
    /// Duration of one measurement of the time that a cache line takes between two processors and
    /// back. Short, because one such measurement precedes and one follows each pair of measurements
    /// of a comparison.
    const CACHE_LINE_TIME: Duration = Duration::from_millis(60);

    /// Creates a judge, which measures comparisons and decides whether their goals are met.
    /// `programs` are the programs that measure, and `networks` are the measured devices. `effort`
    /// sets the number and the duration of the measurements of each comparison.
    pub fn new(programs: Programs, networks: Networks, effort: Effort) -> Self {
        Self {
            programs,
            networks,
            effort,
            counts: Vec::new(),
        }
    }

    /// Runs the comparison `row`: measures the value under test and the reference value in pairs.
    /// Stops when the results show that the goal is met or missed. Also stops when the effort
    /// allows no further pair.
    ///
    /// # Errors
    ///
    /// [`Error::Program`] if a run fails. [`Error::Unsupported`] if a program does not report a
    /// number that the comparison needs.
    pub fn judge(&mut self, row: &Row) -> Result<Judged> {
        // The first run of a program only determines the time per message; its result is not used.
        let terms = std::iter::once(&row.figure).chain(row.yardstick);
        for source in terms.map(|term| &term.source) {
            self.count(source)?;
        }
        measure_pairs(row, self.effort, |first| self.pair(row, first))
    }

    /// Measures one pair of the comparison `row`: the value under test and the reference value,
    /// once each. With `figure_first`, the value under test is measured first. Also measures the
    /// round trip of a cache line before and after, which shows whether the processors of the test
    /// share a cache.
    fn pair(&mut self, row: &Row, figure_first: bool) -> Result<Pair> {
        let before = self.cache_line_round_trip()?;
        let (own, mut yardsticks) = if figure_first {
            let own = self.term(&row.figure)?;
            (own, self.measure_yardstick(row)?)
        } else {
            let yardsticks = self.measure_yardstick(row)?;
            (self.term(&row.figure)?, yardsticks)
        };
        let after = self.cache_line_round_trip()?;
        let line = (before + after) / 2.0;
        let is_line = |term: &&Term| term.source == Source::CacheLine;
        yardsticks.extend(row.yardstick.iter().filter(is_line).map(|term| Reading {
            figure: line * term.times,
            document: Value::Null,
        }));
        let sum = yardsticks.iter().map(|reading| reading.figure).sum();
        let yardstick = (!yardsticks.is_empty()).then_some(sum);
        let figure = own.figure;
        let readings = std::iter::once(own).chain(yardsticks);
        let documents = readings.map(|reading| reading.document).collect();
        let pair = Pair::new(row.goal, figure, yardstick, [before, after], documents);
        pair.ok_or_else(|| Error::Program {
            program: row.id.into(),
            reason: format!("no number for the goal: {figure} and {yardstick:?}"),
        })
    }

    /// Measures the reference value of the comparison `row`, with which the value under test is
    /// compared. The reference value is the sum of the returned numbers. Leaves out the round trip
    /// of a cache line, which [`Self::pair`] measures and adds.
    fn measure_yardstick(&mut self, row: &Row) -> Result<Vec<Reading>> {
        let measured = |term: &&Term| term.source != Source::CacheLine;
        let terms = row.yardstick.iter().filter(measured);
        terms.map(|term| self.term(term)).collect()
    }

    fn term(&mut self, term: &Term) -> Result<Reading> {
        let count = self.count(&term.source)?;
        let time = self.effort.time;
        let mut reading = self.measure(&term.source, count, time, term.statistic)?;
        reading.figure *= term.times;
        Ok(reading)
    }

    /// Measures the round trip time of a cache line between two processors, in microseconds.
    fn cache_line_round_trip(&self) -> Result<f64> {
        let typical = Statistic::Typical;
        let reading = self.measure(&Source::CacheLine, 0, Self::CACHE_LINE_TIME, typical)?;
        Ok(reading.figure)
    }

    /// Returns the number of messages with which a run of the program `source` takes about
    /// [`Effort::time`]. The first call for a program runs it once to find the number. Returns 0 if
    /// the program takes a duration instead of a number of messages.
    fn count(&mut self, source: &Source) -> Result<usize> {
        let Some((least, most)) = source.counts() else {
            return Ok(0);
        };
        if let Some((_, count)) = self.counts.iter().find(|(known, _)| known == source) {
            return Ok(*count);
        }
        let time = self.effort.time;
        let reading = self.measure(source, least, time, Statistic::Typical)?;
        let count = (time.as_secs_f64() / source.seconds(reading.figure)) as usize;
        let count = count.clamp(least, most);
        self.counts.push((*source, count));
        Ok(count)
    }

    fn measure(
        &self,
        source: &Source,
        count: usize,
        time: Duration,
        statistic: Statistic,
    ) -> Result<Reading> {
        let environment = (&self.programs, &self.networks);
        source.measure(environment, count, time, statistic)
    }
}

/// Measures the comparison `row` in pairs (one value under test and one reference value), and
/// returns the results. After each number of pairs in [`Effort::checks`], stops if the goal is met
/// or missed. Always stops after the last of these numbers.
///
/// The function `pair` measures one pair. The argument of `pair` is `true` if the value under test
/// must be measured first, which alternates. If a processor moved during a pair
/// ([`Pair::has_moved`]), the pair is measured again, at most [`Effort::repeats`] times in a
/// comparison. After these repetitions, pairs with a moved processor also count.
fn measure_pairs(
    row: &Row,
    effort: Effort,
    mut pair: impl FnMut(bool) -> Result<Pair>,
) -> Result<Judged> {
    let mut judged = Judged {
        row: *row,
        pairs: Vec::new(),
        repeated: Vec::new(),
    };
    for look in effort.checks {
        while judged.pairs.len() < *look {
            let taken = pair(judged.pairs.len().is_multiple_of(2))?;
            if taken.has_moved() && judged.repeated.len() < effort.repeats {
                judged.repeated.push(taken);
            } else {
                judged.pairs.push(taken);
            }
        }
        if let Some(Verdict::Met | Verdict::Missed) = judged.verdict() {
            break;
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::super::interval::Interval;
    use super::super::outcome::tests::{pair, row};
    use super::*;

    /// Returns the result of a comparison with invented measurements, whose goal is a ratio of at
    /// least 0.9. Each element of `pairs` has a ratio, and the round trip times of a cache line
    /// before and after. Different times mean that a processor moved, so that the pair is measured
    /// again. `effort` limits the number of pairs.
    fn taken(effort: Effort, pairs: impl IntoIterator<Item = (f64, [f64; 2])>) -> Judged {
        let row = row("G1");
        let mut pairs = pairs.into_iter();
        let next = |_| {
            let (figure, line) = pairs.next().expect("a pair more");
            Ok(pair(row.goal, figure, line))
        };
        measure_pairs(&row, effort, next).unwrap()
    }

    #[test]
    fn a_pair_is_repeated_if_a_processor_moved() {
        let lines = [[0.1, 0.1], [0.1, 0.4], [0.4, 0.4], [0.1, 0.11]];
        let judged = taken(Effort::QUICK, lines.map(|line| (1.0, line)));
        assert_eq!((judged.pairs.len(), judged.repeated.len()), (3, 1));
        assert_eq!(judged.moved_pairs(), 0);
    }

    #[test]
    fn the_number_of_repeated_pairs_is_limited() {
        let judged = taken(Effort::QUICK, [(1.0, [0.1, 0.4]); 5]);
        assert_eq!((judged.pairs.len(), judged.repeated.len()), (3, 2));
        assert_eq!(judged.moved_pairs(), 3);
    }

    #[test]
    fn pairs_are_measured_until_a_check_decides() {
        let still = [0.1, 0.1];
        let count = |figures: &[f64]| {
            let judged = taken(Effort::FULL, figures.iter().map(|figure| (*figure, still)));
            (judged.pairs.len(), judged.verdict().unwrap())
        };
        assert_eq!(count(&[1.0; 7]), (7, Verdict::Met));
        assert_eq!(count(&[0.8; 7]), (7, Verdict::Missed));
        // One of eleven pairs may be outside of the interval, but not one of seven.
        let outlier = [&[0.8], &[1.0; 10][..]].concat();
        assert_eq!(count(&outlier), (11, Verdict::Met));
        let even = [0.8, 1.0].repeat(16);
        assert_eq!(count(&even), (31, Verdict::Undecided));
    }

    /// Returns the probability of the wrong verdict *met* for a comparison whose true median is
    /// exactly at the goal. `checks` are the numbers of pairs of measurements after which the goal
    /// is evaluated.
    fn false_verdict(checks: &[usize]) -> f64 {
        // At each index: the probability that this many pairs are above the goal and that no
        // evaluation has decided yet.
        let mut undecided = vec![1.0];
        let mut met = 0.0;
        for look in checks {
            while undecided.len() <= *look {
                let mut next = vec![0.0; undecided.len() + 1];
                for (above, probability) in undecided.iter().enumerate() {
                    next[above] += probability / 2.0;
                    next[above + 1] += probability / 2.0;
                }
                undecided = next;
            }
            for (above, probability) in undecided.iter_mut().enumerate() {
                let values = (0..*look).map(|pair| f64::from(u8::from(pair < above)));
                let interval = Interval::of(values).expect("enough pairs");
                if interval.low == interval.high {
                    met += interval.low * *probability;
                    *probability = 0.0;
                }
            }
        }
        met
    }

    #[test]
    fn few_checks_rarely_give_a_false_verdict() {
        let every: Vec<usize> = (7..=31).collect();
        let known = [
            (Effort::FULL.checks, 0.0387),
            (&[31], 0.0147),
            (&every, 0.0622),
        ];
        for (checks, probability) in known {
            let found = false_verdict(checks);
            assert!((found - probability).abs() < 1e-4, "{checks:?}: {found}");
        }
    }

    #[test]
    fn the_two_values_alternate_in_being_measured_first() {
        let mut order = Vec::new();
        let row = row("G1");
        measure_pairs(&row, Effort::QUICK, |first| {
            order.push(first);
            Ok(pair(row.goal, 1.0, [0.1, 0.1]))
        })
        .unwrap();
        assert_eq!(order, [true, false, true]);
    }
}
