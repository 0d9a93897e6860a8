//! Attributes of ports.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use ibverbs_sys as sys;

use super::attributes::duration_of_exponent;
use super::{LinkSpeed, LinkWidth, PhysicalState, PortCapabilities, PortCapabilities2, PortFlags};

/// The attributes of a port (`ibv_query_port`).
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

    /// Returns a copy of these attributes with the link speed `speed`. The crate calls this method
    /// for a speed whose code is too large for the field of the C struct.
    pub(crate) fn with_speed(self, speed: LinkSpeed) -> Self {
        Self { speed, ..self }
    }

    /// Returns the port number, counted from 1.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns the logical state of the port, for example whether the port is active.
    pub fn state(&self) -> PortState {
        PortState::from_raw(self.raw.state)
    }

    /// Returns the state of the port's physical link.
    pub fn physical_state(&self) -> PhysicalState {
        PhysicalState::from_raw(self.raw.phys_state)
    }

    /// Returns the link layer of the port.
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer::from_raw(self.raw.link_layer)
    }

    /// Returns the speed of one lane of the link. The field of the C struct cannot contain a speed
    /// above NDR. The crate reads higher speeds from sysfs.
    pub fn speed(&self) -> LinkSpeed {
        self.speed
    }

    /// Returns the width of the link: the number of its lanes.
    pub fn width(&self) -> LinkWidth {
        LinkWidth::from_raw(self.raw.active_width)
    }

    /// Returns the rate of the link in Mbit/s, for all lanes together, or `None` if speed or width
    /// is unknown.
    pub fn megabits_per_second(&self) -> Option<u32> {
        Some(self.width().lanes()? * self.speed.megabits_per_second()?)
    }

    /// Returns the maximum MTU that the port supports, or `None` if the device reports an unknown
    /// value.
    pub fn max_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.max_mtu)
    }

    /// Returns the active MTU, the upper limit of the path MTU, or `None` if the device reports an
    /// unknown value.
    pub fn active_mtu(&self) -> Option<Mtu> {
        Mtu::from_raw(self.raw.active_mtu)
    }

    /// Returns the optional capabilities of the port.
    pub fn capabilities(&self) -> PortCapabilities {
        PortCapabilities::from_bits_retain(self.raw.port_cap_flags)
    }

    /// Returns the optional capabilities that the port reports in its second capability mask.
    pub fn capabilities2(&self) -> PortCapabilities2 {
        PortCapabilities2::from_bits_retain(self.raw.port_cap_flags2)
    }

    /// Returns the port's requirements on packet headers, for example that every packet needs a
    /// global route header.
    pub fn flags(&self) -> PortFlags {
        PortFlags::from_bits_retain(self.raw.flags)
    }

    /// Returns the number of entries of the GID table, including empty entries.
    pub fn gid_table_len(&self) -> usize {
        usize::try_from(self.raw.gid_tbl_len).unwrap_or(0)
    }

    /// Returns the number of entries of the P_Key table, including empty entries.
    pub fn pkey_table_len(&self) -> usize {
        usize::from(self.raw.pkey_tbl_len)
    }

    /// Returns the maximum length of a message in bytes.
    pub fn max_message_size(&self) -> u32 {
        self.raw.max_msg_sz
    }

    /// Returns the local identifier (LID), or 0 on Ethernet.
    pub fn lid(&self) -> u16 {
        self.raw.lid
    }

    /// Returns all LIDs of the port, a range of 2 to the power of `lmc` LIDs. `lmc` (LID mask
    /// control) is a field of the C struct.
    #[doc(alias = "lmc")]
    pub fn lids(&self) -> RangeInclusive<u16> {
        let below = (1_u16 << (self.raw.lmc & 0x7)) - 1;
        self.raw.lid..=self.raw.lid | below
    }

    /// Returns the LID of the subnet manager, or 0 on Ethernet.
    pub fn subnet_manager_lid(&self) -> u16 {
        self.raw.sm_lid
    }

    /// Returns the service level for messages to the subnet manager.
    pub fn subnet_manager_service_level(&self) -> u8 {
        self.raw.sm_sl
    }

    /// Returns the maximum time that a packet takes through the subnet.
    pub fn subnet_timeout(&self) -> Duration {
        duration_of_exponent(self.raw.subnet_timeout)
    }

    /// Returns the code by which the subnet manager reports how it initialised the port (the C
    /// field `init_type_reply`).
    pub fn initialization_reply(&self) -> u8 {
        self.raw.init_type_reply
    }

    /// Returns the number of virtual lanes for data, at most 15, or `None` if the device reports an
    /// unknown value.
    pub fn virtual_lanes(&self) -> Option<u8> {
        Some(match self.raw.max_vl_num {
            lanes @ 1..=4 => 1 << (lanes - 1),
            5 => 15,
            _ => return None,
        })
    }

    /// Returns the number of received packets with a wrong P_Key.
    pub fn bad_pkeys(&self) -> u32 {
        self.raw.bad_pkey_cntr
    }

    /// Returns the number of received packets with a wrong Q_Key.
    pub fn bad_qkeys(&self) -> u32 {
        self.raw.qkey_viol_cntr
    }

    /// Returns the attributes as a C struct.
    pub fn as_raw(&self) -> &sys::ibv_port_attr {
        &self.raw
    }
}

/// The logical state of a port (`ibv_port_state`).
#[doc(alias = "ibv_port_state")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// The value for "no state change", which occurs only in requests to a port (IBTA 14.2.5.6).
    NoChange,
    /// The link is down.
    Down,
    /// The physical link is up, and the subnet manager is configuring the port.
    Initializing,
    /// The port is configured but not active.
    Armed,
    /// The port carries traffic.
    Active,
    /// The port was active, and its link is temporarily down.
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

/// The link layer of a port: InfiniBand or Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// The device does not report the link layer. On a device with the InfiniBand transport this
    /// value means InfiniBand.
    Unspecified,
    /// InfiniBand: ports are addressed by LID.
    InfiniBand,
    /// Ethernet: RoCE or iWARP. Ports are addressed by GID.
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

/// A path MTU: the maximum payload of one packet (`ibv_mtu`).
#[doc(alias = "ibv_mtu")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Mtu {
    /// A payload of at most 256 bytes.
    Mtu256 = 1,
    /// A payload of at most 512 bytes.
    Mtu512,
    /// A payload of at most 1024 bytes.
    Mtu1024,
    /// A payload of at most 2048 bytes.
    Mtu2048,
    /// A payload of at most 4096 bytes.
    Mtu4096,
}

impl Mtu {
    /// All path MTUs, in ascending order.
    pub const ALL: [Self; 5] = [
        Self::Mtu256,
        Self::Mtu512,
        Self::Mtu1024,
        Self::Mtu2048,
        Self::Mtu4096,
    ];

    /// Returns the maximum payload of a packet in bytes.
    pub fn bytes(self) -> usize {
        128 << (self as usize)
    }

    /// Returns the path MTU of `bytes` bytes, or `None` if no path MTU has this size.
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
