//! Devices, their ports, and which of them to use.

#![forbid(unsafe_code)]

mod address;
mod attributes;
mod gid;
mod list;
mod port;
mod selector;

pub use address::{AddressChoice, LocalAddress};
pub use attributes::{AtomicCapability, DeviceAttributes};
pub use gid::{Gid, GidEntry, GidType};
pub use list::{Device, devices};
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use selector::DeviceSelector;
