//! Errors of establishing and using connections.

use std::fmt;
use std::io;
use std::time::Duration;

use super::RejectReason;
use crate::error::Errno;

/// The reason why connecting failed or a connection ended. `Debug` prints the same text as
/// `Display`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The system has no connection manager, or no device that the connection manager supports.
    #[error(
        "this system has no RDMA connection manager ({errno}): it needs an RDMA device of the \
         kernel, and /dev/infiniband/rdma_cm from the module rdma_ucm"
    )]
    NoManager {
        /// The error number that opening the connection manager returned.
        errno: Errno,
    },

    /// The resolver found no address for the name.
    #[error("{name} has no address: {reason}")]
    UnknownName {
        /// The host name and the service that the query contained.
        name: String,
        /// The error message of the resolver.
        reason: String,
    },

    /// A step did not complete within its time limit.
    #[error("{step} with {peer} did not end within {timeout:?}: {}", step.usual_cause())]
    TimedOut {
        /// The step that exceeded its time limit.
        step: ConnectionStep,
        /// The address of the peer.
        peer: String,
        /// The time limit of the step.
        timeout: Duration,
    },

    /// The peer, or the connection manager of its machine, rejected the connection.
    #[error("{peer} rejected the connection: {reason}")]
    Rejected {
        /// The address of the peer.
        peer: String,
        /// The reason that the peer or its connection manager gave for the rejection.
        reason: RejectReason,
        /// The private data that the peer's program sent with the rejection, padded with zeros.
        private_data: Vec<u8>,
    },

    /// A step of establishing or ending the connection failed.
    #[error("{step} with {peer} failed: {status}: {}", step.usual_cause())]
    Failed {
        /// The step that failed.
        step: ConnectionStep,
        /// The address of the peer.
        peer: String,
        /// The status of the event that reported the failure.
        status: EventStatus,
    },

    /// The peer has disconnected or exited.
    #[error("{peer} has disconnected")]
    Disconnected {
        /// The address of the peer.
        peer: String,
    },

    /// The RDMA device of the connection was removed from the system.
    #[error("the device of the connection with {peer} was removed")]
    DeviceRemoved {
        /// The address of the peer.
        peer: String,
    },
}

impl fmt::Debug for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ConnectionError {
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoManager { .. } => io::ErrorKind::Unsupported,
            Self::UnknownName { .. } => io::ErrorKind::NotFound,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            Self::Failed { status, .. } => status.errno().map_or(io::ErrorKind::Other, |errno| {
                io::Error::from_raw_os_error(errno.0).kind()
            }),
            Self::Disconnected { .. } => io::ErrorKind::ConnectionReset,
            Self::DeviceRemoved { .. } => io::ErrorKind::NetworkDown,
        }
    }
}

/// A step of establishing or ending a connection. If a step fails or exceeds its time limit, the
/// [`ConnectionError`] contains the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionStep {
    /// The resolution of an IP address to a device and a link address.
    AddressResolution,
    /// The resolution of the route to the link address.
    RouteResolution,
    /// The connect request to the peer, until the response arrives.
    Connecting,
    /// The acceptance of a peer's connect request, until the confirmation arrives.
    Accepting,
    /// The disconnection, until the peer confirms it.
    Disconnecting,
    /// The request to join a multicast group.
    JoiningGroup,
}

impl ConnectionStep {
    fn usual_cause(self) -> &'static str {
        match self {
            Self::AddressResolution => {
                "no RDMA device has a route to that address, or the neighbour does not answer"
            }
            Self::RouteResolution => "the subnet manager does not answer or has no route",
            Self::Connecting => {
                "the peer's machine does not answer, or its program does not accept"
            }
            Self::Accepting => "the connecting peer has ended",
            Self::Disconnecting => "the peer's machine does not answer",
            Self::JoiningGroup => "the subnet manager or the network refuses the group",
        }
    }
}

impl fmt::Display for ConnectionStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddressResolution => "resolving the address",
            Self::RouteResolution => "resolving the route",
            Self::Connecting => "connecting",
            Self::Accepting => "accepting the connection",
            Self::Disconnecting => "disconnecting",
            Self::JoiningGroup => "joining the multicast group",
        })
    }
}

/// The status field of a connection event: 0, a negative `errno`, or a transport-specific number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventStatus(pub i32);

impl EventStatus {
    /// Returns the error number, or `None` if the status is not a negative `errno`.
    pub fn errno(self) -> Option<Errno> {
        (self.0 < 0).then(|| Errno(self.0.saturating_neg()))
    }
}

impl fmt::Display for EventStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            Some(errno) => errno.fmt(f),
            None => write!(f, "status {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_the_step_the_peer_and_the_usual_cause() {
        let error = ConnectionError::TimedOut {
            step: ConnectionStep::Connecting,
            peer: "10.77.0.1:7174".into(),
            timeout: Duration::from_secs(2),
        };
        assert_eq!(
            error.to_string(),
            "connecting with 10.77.0.1:7174 did not end within 2s: the peer's machine does not \
             answer, or its program does not accept"
        );
        let error = ConnectionError::Failed {
            step: ConnectionStep::AddressResolution,
            peer: "10.9.9.9:1".into(),
            status: EventStatus(-libc::ENODEV),
        };
        assert!(error.to_string().contains("ENODEV"), "{error}");
    }

    #[test]
    fn a_status_is_an_errno_only_below_zero() {
        assert_eq!(EventStatus(-2).errno(), Some(Errno(2)));
        assert_eq!(EventStatus(8).errno(), None);
        assert_eq!(EventStatus(i32::MIN).errno(), Some(Errno(i32::MAX)));
    }
}
