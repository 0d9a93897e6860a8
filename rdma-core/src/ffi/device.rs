//! The device list.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
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
        // SAFETY: the device is valid (kept by the list).
        unsafe { name_of(self.raw.as_ptr()) }
    }

    /// The node GUID in host byte order.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the device is valid (kept by the list).
        u64::from_be(unsafe { sys::ibv_get_device_guid(self.raw.as_ptr()) })
    }

    /// The kernel's number of it.
    pub(crate) fn index(&self) -> Option<u32> {
        // SAFETY: the device is valid (kept by the list).
        u32::try_from(unsafe { sys::ibv_get_device_index(self.raw.as_ptr()) }).ok()
    }

    /// Where the kernel has its files; empty of one that is not the kernel's.
    pub(crate) fn path(&self) -> PathBuf {
        // SAFETY: the device is valid (kept by the list); the path is a NUL-terminated array in it.
        let path = unsafe { CStr::from_ptr((&raw const (*self.raw.as_ptr()).ibdev_path).cast()) };
        PathBuf::from(OsStr::from_bytes(path.to_bytes()))
    }

    /// The kind of node as the raw value of `ibv_node_type`.
    pub(crate) fn node_type(&self) -> sys::ibv_node_type {
        // SAFETY: the device is valid (kept by the list), so the field can be read.
        unsafe { (*self.raw.as_ptr()).node_type }
    }

    /// The transport as the raw value of `ibv_transport_type`.
    pub(crate) fn transport(&self) -> sys::ibv_transport_type {
        // SAFETY: the device is valid (kept by the list), so the field can be read.
        unsafe { (*self.raw.as_ptr()).transport_type }
    }
}

/// A device's name.
///
/// # Safety
///
/// The device is valid: kept by a list, or by an open context.
pub(super) unsafe fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: the device is valid, the caller's promise; the name is a NUL-terminated array in it.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// The name of a network interface of this process's network namespace.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for the longest name and its end.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the call wrote a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}
