//! Errors of calls and connections.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::CodecError;
use crate::wire::Violation;

/// Result of a fallible operation of this crate. The error type `E` is [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the framework: the reason for which a call has no response, or for which a
/// connection has ended. Clones share their cause.
///
/// After [`Transport`](Self::Transport), [`Protocol`](Self::Protocol) and
/// [`Disconnected`](Self::Disconnected) the connection cannot be used any more. After
/// [`ShuttingDown`](Self::ShuttingDown) the connection accepts no new calls. After any other error
/// the next call may succeed.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error prints a
/// readable message.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An RDMA operation failed: connecting failed, or the connection has ended. The server may or
    /// may not have executed a call that was in progress.
    #[error(transparent)]
    Transport(#[from] rdma_async::Error),

    /// An operation on a TCP socket failed. The server may or may not have executed a call that was
    /// in progress.
    #[error("{action}: {cause}")]
    Tcp {
        /// Operation that failed.
        action: &'static str,
        /// Error that the system returned.
        cause: Arc<io::Error>,
    },

    /// The address of a server cannot be used: the text is malformed, see
    /// [`Address`](crate::Address), or a server has already listened at this
    /// [address in memory](crate::Address::memory).
    #[error("{text:?} is not an address: {reason}")]
    Address {
        /// The invalid text.
        text: String,
        /// Reason for which the text is not an address.
        reason: &'static str,
    },

    /// The peer violated the protocol.
    #[error("{reason}")]
    Protocol {
        /// Description of the violation.
        reason: String,
    },

    /// The connection has ended. The server may or may not have executed a call that was in
    /// progress.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Reason for the end.
        reason: Arc<str>,
    },

    /// The response did not arrive before the deadline. The server may or may not have executed the
    /// call.
    #[error("no response to {method} within {limit:?}")]
    DeadlineExceeded {
        /// The called method.
        method: Cow<'static, str>,
        /// The time limit of the call.
        limit: Duration,
    },

    /// The server cancelled the call, for example at the end of the grace period of its shutdown.
    /// The call may have been executed in part. Also the error of sending or receiving a stream
    /// item after the call has ended.
    #[error("the call was cancelled")]
    Cancelled,

    /// The server does not offer the called method.
    #[error("the server has no method {method}")]
    UnknownMethod {
        /// The called method.
        method: Cow<'static, str>,
    },

    /// A request or a stream item could not be encoded.
    #[error("the value cannot be encoded: {0}")]
    Encode(CodecError),

    /// A response or a stream item could not be decoded: the two ends use different types for the
    /// value.
    #[error("the received value cannot be decoded: {0}")]
    Decode(CodecError),

    /// The server could not decode the request: the two ends use different types for the arguments.
    #[error("the server could not decode the request: {reason}")]
    BadRequest {
        /// Cause that the server reported.
        reason: String,
    },

    /// The server could not encode or send the response.
    #[error("the server could not send its response: {reason}")]
    BadResponse {
        /// Cause that the server reported.
        reason: String,
    },

    /// A message is longer than the sender or the receiver allows.
    #[error("a message of {len} bytes is too large: the limit is {limit}")]
    TooLarge {
        /// Length of the message with its header, in bytes.
        len: usize,
        /// Maximum length in bytes.
        limit: usize,
    },

    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,

    /// The server has reached its limit of concurrent calls. The call was not started.
    #[error("the server is overloaded: {reason}")]
    Overloaded {
        /// Name of the limit that was reached.
        reason: String,
    },

    /// A call of a method with `#[rpc(once)]` may or may not have been executed. The call is not
    /// executed again, because the server was restarted or has dropped the answer.
    #[error("{method} may or may not have been executed")]
    ExecutionUnknown {
        /// The called method.
        method: Cow<'static, str>,
    },

    /// The server refused the connection or the call, which was not started.
    #[error("access denied: {reason}")]
    Denied {
        /// Reason that the server reported.
        reason: String,
    },

    /// A client of several servers is not connected to any of them. The call was not started.
    #[error("no server is available: {reason}")]
    Unavailable {
        /// Error of an attempt to connect.
        reason: String,
    },

    /// An operation on bulk memory failed.
    #[error("bulk memory: {0}")]
    Bulk(BulkError),

    /// The server is shutting down. The call was not started, unless the connection ended before
    /// its response. A call that still runs at the end of the grace period fails with
    /// [`Cancelled`](Self::Cancelled) instead.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns whether the peer has refused to receive a message over RDMA. The peer refuses a
    /// message that is longer than the peer's limit, or for which the peer has no memory. In both
    /// cases, the callers of this function report a message that is too long.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Transport(rdma_async::Error::Refused { .. }))
    }

    /// Creates an [`Error::Disconnected`]. `reason` says why the connection has ended.
    pub(crate) fn disconnected(reason: impl Into<Arc<str>>) -> Self {
        Self::Disconnected {
            reason: reason.into(),
        }
    }

    /// Creates an [`Error::Tcp`]. `action` names the operation that failed.
    pub(crate) fn tcp(action: &'static str, cause: io::Error) -> Self {
        Self::Tcp {
            action,
            cause: Arc::new(cause),
        }
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Protocol {
            reason: violation.to_string(),
        }
    }
}

