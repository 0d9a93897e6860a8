//! What can go wrong with a call.

use std::time::Duration;

use crate::application::ApplicationError;
use crate::codec::CodecError;
use crate::wire::Violation;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed, or a connection. Clones share their cause.
///
/// After [`Transport`](Self::Transport), [`Protocol`](Self::Protocol) and
/// [`ShuttingDown`](Self::ShuttingDown) the connection is of no more use; after any other the next
/// call may succeed. [`Client::failure`](crate::Client::failure) tells.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed, or the connection has ended. A call that was under way may have been done
    /// or not.
    #[error(transparent)]
    Transport(#[from] rdma_async::Error),

    /// The peer sent what it should not have.
    #[error("{reason}")]
    Protocol {
        /// What.
        reason: String,
    },

    /// There was no answer in time. The call may have been done or not.
    #[error("no answer to {method} within {limit:?}")]
    DeadlineExceeded {
        /// What was called.
        method: String,
        /// How long was waited.
        limit: Duration,
    },

    /// The handler returned an error.
    #[error(transparent)]
    Application(#[from] ApplicationError),

    /// The server has no such method.
    #[error("the server has no method {method}")]
    UnknownMethod {
        /// What was called.
        method: String,
    },

    /// The request could not be encoded.
    #[error("the request cannot be encoded: {0}")]
    Encode(#[source] CodecError),

    /// The response could not be decoded: the two ends disagree about its type.
    #[error("the response cannot be decoded: {0}")]
    Decode(#[source] CodecError),

    /// The server could not decode the request: the two ends disagree about its type.
    #[error("the server could not decode the request: {reason}")]
    BadRequest {
        /// Why, in the server's words.
        reason: String,
    },

    /// The server could not encode or send the response.
    #[error("the server could not send its response: {reason}")]
    BadResponse {
        /// Why, in the server's words.
        reason: String,
    },

    /// A message is longer than one of the two ends takes.
    #[error("a {what} of {len} bytes is too large{}", above(.limit))]
    TooLarge {
        /// A request or a response.
        what: &'static str,
        /// How long it is, with its header.
        len: usize,
        /// How long it may be, if the end that found it too long told.
        limit: Option<usize>,
    },

    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,

    /// The server has as many calls as it takes. The call was not begun.
    #[error("the server is overloaded")]
    Overloaded,

    /// The server takes no new calls. The call was not begun, unless the server gave it up because
    /// the time for ending was over.
    #[error("the server is shutting down")]
    ShuttingDown,
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
