//! Errors of calls and connections.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::CodecError;
use crate::wire::Violation;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the framework: of a call that has no response, or of a connection. Clones share
/// their cause.
///
/// After [`Transport`](Self::Transport), [`Protocol`](Self::Protocol) and
/// [`Disconnected`](Self::Disconnected) the connection cannot be used any more; after
/// [`ShuttingDown`](Self::ShuttingDown) it accepts no new calls. After any other error the next
/// call may succeed.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error prints the
/// message and what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed, or the connection has ended. The server may or may not have executed a
    /// call that was in progress.
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

    /// The text is not an address of this crate.
    #[error("{text:?} is no address: {reason}")]
    Address {
        /// The text.
        text: String,
        /// Reason why it is no address.
        reason: &'static str,
    },

    /// The peer violated the protocol.
    #[error("{reason}")]
    Protocol {
        /// The violation.
        reason: String,
    },

    /// The connection has ended. The server may or may not have executed a call that was in
    /// progress.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Reason for the end.
        reason: Arc<str>,
    },

    /// The response did not arrive in time. The server may or may not have executed the call.
    #[error("no response to {method} within {limit:?}")]
    DeadlineExceeded {
        /// The called method.
        method: Cow<'static, str>,
        /// The time limit of the call.
        limit: Duration,
    },

    /// The server cancelled the call. The call may have been executed in part.
    #[error("the call was cancelled")]
    Cancelled,

    /// The server has no such method.
    #[error("the server has no method {method}")]
    UnknownMethod {
        /// The called method.
        method: Cow<'static, str>,
    },

    /// The request or a stream item could not be encoded.
    #[error("the value cannot be encoded: {0}")]
    Encode(CodecError),

    /// The response or a stream item could not be decoded: the two ends disagree about its type.
    #[error("the received value cannot be decoded: {0}")]
    Decode(CodecError),

    /// The server could not decode the request: the two ends disagree about its type.
    #[error("the server could not decode the request: {reason}")]
    BadRequest {
        /// The cause, as the server describes it.
        reason: String,
    },

    /// The server could not encode or send the response.
    #[error("the server could not send its response: {reason}")]
    BadResponse {
        /// The cause, as the server describes it.
        reason: String,
    },

    /// A message is longer than one of the two ends accepts.
    #[error("a message of {len} bytes is too large: the limit is {limit}")]
    TooLarge {
        /// The length of the message with its header.
        len: usize,
        /// The largest length.
        limit: usize,
    },

    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,

    /// The server has reached its limit of concurrent calls. The call was not started.
    #[error("the server is overloaded: {reason}")]
    Overloaded {
        /// The limit that was reached.
        reason: String,
    },

    /// A method that is executed at most once may or may not have been executed, and is not
    /// executed again: the server has restarted meanwhile, or has dropped the answer.
    #[error("{method} may or may not have been executed")]
    ExecutionUnknown {
        /// The called method.
        method: Cow<'static, str>,
    },

    /// The server has denied the call, which was not started, or the connection.
    #[error("access denied: {reason}")]
    Denied {
        /// Reason that the server gave.
        reason: String,
    },

    /// No server of a client of several servers is connected. The call was not started.
    #[error("no server is available: {reason}")]
    Unavailable {
        /// Error of one of the servers.
        reason: String,
    },

    /// Bulk memory cannot be lent, read or written.
    #[error("bulk memory: {0}")]
    Bulk(BulkError),

    /// The server accepts no new calls. The call was not started, unless the connection ended
    /// before its response: a call that is still running at the end of the grace period is
    /// [cancelled](Self::Cancelled).
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// Returns whether the peer has refused to receive a message over RDMA, which it does only
    /// because of the length.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Transport(rdma_async::Error::Refused { .. }))
    }

    pub(crate) fn disconnected(reason: impl Into<Arc<str>>) -> Self {
        Self::Disconnected {
            reason: reason.into(),
        }
    }

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

/// Reason why a [`Bulk`](crate::Bulk) cannot be lent, read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// A call is lending the memory, or the memory was taken.
    #[error("another call is lending it, or its memory was taken")]
    InUse,
    /// The call that lent the memory has ended, or the owner has ended its lease.
    #[error("its lease has ended")]
    Ended,
    /// A part exceeds the bulk.
    #[error("{len} bytes at {at} exceed its {whole} bytes")]
    OutOfRange {
        /// Offset of the first byte.
        at: usize,
        /// Number of bytes.
        len: usize,
        /// Length of the bulk.
        whole: usize,
    },
    /// The owner does not let the peer write the bulk.
    #[error("its owner has not made it writable")]
    ReadOnly,
    /// A bulk of the peer cannot be passed on.
    #[error("it is memory of the peer: read it, and send a bulk of the bytes")]
    Foreign,
    /// A value has more than 1024 bulks, or the peer keeps too many bulks of earlier results.
    #[error("the value has too many bulks, or the caller keeps too many bulks of results")]
    TooMany,
    /// The two ends disagree about the memory of the bulk.
    #[error("its memory is other than its owner said")]
    Lost,
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
    /// The call has no response.
    Rpc(Error),
}

impl<E> CallError<E> {
    /// Returns the service's error, if it is one.
    pub fn service(self) -> Option<E> {
        match self {
            Self::Service(error) => Some(error),
            Self::Rpc(_) => None,
        }
    }

    /// Returns the framework's error, if it is one.
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
            // The message and what to do, for a `main` that returns this error.
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
