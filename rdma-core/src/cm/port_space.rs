//! Port spaces, and the maximum length of private data.

use ibverbs_sys::rdma_port_space as raw;

use crate::error::{Error, Result};

/// The kind of connection or datagram service that a connection identifier uses
/// (`rdma_port_space`). Each port space has its own port numbers.
#[doc(alias = "rdma_port_space")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortSpace {
    /// Reliable connections.
    #[doc(alias = "RDMA_PS_TCP")]
    Tcp,
    /// Datagrams. A connect request of this port space only queries the peer's queue pair.
    #[doc(alias = "RDMA_PS_UDP")]
    Udp,
    /// Datagrams in multicast groups that are shared with IP over InfiniBand.
    #[doc(alias = "RDMA_PS_IPOIB")]
    Ipoib,
    /// Reliable connections with native InfiniBand service ids.
    #[doc(alias = "RDMA_PS_IB")]
    InfiniBand,
    /// A value that this crate does not know.
    Unknown(u32),
}

/// A type of connection manager message that can contain private data. The message type determines
/// the maximum length of the private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    Connect,
    Accept,
    Reject,
}

impl PortSpace {
    pub(crate) fn from_raw(space: raw) -> Self {
        match space {
            raw::RDMA_PS_TCP => Self::Tcp,
            raw::RDMA_PS_UDP => Self::Udp,
            raw::RDMA_PS_IPOIB => Self::Ipoib,
            raw::RDMA_PS_IB => Self::InfiniBand,
            raw(other) => Self::Unknown(other),
        }
    }

    pub(crate) fn to_raw(self) -> raw {
        match self {
            Self::Tcp => raw::RDMA_PS_TCP,
            Self::Udp => raw::RDMA_PS_UDP,
            Self::Ipoib => raw::RDMA_PS_IPOIB,
            Self::InfiniBand => raw::RDMA_PS_IB,
            Self::Unknown(other) => raw(other),
        }
    }

    /// Returns whether connection identifiers of this port space are for datagrams, and not for
    /// connections.
    pub fn is_datagram(self) -> bool {
        matches!(self, Self::Udp | Self::Ipoib)
    }

    /// Returns the maximum length in bytes of the private data of a connect request: 56, or 180 for
    /// a port space for datagrams.
    ///
    /// REQ has 92 bytes of private data and SIDR_REQ 216 (IBTA volume 1, 12.6.5 and 12.11.2.1). The
    /// IP addresses of the two sides occupy 36 of these bytes (annex A11).
    pub fn connect_limit(self) -> usize {
        self.limit(Message::Connect)
    }

    /// Returns the maximum length in bytes of the private data of an acceptance: 196, or 136 for a
    /// port space for datagrams (REP and SIDR_REP: IBTA volume 1, 12.6.8 and 12.11.2.2).
    pub fn accept_limit(self) -> usize {
        self.limit(Message::Accept)
    }

    /// Returns the maximum length in bytes of the private data of a rejection: 148, or 136 for a
    /// port space for datagrams (REJ and SIDR_REP: IBTA volume 1, 12.6.7 and 12.11.2.2).
    pub fn reject_limit(self) -> usize {
        self.limit(Message::Reject)
    }

    fn limit(self, message: Message) -> usize {
        match (message, self.is_datagram()) {
            (Message::Connect, false) => 92 - 36,
            (Message::Connect, true) => 216 - 36,
            (Message::Accept, false) => 196,
            (Message::Reject, false) => 148,
            (Message::Accept | Message::Reject, true) => 136,
        }
    }

    /// Returns an error if the private data `data` is too long for a message of the type `message`.
    pub(crate) fn checked(self, message: Message, data: &[u8]) -> Result<()> {
        let limit = self.limit(message);
        if data.len() <= limit {
            return Ok(());
        }
        let what = match message {
            Message::Connect => "a request to connect",
            Message::Accept => "an acceptance",
            Message::Reject => "a rejection",
        };
        let reason = format!("{} bytes are more than the {limit} of {what}", data.len());
        Err(Error::invalid("private data", reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_have_the_headers_values() {
        let known = [
            PortSpace::Tcp,
            PortSpace::Udp,
            PortSpace::Ipoib,
            PortSpace::InfiniBand,
        ];
        for space in known {
            assert_eq!(PortSpace::from_raw(space.to_raw()), space);
        }
        assert_eq!(PortSpace::from_raw(raw(7)), PortSpace::Unknown(7));
        assert_eq!(PortSpace::Unknown(7).to_raw(), raw(7));
    }

    #[test]
    fn private_data_is_bounded_by_the_message() {
        let data = [0; 256];
        let space = PortSpace::Tcp;
        assert!(space.checked(Message::Connect, &data[..56]).is_ok());
        let error = space.checked(Message::Connect, &data[..57]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "private data: 57 bytes are more than the 56 of a request to connect"
        );
        assert!(space.checked(Message::Accept, &data[..196]).is_ok());
        assert!(space.checked(Message::Accept, &data[..197]).is_err());
        assert!(space.checked(Message::Reject, &data[..149]).is_err());
        assert!(
            PortSpace::Udp
                .checked(Message::Connect, &data[..180])
                .is_ok()
        );
        assert!(
            PortSpace::Udp
                .checked(Message::Accept, &data[..137])
                .is_err()
        );
    }
}
