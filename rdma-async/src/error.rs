//! Errors of connections and their operations.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::WorkError;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason for the failure of an operation.
///
/// `Debug` prints the same text as `Display`, so that a `main` that returns this error prints a
/// readable message.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verbs object, such as a queue pair or a memory region, could not be created or used.
    #[error(transparent)]
    Verbs(#[from] rdma_core::Error),

    /// The device reported that an operation failed, which ended the connection. All other pending
    /// operations of the connection also fail with this error.
    #[error(transparent)]
    Work(#[from] WorkError),

    /// An operation of the operating system failed, usually on a TCP socket.
    #[error("{action} {address}: {cause}")]
    Tcp {
        /// Operation that failed.
        action: &'static str,
        /// Address or object of the operation.
        address: String,
        /// Error that the system returned.
        cause: Arc<io::Error>,
    },

    /// The handshake with a peer failed, for example because the peer does not use this protocol.
    #[error("handshake with {peer}: {reason}")]
    Handshake {
        /// Address of the peer.
        peer: SocketAddr,
        /// Reason for the failure.
        reason: String,
    },

    /// An operation did not end within its time limit.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// Name of the operation.
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },

    /// An operation did not complete before its deadline, which ended the connection. All other
    /// pending operations of the connection also fail with this error.
    #[error(
        "the connection has ended: an operation took longer than {limit:?}; this operation was {execution}"
    )]
    DeadlineExceeded {
        /// Time limit of the operation that exceeded its deadline.
        limit: Duration,
        /// Execution state of the operation that fails with this error.
        execution: Execution,
    },

    /// The connection has ended for a reason other than the failure of an operation.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Reason for the end of the connection.
        reason: Arc<str>,
        /// Execution state of the operation that fails with this error.
        execution: Execution,
    },

    /// The peer refused a request. Also the error of a request that this end did not send, because
    /// too many earlier requests to the peer are unanswered.
    #[error("the peer refused {what}: {reason}")]
    Refused {
        /// Name of the request.
        what: &'static str,
        /// Reason for the refusal, with the limit that would be exceeded.
        reason: Cow<'static, str>,
    },

    /// The peer has ended the lease of the remote memory. The operation accessed nothing, and the
    /// connection remains open.
    #[error("access to remote memory: the peer has ended its lease")]
    LeaseEnded,

    /// The registered memory of the device has reached its limit, see
    /// [`PoolOptions::limit`](crate::PoolOptions::limit).
    #[error(
        "allocating a local memory region of {requested} bytes: the device's memory would exceed \
         the limit of {limit} bytes (PoolOptions::limit)"
    )]
    PoolFull {
        /// Size of the requested region, in bytes.
        requested: usize,
        /// The limit, in bytes.
        limit: usize,
    },

    /// The value of an argument is not allowed.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// Name of the argument.
        what: &'static str,
        /// Reason why the value is not allowed.
        reason: String,
    },
}

/// Execution state of a failed operation, as far as this end knows: the peer has not executed the
/// operation, or the state is unknown. If the state is unknown, the peer has perhaps executed all
/// or a part of the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Execution {
    /// The operation was not posted to the device, so the peer has not executed any part of the
    /// operation. The program can repeat the operation on another connection.
    NotExecuted,
    /// The operation was posted to the device, and its execution is unknown: the peer has perhaps
    /// executed all or a part of the operation.
    Unknown,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotExecuted => "not executed by the peer",
            Self::Unknown => "possibly executed by the peer",
        })
    }
}

impl Error {
    /// Creates the error of a connection that has ended because an operation exceeded its time
    /// limit. `limit` is this time limit.
    pub(crate) fn deadline(limit: Duration) -> Self {
        Self::DeadlineExceeded {
            limit,
            execution: Execution::NotExecuted,
        }
    }

    /// Returns the execution state at the peer of the operation that failed with this error. For
    /// [`Self::Work`], returns [`Execution::Unknown`], because the error may report the failure of
    /// another operation.
    ///
    /// ```
    /// use rdma_async::{Error, Execution, Rdma, LocalMr};
    ///
    /// # async fn example(rdma: &Rdma, message: &LocalMr) -> Result<(), Error> {
    /// match rdma.send(message).await {
    ///     Err(error) if error.execution() == Execution::NotExecuted => {
    ///         // The message can be sent again, on a new connection.
    ///     }
    ///     outcome => outcome?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn execution(&self) -> Execution {
        match self {
            Self::DeadlineExceeded { execution, .. } | Self::Disconnected { execution, .. } => {
                *execution
            }
            Self::Work(_) | Self::Timeout { .. } => Execution::Unknown,
            Self::Verbs(_)
            | Self::Tcp { .. }
            | Self::Handshake { .. }
            | Self::Refused { .. }
            | Self::LeaseEnded
            | Self::PoolFull { .. }
            | Self::InvalidArgument { .. } => Execution::NotExecuted,
        }
    }

    /// Converts this error, which has ended the connection, to the error of an operation that was
    /// posted to the device. The [`execution`](Self::execution) of the error becomes unknown: the
    /// peer's device has perhaps performed the operation, and perhaps not.
    pub(crate) fn of_posted(self) -> Self {
        let execution = Execution::Unknown;
        match self {
            Self::Work(_) | Self::Timeout { .. } => self,
            Self::DeadlineExceeded { limit, .. } => Self::DeadlineExceeded { limit, execution },
            Self::Disconnected { reason, .. } => Self::Disconnected { reason, execution },
            other => Self::Disconnected {
                reason: other.to_string().into(),
                execution,
            },
        }
    }

    /// Creates the error [`Self::Tcp`]: the operating system has failed to perform `action` at
    /// `address`. `cause` is the error of the operating system.
    pub(crate) fn tcp(action: &'static str, address: impl ToString, cause: io::Error) -> Self {
        Self::Tcp {
            action,
            address: address.to_string(),
            cause: Arc::new(cause),
        }
    }

    /// Creates the error of a connection that has ended for `reason`. The error states that the
    /// operation was not executed ([`Execution::NotExecuted`]). For an operation that was posted,
    /// the caller changes this by [`Self::of_posted`].
    pub(crate) fn disconnected(reason: impl Into<Arc<str>>) -> Self {
        Self::Disconnected {
            reason: reason.into(),
            execution: Execution::NotExecuted,
        }
    }

    /// Creates the error [`Self::InvalidArgument`]. `what` is the name of the argument, and
    /// `reason` is the reason why its value is not allowed.
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
            Error::Refused { .. } | Error::LeaseEnded => io::ErrorKind::PermissionDenied,
            Error::PoolFull { .. } => io::ErrorKind::OutOfMemory,
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

    #[test]
    fn no_error_of_a_posted_operation_says_that_nothing_was_executed() {
        let what = "a part of a stream";
        let limit = Duration::from_secs(1);
        for error in [
            Error::from(rdma_core::Error::NoDevice),
            Error::disconnected("it was closed"),
            Error::deadline(limit),
            Error::Timeout { what, limit },
            Error::Refused {
                what,
                reason: "it could not read it".into(),
            },
        ] {
            let text = error.to_string();
            let posted = error.of_posted();
            assert_eq!(posted.execution(), Execution::Unknown, "{text}");
        }
    }
}
