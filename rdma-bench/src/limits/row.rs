//! A goal and what it is about.

use super::source::Source;
use crate::compare::Goal;

/// A figure of softroce, the yardstick that it is held against, and what their ratio must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Its name: a goal's number, and a letter where the goal has several rows.
    pub id: &'static str,
    /// What is divided by what.
    pub what: &'static str,
    /// What figure and yardstick are shown in.
    pub unit: Unit,
    /// The numerator.
    pub figure: Part,
    /// The denominator: the sum of these.
    pub yardstick: &'static [Part],
    /// What the ratio must be.
    pub goal: Goal,
}

impl Row {
    /// Whether `name` asks for it: by its name, or by its goal's.
    pub fn is_called(&self, name: &str) -> bool {
        let goal = self.id.trim_end_matches(|c: char| c.is_ascii_lowercase());
        [self.id, goal]
            .iter()
            .any(|id| id.eq_ignore_ascii_case(name))
    }
}

/// A multiple of what a source measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// How many times.
    pub times: f64,
    /// Of what.
    pub source: Source,
}

impl Part {
    /// Once.
    pub const fn of(source: Source) -> Self {
        Self { times: 1.0, source }
    }

    /// So many times.
    pub const fn times(times: f64, source: Source) -> Self {
        Self { times, source }
    }
}

/// What figures are shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// Messages each second.
    Messages,
    /// Bytes each second of messages of this size.
    Bytes(usize),
}

impl Unit {
    /// Its name, and what to multiply microseconds or messages each second with.
    pub fn shown(self) -> (&'static str, f64) {
        match self {
            Self::Microseconds => ("usec", 1.0),
            Self::Messages => ("kmsg/s", 1e-3),
            Self::Bytes(size) => ("MB/s", size as f64 * 1e-6),
        }
    }
}
