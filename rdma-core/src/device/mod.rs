//! Devices, their ports and capabilities, and the selection of a device.

#![forbid(unsafe_code)]

mod address;
mod attributes;
mod capability;
mod clock;
mod extended;
mod gid;
mod info;
mod link;
mod list;
mod pkey;
mod port;
mod selector;
mod sysfs;
mod transport;

pub use address::{AddressChoice, LocalAddress};
pub use attributes::{AtomicCapability, DeviceAttributes};
pub use capability::{
    AtomicSizes, DeviceCapabilities, HashFields, HashFunctions, OnDemandOperations, OnDemandPaging,
    PortCapabilities, PortCapabilities2, PortFlags, QueuePairKinds, RawPacketCapabilities,
    TagMatchingFlags,
};
pub use clock::DeviceClock;
pub use extended::{
    ExtendedDeviceAttributes, ModerationCapabilities, OnDemandCapabilities, PacingCapabilities,
    PciAtomicCapabilities, ReceiveScalingCapabilities, SegmentationCapabilities,
    TagMatchingCapabilities,
};
pub use gid::{Gid, GidEntry, GidType};
pub use info::{DeviceInfo, PortInfo};
pub use link::{LinkSpeed, LinkWidth, PhysicalState};
pub use list::{Device, devices};
pub use pkey::PartitionKey;
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use selector::DeviceSelector;
pub use transport::{NodeType, Protocol, TransportType};

pub(crate) use sysfs::speed_of_rate;
