//! [`Outcomes`]: counts of the ends of calls, and the ends that must not occur.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rdma_rpc::{BulkError, CallError, Error};

/// Maximum number of violations that are reported.
const REPORTED: usize = 20;

/// The ends of the calls of a process.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Number of calls by the kind of their end, with the time of the longest.
    counts: BTreeMap<&'static str, (u64, Duration)>,
    /// Descriptions of ends that must not occur.
    violations: Vec<String>,
    /// Number of calls that ended after their time because a thread was stalled, and the longest
    /// time by which they were late.
    stalled: (u64, Duration),
    pub(crate) answered: u64,
    pub(crate) failed: u64,
}

impl Outcomes {
    /// Counts a call that took `took`.
    pub(crate) fn count(&mut self, kind: &'static str, took: Duration) {
        let (count, longest) = self.counts.entry(kind).or_default();
        *count += 1;
        *longest = took.max(*longest);
    }

    /// Counts a call that ended late because a thread was stalled.
    pub(crate) fn count_stalled(&mut self, late: Duration) {
        self.stalled.0 += 1;
        self.stalled.1 = late.max(self.stalled.1);
    }

    pub(crate) fn violated(&mut self, what: String) {
        if self.violations.len() < REPORTED {
            self.violations.push(what);
        }
    }

    /// Panics if a call ended as it must not.
    pub(crate) fn assert_no_violation(&self) {
        assert!(self.violations.is_empty(), "{}", self.violations.join("\n"));
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, (count, longest)) in &self.counts {
            write!(f, "{kind}: {count}, at most {} ms; ", longest.as_millis())?;
        }
        write!(f, "{} answered, {} failed", self.answered, self.failed)?;
        let (count, late) = self.stalled;
        write!(
            f,
            "; {count} late by stalls, at most {} ms",
            late.as_millis()
        )
    }
}

/// Returns the name of an error that a call may end with when processes die, or the text of another
/// error.
pub(crate) fn kind(error: &CallError<String>) -> Result<&'static str, String> {
    Ok(match error {
        CallError::Rpc(error) => match error {
            Error::DeadlineExceeded { .. } => "deadline exceeded",
            Error::Disconnected { .. } => "disconnected",
            Error::Transport(_) => "transport",
            Error::ExecutionUnknown { .. } => "execution unknown",
            Error::Overloaded { .. } => "overloaded",
            Error::Unavailable { .. } => "unavailable",
            Error::Bulk(BulkError::Lost) => "bulk lost",
            other => return Err(format!("{other:?}")),
        },
        CallError::Service(text) => return Err(format!("the service refused: {text}")),
    })
}
