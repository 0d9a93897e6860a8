//! Errors of connections and of connecting.

use std::fmt;
use std::io;
use std::time::Duration;

use super::RejectReason;
use crate::error::Errno;

/// Why connecting failed or a connection ended. `Debug` prints the same text as `Display`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The system has no connection manager, or no device that it could use.
    #[error(
        "this system has no RDMA connection manager ({errno}): it needs an RDMA device of the \
         kernel, and /dev/infiniband/rdma_cm from the module rdma_ucm"
    )]
    NoManager {
        /// What opening it gave.
        errno: Errno,
    },

    /// The name is of no address.
    #[error("{name} has no address: {reason}")]
    UnknownName {
        /// The name and the service.
        name: String,
        /// What the resolver said.
        reason: String,
    },

    /// A step took longer than it may.
    #[error("{step} with {peer} did not end within {timeout:?}: {}", step.usual_cause())]
    TimedOut {
        /// The step.
        step: ConnectionStep,
        /// The other end.
        peer: String,
        /// The time that it had.
        timeout: Duration,
    },

    /// The peer, or the connection manager of its machine, said no.
    #[error("{peer} rejected the connection: {reason}")]
    Rejected {
        /// The other end.
        peer: String,
        /// Why.
        reason: RejectReason,
        /// What the peer's program said, followed by zeros.
        private_data: Vec<u8>,
    },

    /// A step failed.
    #[error("{step} with {peer} failed: {status}: {}", step.usual_cause())]
    Failed {
        /// The step.
        step: ConnectionStep,
        /// The other end.
        peer: String,
        /// What the event said.
        status: EventStatus,
    },

    /// The peer has disconnected, or died.
    #[error("{peer} has disconnected")]
    Disconnected {
        /// The other end.
        peer: String,
    },

    /// The device was taken away.
    #[error("the device of the connection with {peer} was removed")]
    DeviceRemoved {
        /// The other end.
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

/// A step on the way to a connection, or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionStep {
    /// From an IP address to a device and a link address.
    AddressResolution,
    /// From there to a route.
    RouteResolution,
    /// The request of the connecting end, and the answer.
    Connecting,
    /// The answer of the listening end, and its confirmation.
    Accepting,
    /// The farewell, and its confirmation.
    Disconnecting,
    /// Becoming a member of a multicast group.
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

/// The status of an event: 0, a negative `errno`, or a number of the transport's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventStatus(pub i32);

impl EventStatus {
    /// The error number, if it is one.
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
