//! An open device: the owner of its `ibv_context`, and the queries of device, ports and tables.

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

/// The owner of an open device (`ibv_context`). Dropping this value closes the device.
pub(crate) struct ContextHandle {
    raw: NonNull<sys::ibv_context>,
    device: DeviceHandle,
    name: String,
    /// The attributes of the device, which are constant while it is open. Stored by the first
    /// query.
    attributes: OnceLock<sys::ibv_device_attr>,
    leases: Leases,
    /// Results of the test that the device checks the bounds of memory windows: element 0 for
    /// windows of type 1, element 1 for windows of type 2. Empty until the test has run.
    window_bounds: [OnceLock<bool>; 2],
    /// Result of the test that a memory window of type 2 is usable only through the queue pair that
    /// has bound the window. Empty until the test has run.
    window_owner: OnceLock<bool>,
}

// SAFETY: verbs are thread-safe on a context (man page of ibv_open_device and the library's
// documentation: "the library is fully thread-safe").
unsafe impl Send for ContextHandle {}
// SAFETY: verbs are thread-safe on a context: the library is fully thread-safe.
unsafe impl Sync for ContextHandle {}

impl fmt::Debug for ContextHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContextHandle").field(&self.name).finish()
    }
}

impl ContextHandle {
    pub(crate) fn open(device: &DeviceHandle) -> Result<Self> {
        let name = device.name();
        // SAFETY: the handle of the device keeps it valid.
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
            window_owner: OnceLock::new(),
        })
    }

    /// Takes ownership of a context (open device) that other code opened.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] if the device is no longer in the device list. The context then
    /// stays open and is still owned by the caller.
    ///
    /// # Safety
    ///
    /// The context must be open, and no other code may close it.
    unsafe fn adopt(raw: NonNull<sys::ibv_context>) -> Result<Self> {
        // SAFETY: the caller guarantees that the context is open; the field never changes.
        let device = unsafe { (*raw.as_ptr()).device };
        // The context keeps its device valid only while the context is open. A device list keeps
        // the device longer, and contains the same `ibv_device` while the device is present.
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
            window_owner: OnceLock::new(),
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn device(&self) -> &DeviceHandle {
        &self.device
    }

    /// Returns the registry of all leases (memory that peers access through a memory window) in the
    /// protection domains of this context.
    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Returns the cell that stores whether the device checks the bounds of memory windows of type
    /// `kind`. The cell is empty until a test has determined the value.
    pub(crate) fn window_bounds(&self, kind: WindowType) -> &OnceLock<bool> {
        match kind {
            WindowType::One => &self.window_bounds[0],
            WindowType::Two => &self.window_bounds[1],
        }
    }

    /// Returns the cell that stores a property of memory windows of type 2: whether a window can be
    /// used only through the queue pair that has bound it. The cell is empty until a test has
    /// determined the value.
    pub(crate) fn window_owner(&self) -> &OnceLock<bool> {
        &self.window_owner
    }

    /// Returns the device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description of this context for error messages.
    pub(crate) fn describe(&self) -> String {
        format!("device {}", self.name)
    }

    /// Returns the file descriptor on which asynchronous events of the device arrive.
    pub(crate) fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open; the field is set at opening and never changes.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    pub(crate) fn async_borrowed_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open until the context is closed, after the borrow has
        // ended.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }

    /// Returns the number of completion vectors of the device.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field is set at opening and never changes.
        let count = unsafe { (*self.raw.as_ptr()).num_comp_vectors };
        u32::try_from(count).unwrap_or(0)
    }

    /// Returns the device attributes. Queries the device only once, because creating a queue pair
    /// and diagnosing a failure read the attributes several times.
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
        // SAFETY: the context is open and `attributes` is a valid place for the answer; a null
        // input selects the default query.
        let errno =
            unsafe { sys::ibv_query_device_ex(self.raw.as_ptr(), ptr::null(), &mut attributes) };
        self.checked("ibv_query_device_ex", errno)?;
        Ok(attributes)
    }

    /// Returns the current count of the device's clock, in ticks.
    pub(crate) fn query_clock(&self) -> Result<u64> {
        let mut values = sys::ibv_values_ex {
            comp_mask: sys::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0,
            ..Default::default()
        };
        // SAFETY: the context is open and `values` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_rt_values_ex(self.raw.as_ptr(), &mut values) };
        self.checked("ibv_query_rt_values_ex", errno)?;
        // Drivers store the whole number of ticks in the nanoseconds field.
        let (high, low) = (values.raw_clock.tv_sec, values.raw_clock.tv_nsec);
        Ok((high.cast_unsigned())
            .wrapping_mul(1_000_000_000)
            .wrapping_add(low.cast_unsigned()))
    }

    /// Returns the partition key (P_Key) at `index` in the P_Key table of `port`, in host byte
    /// order.
    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut key = 0;
        // SAFETY: the context is open and `key` is a valid place for the answer.
        let failed =
            unsafe { sys::ibv_query_pkey(self.raw.as_ptr(), port, index.into(), &mut key) };
        if failed != 0 {
            let errno = positive(failed);
            let object = format!("device {} port {port} P_Key index {index}", self.name);
            return Err(Error::verb("ibv_query_pkey", object, errno));
        }
        Ok(u16::from_be(key))
    }

    /// Returns the entry at `index` in the GID table of `port`.
    pub(crate) fn query_gid(&self, port: u8, index: u32) -> Result<sys::ibv_gid_entry> {
        let mut entry = sys::ibv_gid_entry::default();
        // SAFETY: the context is open and `entry` is a valid place for the answer.
        let errno =
            unsafe { sys::ibv_query_gid_ex(self.raw.as_ptr(), port.into(), index, &mut entry, 0) };
        if errno != 0 {
            let errno = positive(errno);
            let object = format!("device {} port {port} GID index {index}", self.name);
            return Err(Error::verb("ibv_query_gid_ex", object, errno));
        }
        Ok(entry)
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<sys::ibv_port_attr> {
        let mut attributes = sys::ibv_port_attr::default();
        // SAFETY: the context is open and `attributes` is a valid place for the answer.
        let errno = unsafe { sys::ibv_query_port(self.raw.as_ptr(), port, &mut attributes) };
        if errno != 0 {
            let errno = positive(errno);
            let object = format!("device {} port {port}", self.name);
            return Err(Error::verb("ibv_query_port", object, errno));
        }
        Ok(attributes)
    }

    /// Returns at most `limit` valid entries of the GID tables of all ports.
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
            let errno = positive(errno);
            Err(Error::verb(verb, self.describe(), errno))
        }
    }
}

