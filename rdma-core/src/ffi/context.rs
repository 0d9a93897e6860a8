//! An open device.

use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use ibverbs_sys as sys;

use super::device::{DeviceHandle, device_list};
use super::lease_registry::Leases;
use crate::context::Context;
use crate::error::{Errno, Error, Result};
use crate::memory::WindowType;

/// Owner of an `ibv_context`.
pub(crate) struct ContextHandle {
    raw: NonNull<sys::ibv_context>,
    device: DeviceHandle,
    name: String,
    /// What the device can do, which does not change while it is open.
    attributes: OnceLock<sys::ibv_device_attr>,
    leases: Leases,
    /// `true` if windows of type 1, and of type 2, keep to their bounds; empty until that was tried.
    window_bounds: [OnceLock<bool>; 2],
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
            attributes: OnceLock::new(),
            leases: Leases::default(),
            window_bounds: Default::default(),
        })
    }

    /// Takes over a context that somebody else opened.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] if its device is not in the list any more: the context stays the
    /// caller's.
    ///
    /// # Safety
    ///
    /// The context is open, and nobody else closes it.
    unsafe fn adopt(raw: NonNull<sys::ibv_context>) -> Result<Self> {
        // SAFETY: the context is open, the caller's promise; the field never changes.
        let device = unsafe { (*raw.as_ptr()).device };
        // The context keeps the device valid only as long as it is open. A list keeps it longer,
        // and has the same device as long as that is there.
        let devices = device_list()?;
        let Some(device) = devices.iter().find(|known| known.as_raw() == device) else {
            // SAFETY: the device of an open context is valid.
            let name = unsafe { super::device::name_of(device) };
            return Err(Error::UnknownDevice {
                name,
                available: devices.iter().map(DeviceHandle::name).collect(),
            });
        };
        Ok(Self {
            raw,
            device: device.clone(),
            name: device.name(),
            attributes: OnceLock::new(),
            leases: Leases::default(),
            window_bounds: Default::default(),
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.device
    }

    /// The leases of memory by windows of its protection domains.
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The place for whether windows of this type keep to their bounds.
    pub(crate) fn window_bounds(&self, kind: WindowType) -> &OnceLock<bool> {
        match kind {
            WindowType::One => &self.window_bounds[0],
            WindowType::Two => &self.window_bounds[1],
        }
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

    pub(crate) fn async_borrowed_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open until the context is closed, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }

    /// How many completion vectors there are.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field is set at opening and never changes.
        let count = unsafe { (*self.raw.as_ptr()).num_comp_vectors };
        u32::try_from(count).unwrap_or(0)
    }

    /// Asks the device once: a queue pair and its diagnosis look at this several times.
    pub(crate) fn query_device(&self) -> Result<sys::ibv_device_attr> {
        if let Some(known) = self.attributes.get() {
            return Ok(*known);
        }
        let mut attributes = sys::ibv_device_attr::default();
        // SAFETY: the context is open and `attributes` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_device(self.raw.as_ptr(), &mut attributes) };
        self.checked("ibv_query_device", errno)?;
        Ok(*self.attributes.get_or_init(|| attributes))
    }

    pub(crate) fn query_device_ex(&self) -> Result<sys::ibv_device_attr_ex> {
        let mut attributes = sys::ibv_device_attr_ex::default();
        // SAFETY: the context is open and `attributes` is a valid place for the answer; no input
        // asks for what is usual.
        let errno =
            unsafe { sys::ibv_query_device_ex(self.raw.as_ptr(), ptr::null(), &mut attributes) };
        self.checked("ibv_query_device_ex", errno)?;
        Ok(attributes)
    }

    /// The ticks that the device's clock shows.
    pub(crate) fn query_clock(&self) -> Result<u64> {
        let mut values = sys::ibv_values_ex {
            comp_mask: sys::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
            ..Default::default()
        };
        // SAFETY: the context is open and `values` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_rt_values_ex(self.raw.as_ptr(), &mut values) };
        self.checked("ibv_query_rt_values_ex", errno)?;
        // Drivers put the whole count of ticks into the nanoseconds.
        let (high, low) = (values.raw_clock.tv_sec, values.raw_clock.tv_nsec);
        Ok((high.cast_unsigned())
            .wrapping_mul(1_000_000_000)
            .wrapping_add(low.cast_unsigned()))
    }

    /// An entry of a port's P_Key table, in host byte order.
    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut key = 0;
        // SAFETY: the context is open and `key` is a valid place for the answer.
        let failed =
            unsafe { sys::ibv_query_pkey(self.raw.as_ptr(), port, index.into(), &mut key) };
        if failed != 0 {
            let object = format!("device {} port {port} P_Key index {index}", self.name);
            return Err(Error::verb("ibv_query_pkey", object, positive(failed)));
        }
        Ok(u16::from_be(key))
    }

    /// An entry of a port's GID table.
    pub(crate) fn query_gid(&self, port: u8, index: u32) -> Result<sys::ibv_gid_entry> {
        let mut entry = sys::ibv_gid_entry::default();
        // SAFETY: the context is open and `entry` is a valid place for the answer.
        let errno =
            unsafe { sys::ibv_query_gid_ex(self.raw.as_ptr(), port.into(), index, &mut entry, 0) };
        if errno != 0 {
            let object = format!("device {} port {port} GID index {index}", self.name);
            return Err(Error::verb("ibv_query_gid_ex", object, positive(errno)));
        }
        Ok(entry)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr> {
        let mut attributes = sys::ibv_port_attr::default();
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
        let mut entries = vec![sys::ibv_gid_entry::default(); limit];
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

impl Context {
    /// Takes over a context that somebody else opened, for example a vendor's extension or
    /// `ibv_import_device`: it is closed when the last handle of it and of everything made from it
    /// is gone.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] if its device is not there any more, and the verb's of the device
    /// list. The context is the caller's as before, then.
    ///
    /// # Safety
    ///
    /// The context is open, and nobody else closes it or uses it, or anything made from it, after
    /// this has closed it. [`Self::async_events`] looks at the objects that events are about: every
    /// object whose events come to this context was made in this process, which is not so where
    /// several processes share the device's file.
    #[doc(alias = "ibv_open_device")]
    #[doc(alias = "ibv_import_device")]
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_context>) -> Result<Self> {
        // SAFETY: the caller's promise.
        let handle = unsafe { ContextHandle::adopt(raw) }?;
        Ok(Self::from_handle(handle))
    }
}
