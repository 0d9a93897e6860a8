//! The device list.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use crate::error::{Errno, Error, Result};

/// The array that `ibv_get_device_list` returned; the devices in it live at least as long.
struct DeviceArray {
    first: NonNull<*mut sys::ibv_device>,
}

// SAFETY: the array is never written after libibverbs returned it, and freeing it from another
// thread than the one that obtained it is allowed (libibverbs counts references atomically).
unsafe impl Send for DeviceArray {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for DeviceArray {}

impl Drop for DeviceArray {
    fn drop(&mut self) {
        // SAFETY: `first` came from `ibv_get_device_list` and is freed once, here.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// One device of the list, kept valid by the list that it shares.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    raw: NonNull<sys::ibv_device>,
    _list: Arc<DeviceArray>,
}

// SAFETY: an `ibv_device` is immutable and its accessors are thread-safe.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceHandle").field(&self.name()).finish()
    }
}

/// Every device that libibverbs finds, in its order.
pub(crate) fn device_list() -> Result<Vec<DeviceHandle>> {
    #[cfg(feature = "softroce")]
    softroce::install();
    let mut count = 0;
    // SAFETY: `count` is a valid place for the number of devices.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    let Some(first) = NonNull::new(list) else {
        let errno = Errno::last();
        // Without the kernel's RDMA support there is no device, which is an answer, not a failure.
        if errno.0 == libc::ENOSYS {
            return Ok(Vec::new());
        }
        return Err(Error::verb("ibv_get_device_list", "this system", errno));
    };
    let list = Arc::new(DeviceArray { first });
    let count = usize::try_from(count).unwrap_or(0);
    let devices = (0..count).filter_map(|index| {
        // SAFETY: the array has `count` elements followed by a NULL.
        let device = unsafe { *first.as_ptr().add(index) };
        NonNull::new(device).map(|raw| DeviceHandle {
            raw,
            _list: Arc::clone(&list),
        })
    });
    Ok(devices.collect())
}

impl DeviceHandle {
    pub(crate) fn as_raw(&self) -> *mut sys::ibv_device {
        self.raw.as_ptr()
    }

    pub(crate) fn name(&self) -> String {
        // SAFETY: the device is valid (kept by the list); the name is a NUL-terminated array in it.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(self.raw.as_ptr())) };
        name.to_string_lossy().into_owned()
    }

    /// The node GUID in host byte order.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the device is valid (kept by the list).
        u64::from_be(unsafe { sys::ibv_get_device_guid(self.raw.as_ptr()) })
    }

    /// The transport as the raw value of `ibv_transport_type`.
    pub(crate) fn transport(&self) -> sys::ibv_transport_type {
        // SAFETY: the device is valid (kept by the list), so the field can be read.
        unsafe { (*self.raw.as_ptr()).transport_type }
    }
}
