//! What can go wrong.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::WorkError;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a connection failed. Clones share their cause.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verbs object could not be made or used.
    #[error(transparent)]
    Verbs(#[from] rdma_core::Error),

    /// The device could not do an operation. The connection has failed with it.
    #[error(transparent)]
    Work(#[from] WorkError),

    /// The TCP side of connecting failed.
    #[error("{action} {address}: {source}")]
    Tcp {
        /// What was tried.
        action: &'static str,
        /// With whom.
        address: String,
        /// Why it failed.
        source: Arc<io::Error>,
    },

    /// What answered is no peer that this crate can connect to.
    #[error("handshake with {peer}: {reason}")]
    Handshake {
        /// Who answered.
        peer: SocketAddr,
        /// What was wrong.
        reason: String,
    },

    /// Something did not happen in time.
    #[error("{what} took longer than {limit:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
    },

    /// The connection has ended.
    #[error("the connection has ended: {reason}")]
    Disconnected {
        /// Why.
        reason: Arc<str>,
    },

    /// The peer would not do what it was asked.
    #[error("the peer refused {what}: {reason}")]
    Refused {
        /// What it was asked.
        what: &'static str,
        /// Why it refused.
        reason: &'static str,
    },

    /// An argument is outside of what the operation allows.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// Which argument of which operation.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn tcp(action: &'static str, address: impl ToString, source: io::Error) -> Self {
        Self::Tcp {
            action,
            address: address.to_string(),
            source: Arc::new(source),
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

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Verbs(error) => io::Error::from(error.clone()).kind(),
            Error::Tcp { source, .. } => source.kind(),
            Error::Handshake { .. } => io::ErrorKind::InvalidData,
            Error::Timeout { .. } => io::ErrorKind::TimedOut,
            Error::Work(_) | Error::Disconnected { .. } => io::ErrorKind::ConnectionAborted,
            Error::Refused { .. } => io::ErrorKind::PermissionDenied,
            Error::InvalidArgument { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
