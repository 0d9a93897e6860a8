//! Ports.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use ibverbs_sys as sys;

use super::attributes::four_microseconds_to_the;
use super::{LinkSpeed, LinkWidth, PhysicalState, PortCapabilities, PortCapabilities2, PortFlags};

/// What a port is and does (`ibv_query_port`).
///
/// ```
/// let context = rdma_core::Context::open_default()?;
/// for port in context.ports()? {
///     println!("{}: {}, {} {}", port.number(), port.state(), port.width(), port.speed());
/// }
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[doc(alias = "ibv_port_attr")]
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    number: u8,
    raw: sys::ibv_port_attr,
    speed: LinkSpeed,
}

impl PortAttributes {
    pub(crate) fn new(number: u8, raw: sys::ibv_port_attr) -> Self {
        let speed = LinkSpeed::from_raw(raw.active_speed.into());
        Self { number, raw, speed }
    }

    /// The same, of a link whose speed the C struct has no room for.
    pub(crate) fn with_speed(self, speed: LinkSpeed) -> Self {
        Self { speed, ..self }
    }

    /// The port's number, from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Whether it carries traffic.
    pub fn state(&self) -> PortState {
        PortState::from_raw(self.raw.state)
    }

    /// What its transceiver does.
    pub fn physical_state(&self) -> PhysicalState {
        PhysicalState::from_raw(self.raw.phys_state)
    }

    /// What the link is.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.raw.link_layer)
    }

    /// How fast a lane of the link is. Above NDR, which the C struct of these bindings ends with,
    /// it is what the kernel's file tells.
    pub fn speed(&self) -> LinkSpeed {
        self.speed
    }

    /// How many lanes the link has.
    pub fn width(&self) -> LinkWidth {
        LinkWidth::from_raw(self.raw.active_width)
    }

    /// What the link carries in Mbit/s, all lanes together; `None` if speed or width are unknown.
    pub fn megabits_per_second(&self) -> Option<u32> {
        Some(self.width().lanes()? * self.speed.megabits_per_second()?)
    }

    /// The largest path MTU that it can carry.
    pub fn max_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.max_mtu)
    }

    /// The largest path MTU that it carries now.
    pub fn active_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.active_mtu)
    }

    /// What it can do.
    pub fn capabilities(&self) -> PortCapabilities {
        PortCapabilities::from_bits_retain(self.raw.port_cap_flags)
    }

    /// What else it can do.
    pub fn capabilities2(&self) -> PortCapabilities2 {
        PortCapabilities2::from_bits_retain(self.raw.port_cap_flags2)
    }

    /// What it asks of its users.
    pub fn flags(&self) -> PortFlags {
        PortFlags::from_bits_retain(self.raw.flags)
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

    /// All local identifiers that lead to it: `1 << lmc` of them.
    #[doc(alias = "lmc")]
    pub fn lids(&self) -> RangeInclusive<u16> {
        let below = (1_u16 << (self.raw.lmc & 0x7)) - 1;
        self.raw.lid..=self.raw.lid | below
    }

    /// The local identifier of the subnet manager; 0 on Ethernet.
    pub fn subnet_manager_lid(&self) -> u16 {
        self.raw.sm_lid
    }

    /// The service level to reach the subnet manager with.
    pub fn subnet_manager_service_level(&self) -> u8 {
        self.raw.sm_sl
    }

    /// How long a packet takes through the subnet at most.
    pub fn subnet_timeout(&self) -> Duration {
        four_microseconds_to_the(self.raw.subnet_timeout)
    }

    /// How the subnet manager initialised it, as a raw value.
    pub fn initialization_reply(&self) -> u8 {
        self.raw.init_type_reply
    }

    /// How many virtual lanes it has for data, 15 at most.
    pub fn virtual_lanes(&self) -> Option<u8> {
        Some(match self.raw.max_vl_num {
            lanes @ 1..=4 => 1 << (lanes - 1),
            5 => 15,
            _ => return None,
        })
    }

    /// How many packets came with a wrong P_Key.
    pub fn bad_pkeys(&self) -> u32 {
        self.raw.bad_pkey_cntr
    }

    /// How many packets came with a wrong Q_Key.
    pub fn bad_qkeys(&self) -> u32 {
        self.raw.qkey_viol_cntr
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
    fn what_is_encoded_is_decoded() {
        let raw = sys::ibv_port_attr {
            active_speed: 128,
            active_width: 2,
            lid: 0x40,
            lmc: 3,
            max_vl_num: 5,
            ..Default::default()
        };
        let port = PortAttributes::new(1, raw);
        assert_eq!(port.megabits_per_second(), Some(400_000));
        assert_eq!(
            port.with_speed(LinkSpeed::Xdr).megabits_per_second(),
            Some(800_000)
        );
        assert_eq!(port.lids(), 0x40..=0x47);
        assert_eq!(port.virtual_lanes(), Some(15));
        let port = PortAttributes::new(1, sys::ibv_port_attr::default());
        assert_eq!(
            (port.virtual_lanes(), port.megabits_per_second()),
            (None, None)
        );
        assert_eq!(port.lids(), 0..=0);
    }

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
