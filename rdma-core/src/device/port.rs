//! Ports.

use std::fmt;

use ibverbs_sys as sys;

/// What a port is and does (`ibv_query_port`).
#[doc(alias = "ibv_port_attr")]
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    number: u8,
    raw: sys::ibv_port_attr,
}

impl PortAttributes {
    pub(crate) fn new(number: u8, raw: sys::ibv_port_attr) -> Self {
        Self { number, raw }
    }

    /// The port's number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Whether it carries traffic.
    pub fn state(&self) -> PortState {
        PortState::from_raw(self.raw.state)
    }

    /// What the link is.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.raw.link_layer)
    }

    /// The largest path MTU that it can carry.
    pub fn max_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.max_mtu)
    }

    /// The largest path MTU that it carries now.
    pub fn active_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.active_mtu)
    }

    /// How many entries its GID table has room for.
    pub fn gid_table_len(&self) -> usize {
        usize::try_from(self.raw.gid_tbl_len).unwrap_or(0)
    }

    /// How many entries its P_Key table has.
    pub fn pkey_table_len(&self) -> usize {
        usize::from(self.raw.pkey_tbl_len)
    }

    /// The largest message, in bytes.
    pub fn max_message_size(&self) -> u32 {
        self.raw.max_msg_sz
    }

    /// The local identifier; 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.raw.lid
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_port_attr {
        &self.raw
    }
}

/// Whether a port carries traffic (`ibv_port_state`).
#[doc(alias = "ibv_port_state")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// Nothing changed since the last look.
    NoChange,
    /// The link is down.
    Down,
    /// The link is being set up.
    Initializing,
    /// The link is set up but not in use yet.
    Armed,
    /// It carries traffic.
    Active,
    /// It was active and lost its link for a moment.
    ActiveDeferred,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl PortState {
    pub(crate) fn from_raw(state: sys::ibv_port_state) -> Self {
        use sys::ibv_port_state as raw;
        match state {
            raw::IBV_PORT_NOP => Self::NoChange,
            raw::IBV_PORT_DOWN => Self::Down,
            raw::IBV_PORT_INIT => Self::Initializing,
            raw::IBV_PORT_ARMED => Self::Armed,
            raw::IBV_PORT_ACTIVE => Self::Active,
            raw::IBV_PORT_ACTIVE_DEFER => Self::ActiveDeferred,
            raw(other) => Self::Unknown(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChange => f.write_str("no change"),
            Self::Down => f.write_str("down"),
            Self::Initializing => f.write_str("initializing"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::ActiveDeferred => f.write_str("active deferred"),
            Self::Unknown(value) => write!(f, "state {value}"),
        }
    }
}

/// What a port's link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// Not told; with InfiniBand's transport it is InfiniBand.
    Unspecified,
    /// InfiniBand: ports are addressed by LID.
    InfiniBand,
    /// Ethernet: RoCE or iWARP; ports are addressed by GID.
    Ethernet,
    /// A value that this crate does not know.
    Unknown(u8),
}

impl LinkLayer {
    pub(crate) fn from_raw(value: u8) -> Self {
        match u32::from(value) {
            sys::IBV_LINK_LAYER_UNSPECIFIED => Self::Unspecified,
            sys::IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            _ => Self::Unknown(value),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("unspecified"),
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Unknown(value) => write!(f, "link layer {value}"),
        }
    }
}

/// A path MTU: how many bytes of a message go into one packet (`ibv_mtu`).
#[doc(alias = "ibv_mtu")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// Every path MTU, from small to large.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// How many bytes.
    pub fn bytes(self) -> usize {
        128 << (self as usize)
    }

    /// The path MTU of so many bytes, if there is one.
    pub fn from_bytes(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    pub(crate) fn from_raw(value: sys::ibv_mtu) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.to_raw() == value)
    }

    pub(crate) fn to_raw(self) -> sys::ibv_mtu {
        sys::ibv_mtu(self as _)
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_have_the_headers_values() {
        assert_eq!(Mtu::Mtu256.to_raw(), sys::ibv_mtu::IBV_MTU_256);
        assert_eq!(Mtu::Mtu4096.to_raw(), sys::ibv_mtu::IBV_MTU_4096);
        assert_eq!(Mtu::from_raw(sys::ibv_mtu(0)), None);
        assert_eq!(Mtu::from_bytes(1024), Some(Mtu::Mtu1024));
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::Mtu2048.bytes(), 2048);
    }
}
