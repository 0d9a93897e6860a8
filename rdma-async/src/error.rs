//! Errors of connections and their operations.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::WorkError;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a connection failed. Clones share their cause.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error prints the
/// message and what to do.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verbs object could not be created or used.
    #[error(transparent)]
    Verbs(#[from] rdma_core::Error),

    /// The device could not do an operation. The connection has failed with it.
    #[error(transparent)]
    Work(#[from] WorkError),

    /// The TCP side of connecting failed.
    #[error("{action} {address}: {cause}")]
    Tcp {
        /// The step that failed.
        action: &'static str,
        /// The address of the step.
        address: String,
        /// The system's error.
        cause: Arc<io::Error>,
    },

    /// The other end of the TCP connection is not a peer that this crate can connect to.
    #[error("handshake with {peer}: {reason}")]
    Handshake {
        /// The address that answered.
        peer: SocketAddr,
        /// The defect of the answer.
        reason: String,
    },

    /// An operation did not end within its time limit.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// The operation.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },

    /// An operation did not end before its deadline, which ended the connection. Operations that were
    /// pending with it end with this error, too.
    #[error(
        "the connection has ended: an operation took longer than {limit:?}; of this one, {execution}"
    )]
    DeadlineExceeded {
        /// The time limit of the operation that took too long.
        limit: Duration,
        /// Tells whether the peer may have executed the operation that ends with this error.
        execution: Execution,
    },

    /// The connection has ended.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Why it ended.
        reason: Arc<str>,
    },

    /// The peer refused a request.
    #[error("the peer refused {what}: {reason}")]
    Refused {
        /// The request.
        what: &'static str,
        /// Why the peer refused it.
        reason: &'static str,
    },

    /// An argument is outside of what the operation allows.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// The argument, with its operation.
        what: &'static str,
        /// Why the operation does not allow the value.
        reason: String,
    },
}

/// Knowledge about whether the peer executed an operation that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Execution {
    /// The device had not been given the operation: the peer has not executed it, and it can be repeated.
    NotExecuted,
    /// The device had been given the operation: the peer may have executed it, or a part of it.
    Unknown,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotExecuted => "the peer has executed nothing",
            Self::Unknown => "the peer may have executed some or all",
        })
    }
}

impl Error {
    /// The error of a connection whose operation took longer than `limit`.
    pub(crate) fn deadline(limit: Duration) -> Self {
        Self::DeadlineExceeded {
            limit,
            execution: Execution::NotExecuted,
        }
    }

    /// Returns the same error for an operation that the device was given.
    pub(crate) fn of_posted(self) -> Self {
        match self {
            Self::DeadlineExceeded { limit, .. } => Self::DeadlineExceeded {
                limit,
                execution: Execution::Unknown,
            },
            other => other,
        }
    }

    pub(crate) fn tcp(action: &'static str, address: impl ToString, cause: io::Error) -> Self {
        Self::Tcp {
            action,
            address: address.to_string(),
            cause: Arc::new(cause),
        }
    }

    pub(crate) fn disconnected(reason: impl Into<Arc<str>>) -> Self {
        Self::Disconnected {
            reason: reason.into(),
        }
    }

    pub(crate) fn invalid(what: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidArgument {
            what,
            reason: reason.into(),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Verbs(error) => io::Error::from(error.clone()).kind(),
            Error::Tcp { cause, .. } => cause.kind(),
            Error::Handshake { .. } => io::ErrorKind::InvalidData,
            Error::Timeout { .. } | Error::DeadlineExceeded { .. } => io::ErrorKind::TimedOut,
            Error::Work(_) | Error::Disconnected { .. } => io::ErrorKind::ConnectionAborted,
            Error::Refused { .. } => io::ErrorKind::PermissionDenied,
            Error::InvalidArgument { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn debug_prints_the_message_and_no_source_repeats_it() {
        let missing = Error::from(rdma_core::Error::NoDevice);
        assert!(format!("{missing:?}").contains("`cargo xtask softroce-setup --check`"));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for error in [missing, Error::tcp("connecting to", "127.0.0.1:1", refused)] {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert!(error.source().is_none(), "{error}");
        }
    }
}
