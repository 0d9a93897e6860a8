//! Errors of calls and connections.

use std::fmt;
use std::time::Duration;

use crate::application::ApplicationError;
use crate::codec::CodecError;
use crate::wire::Violation;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a call or of a connection. Clones share their cause.
///
/// After [`Transport`](Self::Transport), [`Protocol`](Self::Protocol) and
/// [`ShuttingDown`](Self::ShuttingDown) the connection cannot be used any more; after any other error
/// the next call may succeed. [`Client::failure`](crate::Client::failure) returns the error that ended
/// a connection.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error prints the
/// message and what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed, or the connection has ended. The server may or may not have executed a call
    /// that was in progress.
    #[error(transparent)]
    Transport(#[from] rdma_async::Error),

    /// The peer violated the protocol.
    #[error("{reason}")]
    Protocol {
        /// The violation.
        reason: String,
    },

    /// The response did not arrive in time. The server may or may not have executed the call.
    #[error("no response to {method} within {limit:?}")]
    DeadlineExceeded {
        /// The called method.
        method: String,
        /// The time limit of the call.
        limit: Duration,
    },

    /// The handler returned an error.
    #[error(transparent)]
    Application(#[from] ApplicationError),

    /// The server has no such method.
    #[error("the server has no method {method}")]
    UnknownMethod {
        /// The called method.
        method: String,
    },

    /// The request could not be encoded.
    #[error("the request cannot be encoded: {0}")]
    Encode(CodecError),

    /// The response could not be decoded: the two ends disagree about its type.
    #[error("the response cannot be decoded: {0}")]
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
    #[error("a {what} of {len} bytes is too large{}", above(.limit))]
    TooLarge {
        /// Either `"request"` or `"response"`.
        what: &'static str,
        /// The length of the message with its header.
        len: usize,
        /// The largest length, if the end that refused the message reported it.
        limit: Option<usize>,
    },

    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,

    /// The server has reached its limit of concurrent calls. The call was not started.
    #[error("the server is overloaded")]
    Overloaded,

    /// The server accepts no new calls. The call was not started, unless it was still running when the
    /// grace period of the shutdown ended.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn above(limit: &Option<usize>) -> String {
    match limit {
        Some(limit) => format!(": the limit is {limit}"),
        None => String::new(),
    }
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Protocol {
            reason: violation.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn debug_prints_the_message_and_no_source_repeats_it() {
        let transport = rdma_async::Error::InvalidArgument {
            what: "send queue",
            reason: "0 requests".to_owned(),
        };
        for error in [
            Error::Transport(transport),
            Error::Encode(CodecError::new("not a map")),
            Error::Application(ApplicationError::new(1, "no such key")),
        ] {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert!(error.source().is_none(), "{error}");
        }
    }
}