/// Reason for which an operation failed on a [`Bulk`](crate::Bulk), long data that is transferred
/// separately from requests and results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// Another call is lending the memory, or the memory was taken from the bulk.
    #[error("another call is lending the memory, or the memory was taken")]
    InUse,
    /// The call that lent the memory has ended, or the owner has ended the lease.
    #[error("the lease has ended")]
    Ended,
    /// A requested range exceeds the bulk.
    #[error("{len} bytes at offset {at} of the bulk exceed its {whole} bytes")]
    OutOfRange {
        /// Offset of the range in bytes.
        at: usize,
        /// Length of the range in bytes.
        len: usize,
        /// Length of the bulk in bytes.
        whole: usize,
    },
    /// The owner does not allow the peer to write the bulk.
    #[error("the owner of the bulk has not made it writable")]
    ReadOnly,
    /// A bulk that was received from the peer cannot be sent.
    #[error("the memory belongs to the peer: read the bulk, and send a new bulk with the bytes")]
    Foreign,
    /// A value has more than 1024 bulks, or the caller holds too many bulks of earlier results.
    #[error("the value has too many bulks, or the caller holds too many bulks of earlier results")]
    TooMany,
    /// The memory differs from the description that its owner sent, for example in its length, so
    /// it cannot be accessed.
    #[error("the memory differs from the description that its owner sent")]
    Lost,
    /// The process cannot allocate memory of this length.
    #[error("{len} bytes of memory cannot be allocated")]
    OutOfMemory {
        /// Length in bytes.
        len: usize,
    },
}

/// An error of a call: the service's own error, or an error of the framework.
///
/// ```
/// use rdma_rpc::{CallError, Error};
///
/// fn describe(error: CallError<String>) -> String {
///     match error {
///         CallError::Service(reason) => format!("refused: {reason}"),
///         CallError::Rpc(Error::DeadlineExceeded { .. }) => "too late".to_owned(),
///         CallError::Rpc(error) => error.to_string(),
///     }
/// }
/// assert_eq!(describe(CallError::Service("no".to_owned())), "refused: no");
/// ```
#[derive(Clone)]
pub enum CallError<E> {
    /// The handler returned this error.
    Service(E),
    /// An error of the framework, for example because the call has no response, or because a
    /// received value cannot be decoded.
    Rpc(Error),
}

impl<E> CallError<E> {
    /// Returns the error that the service's handler has returned. Returns `None` for an error of
    /// rdma-rpc itself, for example because the connection has ended.
    pub fn service(self) -> Option<E> {
        match self {
            Self::Service(error) => Some(error),
            Self::Rpc(_) => None,
        }
    }

    /// Returns the error if rdma-rpc itself has caused it, for example because the connection has
    /// ended. Returns `None` for an error that the service's handler has returned.
    pub fn rpc(self) -> Option<Error> {
        match self {
            Self::Service(_) => None,
            Self::Rpc(error) => Some(error),
        }
    }
}

impl<E> From<Error> for CallError<E> {
    fn from(error: Error) -> Self {
        Self::Rpc(error)
    }
}

impl<E: fmt::Debug> fmt::Debug for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => f.debug_tuple("Service").field(error).finish(),
            // A `main` that returns this error prints a readable message.
            Self::Rpc(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(error) => error.fmt(f),
            Self::Rpc(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for CallError<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_the_message() {
        let error = Error::from(Violation::Version(9));
        assert_eq!(format!("{error:?}"), error.to_string());
        let error: CallError<String> = Error::Panicked.into();
        assert_eq!(error.to_string(), "the handler panicked");
        assert_eq!(format!("{error:?}"), "the handler panicked");
    }
}
