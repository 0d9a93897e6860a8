//! Reasons why a connection was rejected.

use std::fmt;

/// The reason why a peer, or its connection manager, rejected a connection (IBTA volume 1,
/// 12.6.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The peer has no free queue pair.
    NoQueuePair,
    /// The peer lacks resources other than queue pairs.
    NoResources,
    /// The peer did not get a response in time.
    Timeout,
    /// The peer does not support the request.
    Unsupported,
    /// The peer does not know the communication id (the number that identifies a connection
    /// attempt).
    InvalidCommunicationId,
    /// The two communication ids in the message do not belong to one connection.
    InvalidCommunicationInstance,
    /// No program listens at the requested port.
    NobodyListens,
    /// The requested service uses another transport.
    InvalidTransport,
    /// The peer has a stale connection with this communication id, for example from before a
    /// restart.
    StaleConnection,
    /// The peer does not accept an address, a service level, a rate or a timeout of the path.
    /// Contains the reason code.
    InvalidPath(u32),
    /// The peer redirects the connection to another port or connection manager. Contains the reason
    /// code.
    Redirected(u32),
    /// The peer does not accept the path MTU.
    InvalidMtu,
    /// The peer requires more outstanding RDMA reads and atomics than this side accepts.
    InsufficientReads,
    /// The peer's program rejected the connection. The peer's private data may contain the reason.
    ByProgram,
    /// The peer does not accept the number of receiver-not-ready retries.
    InvalidRnrRetries,
    /// The peer already uses this communication id for another connection.
    DuplicateCommunicationId,
    /// The peer uses another version of the connection manager protocol.
    InvalidClassVersion,
    /// The peer does not accept the vendor-specific (ECE) options.
    VendorOptions,
    /// A value that this crate does not know.
    Unknown(i32),
}

impl RejectReason {
    pub(crate) fn from_raw(status: i32) -> Self {
        match status {
            1 => Self::NoQueuePair,
            3 => Self::NoResources,
            4 => Self::Timeout,
            5 => Self::Unsupported,
            6 => Self::InvalidCommunicationId,
            7 => Self::InvalidCommunicationInstance,
            8 => Self::NobodyListens,
            9 => Self::InvalidTransport,
            10 => Self::StaleConnection,
            12..=23 | 32 | 33 => Self::InvalidPath(status.unsigned_abs()),
            24 | 25 => Self::Redirected(status.unsigned_abs()),
            26 => Self::InvalidMtu,
            27 => Self::InsufficientReads,
            28 => Self::ByProgram,
            29 => Self::InvalidRnrRetries,
            30 => Self::DuplicateCommunicationId,
            31 => Self::InvalidClassVersion,
            35 => Self::VendorOptions,
            // iWARP rejects with an error number.
            status if status == -libc::ECONNREFUSED => Self::NobodyListens,
            status if status == -libc::ECONNRESET => Self::ByProgram,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoQueuePair => "it has no queue pair left",
            Self::NoResources => "it has not the resources",
            Self::Timeout => "it got no answer in time",
            Self::Unsupported => "it does not know the request",
            Self::InvalidCommunicationId => "it knows nothing of this connection",
            Self::InvalidCommunicationInstance => "the numbers are of different connections",
            Self::NobodyListens => "nobody listens at this port",
            Self::InvalidTransport => "the service is of another transport",
            Self::StaleConnection => "it believes to be connected already",
            Self::InvalidPath(code) => {
                return write!(f, "the path does not suit it (reason {code})");
            }
            Self::Redirected(code) => return write!(f, "it is elsewhere (reason {code})"),
            Self::InvalidMtu => "the path MTU does not suit it",
            Self::InsufficientReads => "it wants more outstanding reads than this end takes",
            Self::ByProgram => "its program does not want it",
            Self::InvalidRnrRetries => "the number of receiver-not-ready retries does not suit it",
            Self::DuplicateCommunicationId => "the connection's number is in use",
            Self::InvalidClassVersion => "it speaks another version",
            Self::VendorOptions => "the vendor's options do not suit it",
            Self::Unknown(code) => return write!(f, "reason {code}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_reason() {
        assert_eq!(RejectReason::from_raw(8), RejectReason::NobodyListens);
        assert_eq!(RejectReason::from_raw(28), RejectReason::ByProgram);
        assert_eq!(RejectReason::from_raw(14), RejectReason::InvalidPath(14));
        for unknown in [i32::MIN, -1, 0, 2, 11, 34, 36, i32::MAX] {
            assert_eq!(
                RejectReason::from_raw(unknown),
                RejectReason::Unknown(unknown)
            );
        }
    }
}