impl Drop for ContextHandle {
    fn drop(&mut self) {
        // SAFETY: the context is open and closed once, here; every object created from it holds an
        // `Arc` of this handle, so no such object is left.
        if unsafe { sys::ibv_close_device(self.raw.as_ptr()) } != 0 {
            let errno = Errno::last();
            tracing::error!(device = %self.name, %errno, "ibv_close_device failed");
        }
    }
}

/// Returns the error number of a failed verb. `returned` is the return value of the verb: the error
/// number, the negative error number, or -1 with the error number in `errno`.
pub(super) fn positive(returned: i32) -> Errno {
    match returned {
        -1 => Errno::last(),
        returned => Errno(returned.abs()),
    }
}

impl Context {
    /// Takes ownership of a context that other code opened, for example a vendor's extension or
    /// `ibv_import_device`. The context is closed when the last handle of the context, and the last
    /// handle of every object created from the context, has been dropped.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownDevice`] if the device is no longer present, or the error of
    /// `ibv_get_device_list`. In both cases the caller still owns the context.
    ///
    /// # Safety
    ///
    /// The context must be open. No other code may close it, and no code may use it, or any object
    /// created from it, after this crate has closed it. Every object whose asynchronous events
    /// arrive on this context must have been created in this process, because
    /// [`Self::async_events`] dereferences the objects that events name. A context that several
    /// processes share by the device's file violates this requirement.
    #[doc(alias = "ibv_open_device")]
    #[doc(alias = "ibv_import_device")]
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_context>) -> Result<Self> {
        // SAFETY: the caller guarantees that the context is open and that no other code closes it.
        let handle = unsafe { ContextHandle::adopt(raw) }?;
        Ok(Self::from_handle(handle))
    }
}
