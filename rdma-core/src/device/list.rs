//! The devices of this system.

use std::fmt;
use std::path::PathBuf;

use super::{NodeType, TransportType, sysfs};
use crate::context::Context;
use crate::error::Result;
use crate::ffi::{self, DeviceHandle};

/// An RDMA device of this system.
///
/// It is `Send` and `Sync`: nobody writes to it, and the list that it came from is kept as long as
/// it.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    handle: DeviceHandle,
}

/// Every RDMA device of this system, in libibverbs' order; none is an empty list.
///
/// ```
/// for device in rdma_core::devices()? {
///     println!("device name: {}", device.name());
/// }
/// # Ok::<(), rdma_core::Error>(())
/// ```
///
/// # Errors
///
/// The verb's, for example without permission to read the list.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<Device>> {
    Ok(ffi::device_list()?
        .into_iter()
        .map(|handle| Device { handle })
        .collect())
}

impl Device {
    pub(crate) fn handle(&self) -> &DeviceHandle {
        &self.handle
    }

    pub(crate) fn from_handle(handle: DeviceHandle) -> Self {
        Self { handle }
    }

    /// The kernel's name of it, for example `mlx5_0` or `rxe_0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> String {
        self.handle.name()
    }

    /// The node GUID, as a number.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        self.handle.guid()
    }

    /// The number that the kernel has given it, which no other device gets while the system runs;
    /// `None` of one that is not the kernel's, or with a kernel that is too old.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        self.handle.index()
    }

    /// Whose verbs it speaks.
    pub fn transport(&self) -> TransportType {
        TransportType::from_raw(self.handle.transport())
    }

    /// What it is in its fabric.
    pub fn node_type(&self) -> NodeType {
        NodeType::from_raw(self.handle.node_type())
    }

    /// Whether it speaks iWARP, and not InfiniBand's transport (over InfiniBand or RoCE).
    pub fn is_iwarp(&self) -> bool {
        self.transport() == TransportType::Iwarp
    }

    /// Where the kernel has its files, `/sys/class/infiniband/NAME`; `None` of one that is not the
    /// kernel's.
    #[doc(alias = "ibdev_path")]
    pub fn path(&self) -> Option<PathBuf> {
        Some(self.handle.path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// What the administrator calls the node, usually the host's name and the device's; `None`
    /// without one.
    #[doc(alias = "node_desc")]
    pub fn description(&self) -> Option<String> {
        sysfs::text(&self.handle.path(), "node_desc")
    }

    /// The vendor's name for the board; `None` without one.
    pub fn board_id(&self) -> Option<String> {
        sysfs::text(&self.handle.path(), "board_id")
    }

    /// The NUMA node that it is attached to; `None` where there are none, or it is no hardware.
    pub fn numa_node(&self) -> Option<u32> {
        let node = sysfs::text(&self.handle.path(), "device/numa_node")?;
        node.parse().ok()
    }

    /// The kernel's text about a port's rate.
    pub(crate) fn rate(&self, port: u8) -> Option<String> {
        sysfs::text(&self.handle.path(), &format!("ports/{port}/rate"))
    }

    /// Whether it is softroce, the device in user space, which no program gets unasked where there
    /// are others.
    pub fn is_emulated(&self) -> bool {
        self.name().starts_with("softroce")
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// The verb's, for example without permission for `/dev/infiniband/uverbs*`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::from_device(self)
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_device {
        self.handle.as_raw()
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("guid", &format_args!("{:016x}", self.guid()))
            .finish()
    }
}
