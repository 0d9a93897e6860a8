use std::cell::UnsafeCell;
use std::mem;
use std::ptr;
use std::slice;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{_ibv_device_ops, ibv_context, ibv_device, ibv_node_type, ibv_transport_type};
use libc::{c_char, c_int};

use super::guard::{catch_panic, fail};
use super::real::{InRealLibrary, call};
use crate::config::Config;
use crate::fault::{Errno, Verb};
use crate::nic;
use crate::spin::Mutex;

/// Returns whether a context belongs to this device. Other contexts belong to the real libibverbs.
///
/// # Safety
/// `context` must be a context of this or another verbs library.
pub(crate) unsafe fn is_ours(context: *const ibv_context) -> bool {
    // SAFETY: the caller guarantees a valid context, whose field `device` is not written after the
    // context was opened, except in a child of `fork` before it runs.
    unsafe { (*context).device == address() }
}

/// Returns the address of this device's C object. The C objects of contexts and the list of devices
/// contain this address.
pub(crate) fn address() -> *mut ibv_device {
    DEVICE.0.get().cast()
}

/// Returns the `ibv_device` of the parent process, in a child of `fork`. Contexts that the child
/// has inherited refer to this `ibv_device`. If the child opens the returned `ibv_device`, the
/// child gets its own device, which has the same name.
pub(crate) fn device_of_parent() -> *mut ibv_device {
    PARENT_DEVICE.0.get().cast()
}

/// Returns whether `device` is a device object of this library: the object of this process's device
/// or, in a child of `fork`, the object of the parent's device.
pub(crate) fn is_own(device: *const ibv_device) -> bool {
    ptr::eq(device, address()) || ptr::eq(device, device_of_parent())
}

/// Device lists that [`ibv_get_device_list`] has returned to the program, if they contain devices
/// of the system's libibverbs. The lock is also held while that library lists its devices. A `fork`
/// waits for this lock, so no child is created while the library holds a lock of its own.
static LISTING: Mutex<Vec<DeviceList>> = Mutex::new(Vec::new());

/// A device list that was returned to the program, together with the device list of the system's
/// libibverbs. Both lists contain the devices of that library, so both must be freed together. The
/// lists are stored as addresses.
#[derive(Debug, Clone, Copy)]
struct DeviceList {
    own: usize,
    real: usize,
}

impl DeviceList {
    /// Removes and returns the entry for `list` from [`LISTING`]. `list` is a device list that the
    /// program got from `ibv_get_device_list`. Returns `None` if the list contains no devices of
    /// the system's libibverbs.
    fn take(list: *mut *mut ibv_device) -> Option<Self> {
        let mut lists = LISTING.lock();
        let at = lists.iter().position(|entry| entry.own == list.addr())?;
        Some(lists.swap_remove(at))
    }

    /// Frees the device list of the system's libibverbs (`real`), but not the list that was
    /// returned to the program (`own`).
    fn free_real(self) {
        let real = ptr::with_exposed_provenance_mut(self.real);
        // SAFETY: the list was returned by the real library. The entry of the list was removed by
        // the caller or never added, so nothing frees the list again.
        unsafe { call!(ibv_free_device_list(real)) };
    }
}

/// Waits until no thread lists devices, and locks [`LISTING`]. Must be called before a `fork`.
pub(super) fn before_fork() {
    mem::forget(LISTING.lock());
}

/// Releases the lock of [`before_fork`]. Must be called after a `fork`, in the parent and in the
/// child.
///
/// # Safety
/// The calling thread must have called [`before_fork`], in this process or in the process that it
/// was forked from.
pub(super) unsafe fn after_fork() {
    // SAFETY: the caller guarantees that this thread holds the lock; its guard was forgotten.
    unsafe { LISTING.force_unlock() };
}

/// Returns the list of devices (`ibv_get_device_list(3)`): the devices of the real library, then
/// this device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    if InRealLibrary::is() {
        // SAFETY: the real library made this call for itself, and gets its own argument.
        return unsafe { call!(ibv_get_device_list(num_devices)) };
    }
    catch_panic(fail, || {
        if let Err(Errno(errno)) = nic::faults().check(Verb::GetDeviceList) {
            return fail(errno);
        }
        let mut count = 0;
        let count_place = &raw mut count;
        let real = {
            let _listing = LISTING.lock();
            // SAFETY: `count_place` is valid for writes.
            unsafe { call!(ibv_get_device_list(count_place) else ptr::null_mut()) }
        };
        let real_devices = match usize::try_from(count) {
            Ok(count) if !real.is_null() => {
                // SAFETY: the list has `count` devices, and is not freed before the reference is
                // last used.
                unsafe { slice::from_raw_parts(real, count) }
            }
            _ => &[],
        };
        name_device();
        // The last entry is a null pointer.
        let length = real_devices.len() + 2;
        // SAFETY: the result is checked; zeroes are null pointers.
        let memory: *mut *mut ibv_device =
            unsafe { libc::calloc(length, size_of::<*mut ibv_device>()).cast() };
        if !memory.is_null() {
            // SAFETY: `memory` was allocated above with `length` entries.
            let list = unsafe { slice::from_raw_parts_mut(memory, length) };
            list[..real_devices.len()].copy_from_slice(real_devices);
            list[length - 2] = address();
        }
        // A program that frees a list by `free` leaves the entry behind. This list can have the
        // same address.
        if let Some(left) = DeviceList::take(memory) {
            left.free_real();
        }
        if !real.is_null() {
            let list = DeviceList {
                own: memory.addr(),
                real: real.expose_provenance(),
            };
            if memory.is_null() || real_devices.is_empty() {
                list.free_real();
            } else {
                LISTING.lock().push(list);
            }
        }
        if memory.is_null() {
            return fail(libc::ENOMEM);
        }
        if !num_devices.is_null() {
            // SAFETY: the C API requires `num_devices` to be null or valid for writes.
            unsafe { num_devices.write(count.max(0) + 1) };
        }
        memory
    })
}

