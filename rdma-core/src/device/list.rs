//! The list of devices of this system.

use std::fmt;
use std::path::PathBuf;

use super::{NodeType, TransportType, sysfs};
use crate::context::Context;
use crate::error::Result;
use crate::ffi::{self, DeviceHandle};

/// An RDMA device of this system.
///
/// `Device` is `Send` and `Sync`, because a device that is not open is immutable. The value keeps
/// the device list of libibverbs allocated.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    handle: DeviceHandle,
}

/// Returns all RDMA devices of this system, in the order of libibverbs. The list may be empty.
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
/// The error of `ibv_get_device_list`, for example because the process has no permission to read
/// the list.
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

    /// Returns the kernel's name of the device, for example `mlx5_0` or `rxe_0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> String {
        self.handle.name()
    }

    /// Returns the node GUID, a globally unique number that identifies the device.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        self.handle.guid()
    }

    /// Returns the number that the kernel has assigned to the device. The kernel does not reuse the
    /// number while the system runs. Returns `None` if the device is not a kernel device or the
    /// kernel is too old.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        self.handle.index()
    }

    /// Returns the transport protocol that the device implements.
    pub fn transport(&self) -> TransportType {
        TransportType::from_raw(self.handle.transport())
    }

    /// Returns the role of the device in its network, for example an end node or a switch.
    pub fn node_type(&self) -> NodeType {
        NodeType::from_raw(self.handle.node_type())
    }

    /// Returns whether the device uses the iWARP transport.
    pub fn is_iwarp(&self) -> bool {
        self.transport() == TransportType::Iwarp
    }

    /// Returns the sysfs directory of the device, `/sys/class/infiniband/NAME`, or `None` if the
    /// device is not a kernel device.
    #[doc(alias = "ibdev_path")]
    pub fn path(&self) -> Option<PathBuf> {
        Some(self.handle.path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// Returns the administrator's description of the device, usually the names of host and device,
    /// or `None` if the device has no description.
    #[doc(alias = "node_desc")]
    pub fn description(&self) -> Option<String> {
        sysfs::text(&self.handle.path(), "node_desc")
    }

    /// Returns the vendor's name for the board, or `None` if the driver does not report a name.
    pub fn board_id(&self) -> Option<String> {
        sysfs::text(&self.handle.path(), "board_id")
    }

    /// Returns the NUMA node to which the device is attached. Returns `None` if the system has no
    /// NUMA nodes or the device is not hardware.
    pub fn numa_node(&self) -> Option<u32> {
        let node = sysfs::text(&self.handle.path(), "device/numa_node")?;
        node.parse().ok()
    }

    /// Returns the kernel's text for the rate of a port, for example `100 Gb/sec (4X EDR)`, or
    /// `None` if the kernel provides no text.
    pub(crate) fn rate(&self, port: u8) -> Option<String> {
        sysfs::text(&self.handle.path(), &format!("ports/{port}/rate"))
    }

    /// Returns whether the device is a softroce device, which is implemented in user space.
    /// [`Context::open_default`] chooses a softroce device only if no other device exists.
    pub fn is_emulated(&self) -> bool {
        self.name().starts_with("softroce")
    }

    /// Opens the device. The returned context creates all other objects of the device.
    ///
    /// # Errors
    ///
    /// The error of `ibv_open_device`, for example because the process has no permission for
    /// `/dev/infiniband/uverbs*`.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::from_device(self)
    }

    /// Returns the underlying `ibv_device`. The pointer is valid as long as this `Device` exists.
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
