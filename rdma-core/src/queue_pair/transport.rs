//! The transport types of queue pairs.

use std::fmt;

use ibverbs_sys::ibv_qp_type as raw;

/// The transport type of a queue pair (`ibv_qp_type`; IBTA volume 1, 9.2).
///
/// | type | peers | delivery | operations |
/// |---|---|---|---|
/// | [`ReliableConnected`](Self::ReliableConnected) | one | in order, or the queue pair fails | all |
/// | [`UnreliableConnected`](Self::UnreliableConnected) | one | a message arrives whole or not at all | sends and writes |
/// | [`Datagram`](Self::Datagram) | any; each request has a destination | a packet arrives or not | sends of at most the path MTU |
/// | [`XrcInitiator`](Self::XrcInitiator) | one; each request names a shared receive queue of the peer | as reliable connected | all except receives |
/// | [`XrcTarget`](Self::XrcTarget) | one | as reliable connected | none can be posted |
/// | [`RawPacket`](Self::RawPacket) | any on the Ethernet | unmodified frames | sends, receives |
#[doc(alias = "ibv_qp_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connected (RC): one peer, with acknowledgements and retransmissions.
    #[doc(alias = "IBV_QPT_RC")]
    ReliableConnected,
    /// Unreliable connected (UC): one peer, without acknowledgements.
    #[doc(alias = "IBV_QPT_UC")]
    UnreliableConnected,
    /// Unreliable datagram (UD): each request has its own destination.
    #[doc(alias = "IBV_QPT_UD")]
    Datagram,
    /// The sending half of an extended reliable connection, XRC.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    XrcInitiator,
    /// The receiving half of an extended reliable connection, XRC.
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    XrcTarget,
    /// Raw Ethernet frames, which the program writes and reads including all headers.
    #[doc(alias = "IBV_QPT_RAW_PACKET")]
    RawPacket,
    /// A vendor-specific type, created by a vendor's extension.
    #[doc(alias = "IBV_QPT_DRIVER")]
    Driver,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl Transport {
    /// All transport types of queue pairs that this crate can create.
    pub const ALL: [Self; 6] = [
        Self::ReliableConnected,
        Self::UnreliableConnected,
        Self::Datagram,
        Self::XrcInitiator,
        Self::XrcTarget,
        Self::RawPacket,
    ];

    #[allow(dead_code, reason = "queue pairs of extensions bring theirs")]
    pub(crate) fn from_raw(kind: raw) -> Self {
        match kind {
            raw::IBV_QPT_RC => Self::ReliableConnected,
            raw::IBV_QPT_UC => Self::UnreliableConnected,
            raw::IBV_QPT_UD => Self::Datagram,
            raw::IBV_QPT_XRC_SEND => Self::XrcInitiator,
            raw::IBV_QPT_XRC_RECV => Self::XrcTarget,
            raw::IBV_QPT_RAW_PACKET => Self::RawPacket,
            raw::IBV_QPT_DRIVER => Self::Driver,
            raw(other) => Self::Unknown(other),
        }
    }

    pub(crate) fn to_raw(self) -> raw {
        match self {
            Self::ReliableConnected => raw::IBV_QPT_RC,
            Self::UnreliableConnected => raw::IBV_QPT_UC,
            Self::Datagram => raw::IBV_QPT_UD,
            Self::XrcInitiator => raw::IBV_QPT_XRC_SEND,
            Self::XrcTarget => raw::IBV_QPT_XRC_RECV,
            Self::RawPacket => raw::IBV_QPT_RAW_PACKET,
            Self::Driver => raw::IBV_QPT_DRIVER,
            Self::Unknown(other) => raw(other),
        }
    }

    /// Returns whether a queue pair of this type is connected to one peer.
    pub fn is_connected(self) -> bool {
        matches!(
            self,
            Self::ReliableConnected
                | Self::UnreliableConnected
                | Self::XrcInitiator
                | Self::XrcTarget
        )
    }

    /// Returns whether the transport is reliable: the peer acknowledges requests, and the device
    /// retransmits lost packets.
    pub fn is_reliable(self) -> bool {
        matches!(
            self,
            Self::ReliableConnected | Self::XrcInitiator | Self::XrcTarget
        )
    }

    /// Returns whether queue pairs of this transport type have a send queue to which the program
    /// can post requests.
    pub fn has_send_queue(self) -> bool {
        self != Self::XrcTarget
    }

    /// Returns whether queue pairs of this transport type have a receive queue, to which the
    /// program can post receives. If a queue pair uses a shared receive queue, the program posts
    /// receives to the shared receive queue instead.
    pub fn has_receive_queue(self) -> bool {
        !matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }

    /// Returns the name of the queue pair type for error messages.
    pub(crate) fn described(self) -> &'static str {
        match self {
            Self::ReliableConnected => "reliable connected queue pairs",
            Self::UnreliableConnected => "unreliable connected queue pairs",
            Self::Datagram => "datagram queue pairs",
            Self::XrcInitiator | Self::XrcTarget => "XRC queue pairs",
            Self::RawPacket => "raw packet queue pairs",
            Self::Driver | Self::Unknown(_) => "queue pairs of this kind",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReliableConnected => "RC",
            Self::UnreliableConnected => "UC",
            Self::Datagram => "UD",
            Self::XrcInitiator => "XRC initiator",
            Self::XrcTarget => "XRC target",
            Self::RawPacket => "raw packet",
            Self::Driver => "vendor's",
            Self::Unknown(value) => return write!(f, "kind {value}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_headers_values() {
        for kind in Transport::ALL {
            assert_eq!(Transport::from_raw(kind.to_raw()), kind);
        }
        for value in [0, 7, 255, u32::MAX] {
            assert_eq!(Transport::from_raw(raw(value)).to_raw(), raw(value));
        }
        assert_eq!(Transport::from_raw(raw(7)), Transport::Unknown(7));
    }
}
