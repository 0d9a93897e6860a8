//! The devices of this system.

use std::fmt;

use ibverbs_sys::ibv_transport_type;

use crate::context::Context;
use crate::error::Result;
use crate::ffi::{self, DeviceHandle};

/// An RDMA device of this system.
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

    /// Whether it speaks iWARP, and not InfiniBand's transport (over InfiniBand or RoCE).
    pub fn is_iwarp(&self) -> bool {
        self.handle.transport() == ibv_transport_type::IBV_TRANSPORT_IWARP
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
