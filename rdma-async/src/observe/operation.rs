//! [`Observed`]: the observation of one operation.

use std::time::Instant;

use crate::connection::Connection;
use crate::error::Result;

/// Kind of an operation of the program on a connection, such as a send. Metrics and trace events
/// have the name of the kind as a label.
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
    ReceiveWriteImmediate,
    OfferMemory,
    ReceiveOfferedMemory,
    ReturnMemory,
    ReceiveReturnedMemory,
    StreamWrite,
    StreamRead,
}

impl Kind {
    #[cfg(feature = "metrics")]
    pub(super) const ALL: [Self; 15] = [
        Self::Write,
        Self::WriteWithImmediate,
        Self::Read,
        Self::CompareAndSwap,
        Self::FetchAndAdd,
        Self::Send,
        Self::Receive,
        Self::RequestMemory,
        Self::ReceiveWriteImmediate,
        Self::OfferMemory,
        Self::ReceiveOfferedMemory,
        Self::ReturnMemory,
        Self::ReceiveReturnedMemory,
        Self::StreamWrite,
        Self::StreamRead,
    ];

    /// Returns the name of this kind of operation, such as `write` or `send`, which labels metrics
    /// and trace events.
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
            Self::ReceiveWriteImmediate => "receive_write_immediate",
            Self::OfferMemory => "offer_memory",
            Self::ReceiveOfferedMemory => "receive_offered_memory",
            Self::ReturnMemory => "return_memory",
            Self::ReceiveReturnedMemory => "receive_returned_memory",
            Self::StreamWrite => "stream_write",
            Self::StreamRead => "stream_read",
        }
    }
}

/// Outcome of an operation: success, failure, or a future that was dropped. A label of metrics and
/// trace events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Succeeded,
    Failed,
    /// The future was dropped before the operation completed.
    Dropped,
}

/// Guard that measures an operation in progress, and records its outcome and duration in metrics
/// and trace events. The caller must end the guard by [`Self::end`] when the operation ends. A
/// guard that is dropped before records that the operation was dropped before it completed.
#[derive(Debug)]
pub(crate) struct Observed<'c> {
    connection: &'c Connection,
    kind: Kind,
    bytes: usize,
    begun: Instant,
    has_ended: bool,
}

impl<'c> Observed<'c> {
    /// Begins to observe an operation of the kind `kind` on `connection`, which transfers `bytes`
    /// bytes.
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

    /// Drops this guard without recording an outcome, because the operation continues. Returns the
    /// time at which the operation began. The caller later creates a new guard with this time, when
    /// the operation ends.
    fn into_begun(mut self) -> Instant {
        self.has_ended = true;
        self.begun
    }

    /// Records the success or failure of the operation, and its duration, in metrics and trace
    /// events. Returns `result`, the result of the operation, unchanged.
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

    /// Records the success or failure of the operation like [`Self::end`]. `bytes` is called with
    /// the value of a successful operation, and returns the number of transferred bytes.
    pub(crate) fn end_with<T>(
        mut self,
        result: Result<T>,
        bytes: impl Fn(&T) -> usize,
    ) -> Result<T> {
        self.bytes = result.as_ref().map_or(0, bytes);
        self.end(result)
    }

    /// Records the outcome, the duration and the number of bytes of this operation in the metrics,
    /// and as a trace event.
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

/// Recorder of metrics and trace events for operations that are polled instead of awaited, such as
/// writes to a stream. Only one operation is in progress at a time.
#[derive(Debug)]
pub(crate) struct ObservedPolls {
    kind: Kind,
    /// Time of the first poll of the operation that has not ended.
    begun: Option<Instant>,
}

impl ObservedPolls {
    pub(crate) const fn of_stream_writes() -> Self {
        Self {
            kind: Kind::StreamWrite,
            begun: None,
        }
    }

    /// Records that the program polls an operation on `connection`. The duration of the operation
    /// is measured from its first poll.
    pub(crate) fn poll(&mut self, connection: &Connection) {
        let kind = self.kind;
        self.begun
            .get_or_insert_with(|| Observed::begin(connection, kind, 0).into_begun());
    }

    /// Records the success or failure of the operation in progress, its duration and its number of
    /// bytes in metrics and trace events. Returns `result`, the result of the operation, unchanged.
    pub(crate) fn end(&mut self, connection: &Connection, result: Result<usize>) -> Result<usize> {
        match self.take(connection) {
            Some(observed) => observed.end_with(result, |&bytes| bytes),
            None => result,
        }
    }

    /// Records in metrics and trace events that the operation in progress was dropped, because the
    /// program will not poll it again. Does nothing if no operation is in progress.
    pub(crate) fn give_up(&mut self, connection: &Connection) {
        drop(self.take(connection));
    }

    fn take<'c>(&mut self, connection: &'c Connection) -> Option<Observed<'c>> {
        Some(Observed {
            connection,
            kind: self.kind,
            bytes: 0,
            begun: self.begun.take()?,
            has_ended: false,
        })
    }
}
