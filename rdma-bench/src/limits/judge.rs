//! Measuring a row, pair by pair.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::outcome::{Judged, Pair};
use super::regime::Regime;
use super::row::{Part, Row};
use super::source::{Reading, Source};
use crate::compare::Network;
use crate::error::Result;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// How many pairs decide.
    pub pairs: usize,
    /// How many more may be taken, for those within which the processors moved.
    pub repeats: usize,
    /// About how long a run takes.
    pub time: Duration,
}

impl Effort {
    /// What takes minutes, and is to be believed.
    pub const FULL: Self = Self {
        pairs: 5,
        repeats: 10,
        time: Duration::from_millis(500),
    };
    /// What shows that every row can be measured.
    pub const QUICK: Self = Self {
        pairs: 3,
        repeats: 2,
        time: Duration::from_millis(100),
    };

    /// The same where instructions are emulated, and take longer.
    pub fn emulated(self) -> Self {
        Self {
            time: self.time * 4,
            ..self
        }
    }
}

/// The programs of this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// `rdma-bench`.
    pub bench: PathBuf,
    /// `yardstick`.
    pub yardstick: PathBuf,
}

/// The devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Networks {
    /// Softroce.
    pub softroce: Network,
    /// The kernel's, if it has one.
    pub kernel: Option<Network>,
}

/// What measures rows.
#[derive(Debug)]
pub struct Judge {
    programs: Programs,
    networks: Networks,
    effort: Effort,
    /// How many messages of a source make a run of the wanted length.
    counts: Vec<(Source, usize)>,
}

impl Judge {
    /// How long the round trip of a cache line is looked at.
    const LINE_TIME: Duration = Duration::from_millis(60);

    /// One for these programs and devices.
    pub fn new(programs: Programs, networks: Networks, effort: Effort) -> Self {
        Self {
            programs,
            networks,
            effort,
            counts: Vec::new(),
        }
    }

    /// Measures a row.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Program`] when a run fails.
    pub fn judge(&mut self, row: &Row) -> Result<Judged> {
        // What runs for the first time tells how long a message takes, and is not counted.
        let parts = std::iter::once(&row.figure).chain(row.yardstick);
        for source in parts.map(|part| &part.source) {
            self.count(source)?;
        }
        take_pairs(row, self.effort, |first| self.pair(row, first))
    }

    /// One pair of runs; `first` says whether the figure is the first of them.
    fn pair(&mut self, row: &Row, first: bool) -> Result<Pair> {
        let before = self.line()?;
        let own = match first {
            true => Some(self.part(&row.figure)?),
            false => None,
        };
        let mut yardsticks = Vec::new();
        for part in row.yardstick {
            match part.source {
                Source::CacheLine => {}
                _ => yardsticks.push(self.part(part)?),
            }
        }
        let own = match own {
            Some(own) => own,
            None => self.part(&row.figure)?,
        };
        let after = self.line()?;
        let line = (before + after) / 2.0;
        for part in row.yardstick {
            if part.source == Source::CacheLine {
                yardsticks.push(Reading {
                    figure: line * part.times,
                    document: Value::Null,
                });
            }
        }
        Ok(Pair {
            figure: own.figure,
            yardstick: yardsticks.iter().map(|reading| reading.figure).sum(),
            cache_line: [before, after],
            regimes: [before, after].map(Regime::of),
            documents: std::iter::once(own)
                .chain(yardsticks)
                .map(|reading| reading.document)
                .collect(),
        })
    }

    fn part(&mut self, part: &Part) -> Result<Reading> {
        let count = self.count(&part.source)?;
        let mut reading = self.measure(&part.source, count, self.effort.time)?;
        reading.figure *= part.times;
        Ok(reading)
    }

    fn line(&self) -> Result<f64> {
        Ok(self.measure(&Source::CacheLine, 0, Self::LINE_TIME)?.figure)
    }

    /// How many messages to measure.
    fn count(&mut self, source: &Source) -> Result<usize> {
        let Some((least, most)) = source.counts() else {
            return Ok(0);
        };
        if let Some((_, count)) = self.counts.iter().find(|(known, _)| known == source) {
            return Ok(*count);
        }
        let figure = self.measure(source, least, self.effort.time)?.figure;
        let count = (self.effort.time.as_secs_f64() / source.seconds(figure)) as usize;
        let count = count.clamp(least, most);
        self.counts.push((*source, count));
        Ok(count)
    }

    fn measure(&self, source: &Source, count: usize, time: Duration) -> Result<Reading> {
        source.measure((&self.programs, &self.networks), count, time)
    }
}

/// Takes pairs, the figure first in one and the yardstick in the next, until there are enough within
/// which the processors did not move. When none may be repeated any more, what came counts.
fn take_pairs(
    row: &Row,
    effort: Effort,
    mut pair: impl FnMut(bool) -> Result<Pair>,
) -> Result<Judged> {
    let (mut pairs, mut repeated): (Vec<Pair>, Vec<Pair>) = Default::default();
    while pairs.len() < effort.pairs {
        let taken = pair(pairs.len() % 2 == 0)?;
        if taken.has_flipped() && repeated.len() < effort.repeats {
            repeated.push(taken);
        } else {
            pairs.push(taken);
        }
    }
    Ok(Judged {
        row: *row,
        pairs,
        repeated,
    })
}

#[cfg(test)]
mod tests {
    use super::super::HOST;
    use super::super::outcome::tests::pair;
    use super::*;

    fn taken(lines: &[[f64; 2]], effort: Effort) -> Judged {
        let mut lines = lines.iter();
        let next = |_| Ok(pair(1.0, 1.0, *lines.next().expect("a pair more")));
        take_pairs(&HOST[0], effort, next).unwrap()
    }

    #[test]
    fn a_pair_that_flipped_is_taken_again() {
        let effort = Effort::QUICK;
        let judged = taken(&[[0.1, 0.1], [0.1, 0.4], [0.4, 0.4], [0.1, 0.11]], effort);
        assert_eq!((judged.pairs.len(), judged.repeated.len()), (3, 1));
        assert_eq!(judged.flipped(), 0);
    }

    #[test]
    fn pairs_are_not_taken_for_ever() {
        let judged = taken(&[[0.1, 0.4]; 5], Effort::QUICK);
        assert_eq!((judged.pairs.len(), judged.repeated.len()), (3, 2));
        assert_eq!(judged.flipped(), 3);
    }

    #[test]
    fn the_sides_take_turns_at_being_first() {
        let mut order = Vec::new();
        take_pairs(&HOST[0], Effort::QUICK, |first| {
            order.push(first);
            Ok(pair(1.0, 1.0, [0.1, 0.1]))
        })
        .unwrap();
        assert_eq!(order, [true, false, true]);
    }
}
