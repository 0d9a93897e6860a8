//! Outcome of a case, and its text.

use std::fmt;

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// With the reason.
    Ignored(String),
    /// The case failed with this message.
    Failed(String),
    /// The driver deviates from the specification in a known way. Contains the clause and the
    /// deviation.
    Deviation(String),
}

impl Verdict {
    /// Returns the report as one line, for the pipe between worker and runner.
    pub(crate) fn to_line(&self) -> String {
        let (word, text) = match self {
            Self::Passed => ("passed", ""),
            Self::Ignored(reason) => ("ignored", &**reason),
            Self::Failed(problem) => ("failed", &**problem),
            Self::Deviation(known) => ("deviation", &**known),
        };
        format!("{word} {}", text.replace('\n', "\u{1f}"))
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (word, text) = line.split_once(' ')?;
        let text = text.replace('\u{1f}', "\n");
        Some(match word {
            "passed" => Self::Passed,
            "ignored" => Self::Ignored(text),
            "failed" => Self::Failed(text),
            "deviation" => Self::Deviation(text),
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Ignored(reason) => write!(f, "ignored, {reason}"),
            Self::Failed(_) => f.write_str("FAILED"),
            Self::Deviation(known) => write!(f, "deviation, {known}"),
        }
    }
}

/// Number of cases of each outcome.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    pub(crate) deviations: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, verdict: &Verdict) {
        *match verdict {
            Verdict::Passed => &mut self.passed,
            Verdict::Ignored(_) => &mut self.ignored,
            Verdict::Failed(_) => &mut self.failed,
            Verdict::Deviation(_) => &mut self.deviations,
        } += 1;
    }
}
