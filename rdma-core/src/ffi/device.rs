//! The list of RDMA devices of this system, and the attributes of a device that is not open.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;

use crate::error::{Errno, Error, Result};

/// The array that `ibv_get_device_list` returned. The devices in the array stay valid until the
/// array is freed.
struct DeviceArray {
    first: NonNull<*mut sys::ibv_device>,
}

// SAFETY: nothing writes to the array after libibverbs has returned it, and any thread may free it
// (libibverbs counts references atomically).
unsafe impl Send for DeviceArray {}
// SAFETY: shared access only reads the array, which nothing writes to.
unsafe impl Sync for DeviceArray {}

impl Drop for DeviceArray {
    fn drop(&mut self) {
        // SAFETY: `first` came from `ibv_get_device_list` and is freed once, here.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// A device in the device list of libibverbs (`ibv_device`). This value shares ownership of the
/// list, which keeps the device valid.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    raw: NonNull<sys::ibv_device>,
    _list: Arc<DeviceArray>,
}

// SAFETY: an `ibv_device` is immutable and its accessors are thread-safe.
unsafe impl Send for DeviceHandle {}
// SAFETY: an `ibv_device` is immutable and its accessors are thread-safe.
unsafe impl Sync for DeviceHandle {}

impl fmt::Debug for DeviceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceHandle").field(&self.name()).finish()
    }
}

/// Returns every device that libibverbs finds, in the order of libibverbs.
pub(crate) fn device_list() -> Result<Vec<DeviceHandle>> {
    #[cfg(feature = "softroce")]
    softroce::install();
    let mut count = 0;
    // SAFETY: `count` is a valid place for the number of devices.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    let Some(first) = NonNull::new(list) else {
        let errno = Errno::last();
        // On a kernel without RDMA support the result is an empty list and not an error.
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
        // SAFETY: the list keeps the device valid.
        unsafe { name_of(self.raw.as_ptr()) }
    }

    /// Returns the node GUID in host byte order.
    pub(crate) fn guid(&self) -> u64 {
        // SAFETY: the list keeps the device valid.
        u64::from_be(unsafe { sys::ibv_get_device_guid(self.raw.as_ptr()) })
    }

    /// Returns the index that the kernel has assigned to the device, or `None` if the kernel has
    /// assigned no index.
    pub(crate) fn index(&self) -> Option<u32> {
        // SAFETY: the list keeps the device valid.
        u32::try_from(unsafe { sys::ibv_get_device_index(self.raw.as_ptr()) }).ok()
    }

    /// Returns the sysfs directory of the device. The path is empty for a device without a kernel
    /// driver.
    pub(crate) fn path(&self) -> PathBuf {
        // SAFETY: the list keeps the device valid; the path is a NUL-terminated array in it.
        let path = unsafe { CStr::from_ptr((&raw const (*self.raw.as_ptr()).ibdev_path).cast()) };
        PathBuf::from(OsStr::from_bytes(path.to_bytes()))
    }

    /// Returns the node type of the device (its role in the network), as the C enumeration.
    pub(crate) fn node_type(&self) -> sys::ibv_node_type {
        // SAFETY: the list keeps the device valid, so the field can be read.
        unsafe { (*self.raw.as_ptr()).node_type }
    }

    /// Returns the transport of the device, as the C enumeration.
    pub(crate) fn transport(&self) -> sys::ibv_transport_type {
        // SAFETY: the list keeps the device valid, so the field can be read.
        unsafe { (*self.raw.as_ptr()).transport_type }
    }
}

/// Returns the name of a device.
///
/// # Safety
///
/// The device must be valid: a device list or an open context must keep it.
pub(super) unsafe fn name_of(device: *mut sys::ibv_device) -> String {
    // SAFETY: the caller guarantees a valid device; the name is a NUL-terminated array in it.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// Returns the name of the network interface with this index in the process's network namespace, or
/// `None` if no such interface exists.
pub(crate) fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: `name` has room for the longest interface name and its NUL.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the call wrote a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}
