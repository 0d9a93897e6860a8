//! An open device.

use std::fmt;
use std::mem;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use ibverbs_sys as sys;

use super::device::DeviceHandle;
use crate::error::{Errno, Error, Result};

/// Owner of an `ibv_context`.
pub(crate) struct ContextHandle {
    raw: NonNull<sys::ibv_context>,
    device: DeviceHandle,
    name: String,
}

// SAFETY: verbs are thread-safe on a context (man page of ibv_open_device and the library's
// documentation: "the library is fully thread-safe").
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

impl fmt::Debug for ContextHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContextHandle").field(&self.name).finish()
    }
}

impl ContextHandle {
    pub(crate) fn open(device: &DeviceHandle) -> Result<Self> {
        let name = device.name();
        // SAFETY: the device is valid for as long as its handle.
        let raw = unsafe { sys::ibv_open_device(device.as_raw()) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb(
                "ibv_open_device",
                format!("device {name}"),
                errno,
            ));
        };
        Ok(Self {
            raw,
            device: device.clone(),
            name,
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.device
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How errors name this object.
    pub(crate) fn describe(&self) -> String {
        format!("device {}", self.name)
    }

    /// The file descriptor that the device's asynchronous events arrive on.
    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open; the field is set at opening and never changes.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    pub(crate) fn query_device(&self) -> Result<sys::ibv_device_attr> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and `attributes` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_device(self.raw.as_ptr(), &mut attributes) };
        self.checked("ibv_query_device", errno)?;
        Ok(attributes)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open and `attributes` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_port(self.raw.as_ptr(), port, &mut attributes) };
        if errno != 0 {
            let object = format!("device {} port {port}", self.name);
            return Err(Error::verb("ibv_query_port", object, positive(errno)));
        }
        Ok(attributes)
    }

    /// All valid entries of all ports' GID tables; `limit` bounds their number.
    pub(crate) fn query_gid_table(&self, limit: usize) -> Result<Vec<sys::ibv_gid_entry>> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut entries: Vec<sys::ibv_gid_entry> = vec![unsafe { mem::zeroed() }; limit];
        // SAFETY: the context is open and `entries` has room for `limit` entries.
        let count = unsafe {
            sys::ibv_query_gid_table(self.raw.as_ptr(), entries.as_mut_ptr(), limit as _, 0)
        };
        let Ok(count) = usize::try_from(count) else {
            let errno = Errno(i32::try_from(-(count as i64)).unwrap_or(libc::EIO));
            return Err(Error::verb("ibv_query_gid_table", self.describe(), errno));
        };
        entries.truncate(count);
        Ok(entries)
    }

    fn checked(&self, verb: &'static str, errno: i32) -> Result<()> {
        if errno == 0 {
            Ok(())
        } else {
            Err(Error::verb(verb, self.describe(), positive(errno)))
        }
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: the context is open and closed once, here; every object made from it holds an
        // `Arc` of this handle, so none is left.
        if unsafe { sys::ibv_close_device(self.raw.as_ptr()) } != 0 {
            let errno = Errno::last();
            tracing::error!(device = %self.name, %errno, "ibv_close_device failed");
        }
    }
}

/// The error of a verb's return value: the number itself, or -1 with the number in `errno`.
pub(super) fn positive(returned: i32) -> Errno {
    match returned {
        -1 => Errno::last(),
        returned => Errno(returned.abs()),
    }
}

/// Port attributes with every field zero, for tests of what is made of them.
#[cfg(test)]
pub(crate) fn empty_port() -> sys::ibv_port_attr {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    unsafe { mem::zeroed() }
}