/// Frees a list that `ibv_get_device_list` has returned (`ibv_free_device_list(3)`). Contexts that
/// were opened from the list stay open.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if InRealLibrary::is() {
        // SAFETY: the real library made this call for itself, and gets its own list.
        return unsafe { call!(ibv_free_device_list(list)) };
    }
    if let Some(list) = DeviceList::take(list) {
        list.free_real();
    }
    // SAFETY: the C API requires a list of `ibv_get_device_list`, which `calloc` has allocated, or
    // a null pointer.
    unsafe { libc::free(list.cast()) };
}

/// Returns the name of a device (`ibv_get_device_name(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if !is_own(device) {
        // SAFETY: the device is not of this library, so it must be a valid one of the real library.
        return unsafe { call!(ibv_get_device_name(device)) };
    }
    // SAFETY: the device is in a static variable.
    unsafe { (&raw const (*device).name).cast() }
}

/// Returns the GUID of a device in network byte order (`ibv_get_device_guid(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    if !is_own(device) {
        // SAFETY: the device is not of this library, so it must be a valid one of the real library.
        return unsafe { call!(ibv_get_device_guid(device)) };
    }
    catch_panic(|_| 0, || nic::guid().to_be())
}

/// Returns the kernel's index of a device (`ibv_get_device_index(3)`). Returns -1 for the softroce
/// device, which the kernel does not know.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    if !is_own(device) {
        // SAFETY: the device is not of this library, so it must be a valid one of the real library.
        return unsafe { call!(ibv_get_device_index(device) else -1) };
    }
    -1
}

/// The C object of the softroce device: an `ibv_device`, followed by zeroes. Libraries of other
/// drivers read private data behind the `ibv_device`, for example to check whether the device is
/// theirs. These libraries find zeroes, and so reject the softroce device.
#[repr(C)]
struct DeviceObject {
    public: ibv_device,
    private: [u8; 1024],
}

#[repr(transparent)]
struct StaticDevice(UnsafeCell<DeviceObject>);

// SAFETY: the names are written once, before any caller gets the device, and nothing is written
// afterwards. The cell exists because C code has mutable pointers to the device.
unsafe impl Sync for StaticDevice {}

static DEVICE: StaticDevice = StaticDevice(UnsafeCell::new(UNINITIALIZED_DEVICE));
static PARENT_DEVICE: StaticDevice = StaticDevice(UnsafeCell::new(UNINITIALIZED_DEVICE));

/// Initial value of the device's C object. The names in the object are set later ([`name_device`]).
const UNINITIALIZED_DEVICE: DeviceObject = DeviceObject {
    public: ibv_device {
        _ops: _ibv_device_ops {
            _dummy1: None,
            _dummy2: None,
        },
        node_type: ibv_node_type::IBV_NODE_CA,
        transport_type: ibv_transport_type::IBV_TRANSPORT_IB,
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    },
    private: [0; 1024],
};

const _: () = assert!(mem::offset_of!(DeviceObject, private) == size_of::<ibv_device>());

/// Flag that is set if programs can read the files of [`crate::sysfs`] under the paths in
/// `/sys/class`. The `ibv_device` of the softroce device then contains these paths.
static HAS_FILES: AtomicBool = AtomicBool::new(false);

/// Makes the `ibv_device` of the softroce device contain the paths of the files of
/// [`crate::sysfs`]. The `ibv_device` of any other device contains such paths, too. Must be called
/// before the first call of `ibv_get_device_list`, which fixes the paths.
pub(crate) fn show_files() {
    HAS_FILES.store(true, Ordering::Relaxed);
}

/// Sets the names of the `ibv_device` of the softroce device to the configured name. Also sets the
/// paths `dev_path` and `ibdev_path`, which contain the name, if [`show_files`] was called. Only
/// the first call has an effect.
fn name_device() {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        // An invalid configuration is reported when the device is opened.
        let default = Config::default();
        let name = &Config::of_process().unwrap_or(&default).device;
        for device in [&DEVICE, &PARENT_DEVICE] {
            // SAFETY: no other code writes to the device, and readers get the device only after
            // this.
            let device = unsafe { &mut (*device.0.get()).public };
            write_text(&mut device.name, name);
            write_text(&mut device.dev_name, name);
            if HAS_FILES.load(Ordering::Relaxed) {
                let node = format!("/sys/class/infiniband_verbs/{name}");
                let path = format!("/sys/class/infiniband/{name}");
                write_text(&mut device.dev_path, &node);
                write_text(&mut device.ibdev_path, &path);
            }
        }
    });
}

/// Writes `text` to the field `field` of a C structure, which must contain zeroes. Text that is too
/// long is cut off. The last byte stays 0.
fn write_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (place, byte) in field[..room].iter_mut().zip(text.bytes()) {
        *place = byte.cast_signed();
    }
}
