//! Errors of measurements.

use std::io;
use std::time::Duration;

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a verbs object failed.
    #[error(transparent)]
    Verbs(#[from] rdma_core::Error),

    /// A work request completed with an error.
    #[error(transparent)]
    Work(#[from] rdma_core::WorkError),

    /// An operation of rdma-async failed.
    #[error(transparent)]
    Async(#[from] rdma_async::Error),

    /// A call of rdma-rpc failed.
    #[error(transparent)]
    Rpc(#[from] rdma_rpc::Error),

    /// The TCP connection to the peer failed.
    #[error("{what}: {source}")]
    Control {
        /// The operation that failed.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The peer has exited, which closed the TCP connection.
    #[error("the peer closed the connection before the test was over")]
    PeerGone,

    /// The peer reported a failure.
    #[error("the peer failed: {0}")]
    Peer(String),

    /// An expected event did not happen in time.
    #[error("no {what} for {} s", limit.as_secs_f64())]
    TimedOut {
        /// The expected event.
        what: &'static str,
        /// The time for which this process waited.
        limit: Duration,
    },

    /// The peer violated the protocol of the control connection.
    #[error("unexpected data on the control connection: {0}")]
    Protocol(String),

    /// Server and client were started for different tests.
    #[error("the two ends differ in {what}: {server} at the server, {client} at the client")]
    Disagreement {
        /// The parameter that differs.
        what: &'static str,
        /// The parameter's value at the server.
        server: String,
        /// The parameter's value at the client.
        client: String,
    },

    /// A combination of options that cannot be measured.
    #[error("{0}")]
    Unsupported(String),

    /// The system does not allow network namespaces, which stand for hosts.
    #[error("cannot create network namespaces: {0} (root rights and the program ip are needed)")]
    NoNamespaces(String),

    /// A result could not be written.
    #[error("{what}: {source}")]
    Output {
        /// The output that could not be written.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// A program that takes part in a comparison failed.
    #[error("{program}: {reason}")]
    Program {
        /// The name of the program.
        program: String,
        /// Description of the failure, with the end of the program's output.
        reason: String,
    },
}

impl<T> From<rdma_core::Refused<T>> for Error {
    fn from(refused: rdma_core::Refused<T>) -> Self {
        Self::Verbs(refused.error)
    }
}

impl Error {
    pub(crate) fn control(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Control { what, source }
    }

    pub(crate) fn output(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Output { what, source }
    }
}
