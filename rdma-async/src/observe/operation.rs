//! [`Observed`]: the observation of one operation.

use std::time::Instant;

use crate::connection::Connection;
use crate::error::Result;

/// Kind of an operation, the label of its metrics and trace events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    WriteWithImmediate,
    Read,
    CompareAndSwap,
    FetchAndAdd,
    Send,
    Receive,
    RequestMemory,
}

impl Kind {
    #[cfg(feature = "metrics")]
    pub(super) const ALL: [Self; 8] = [
        Self::Write,
        Self::WriteWithImmediate,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAndAdd,
        Self::Send,
        Self::Receive,
        Self::RequestMemory,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteWithImmediate => "write_with_immediate",
            Self::Read => "read",
            Self::CompareAndSwap => "compare_and_swap",
            Self::FetchAndAdd => "fetch_and_add",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::RequestMemory => "request_memory",
        }
    }
}

/// Outcome of an observed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Succeeded,
    Failed,
    /// The future was dropped before the operation completed.
    Dropped,
}

/// Guard of an observed operation in progress. Dropping the guard before [`Self::end`] records that
/// the future of the operation was dropped.
#[derive(Debug)]
pub(crate) struct Observed<'c> {
    connection: &'c Connection,
    kind: Kind,
    bytes: usize,
    begun: Instant,
    has_ended: bool,
}

impl<'c> Observed<'c> {
    pub(crate) fn begin(connection: &'c Connection, kind: Kind, bytes: usize) -> Self {
        #[cfg(feature = "metrics")]
        connection.device().metrics().operation_begun(kind);
        Self {
            connection,
            kind,
            bytes,
            begun: Instant::now(),
            has_ended: false,
        }
    }

    /// Ends the observation with the result of the operation, and returns the result.
    pub(crate) fn end<T>(mut self, result: Result<T>) -> Result<T> {
        self.has_ended = true;
        #[cfg(feature = "trace")]
        if let Err(error) = &result {
            let (span, operation) = (self.connection.span(), self.kind.name());
            tracing::trace!(parent: span, operation, bytes = self.bytes, %error, "failed");
        }
        self.record(match result {
            Ok(_) => Outcome::Succeeded,
            Err(_) => Outcome::Failed,
        });
        result
    }

    /// Ends the observation like [`Self::end`]. `bytes` returns the number of transferred bytes
    /// from the value of the operation.
    pub(crate) fn end_with<T>(
        mut self,
        result: Result<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T> {
        self.bytes = result.as_ref().map_or(0, bytes);
        self.end(result)
    }

    /// Records the outcome in the metrics, and as a trace event.
    fn record(&self, outcome: Outcome) {
        let took = self.begun.elapsed();
        #[cfg(feature = "metrics")]
        self.connection
            .device()
            .metrics()
            .operation_ended(self.kind, outcome, self.bytes, took);
        #[cfg(feature = "trace")]
        if outcome != Outcome::Failed {
            let text = match outcome {
                Outcome::Succeeded => "completed",
                Outcome::Failed => "failed",
                Outcome::Dropped => "dropped",
            };
            let (span, operation) = (self.connection.span(), self.kind.name());
            tracing::trace!(parent: span, operation, bytes = self.bytes, ?took, "{text}");
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (self.bytes, took, outcome);
    }
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(Outcome::Dropped);
        }
    }
}
