use std::cell::UnsafeCell;
use std::mem;
use std::ptr;
use std::slice;
use std::sync::Once;

use ibverbs_sys::{_ibv_device_ops, ibv_context, ibv_device, ibv_node_type, ibv_transport_type};
use libc::{c_char, c_int};

use super::guard::{catch, fail};
use super::real::{Inside, call};
use crate::config::Config;
use crate::fault::{Errno, Verb};
use crate::nic;
use crate::spin::Mutex;

/// Returns whether the context is one of this device; contexts of all other devices belong to the real library.
///
/// # Safety
/// `context` must be a context of some verbs library.
pub(crate) unsafe fn is_ours(context: *const ibv_context) -> bool {
    // SAFETY: the caller's promise; the field is never written after the context was made.
    unsafe { (*context).device == address() }
}

/// Returns the device as C knows it. Objects with this address belong to this device.
pub(crate) fn address() -> *mut ibv_device {
    DEVICE.0.get().cast()
}

/// Returns the device of contexts that were open when this process was forked. The name is the same, and a program that
/// opens it opens the process's own device.
pub(crate) fn of_parent() -> *mut ibv_device {
    OF_PARENT.0.get().cast()
}

/// Returns whether `device` is one of this library's.
pub(crate) fn is_own(device: *const ibv_device) -> bool {
    ptr::eq(device, address()) || ptr::eq(device, of_parent())
}

/// Held while the real library lists its devices, which it does under a lock of its own that a child of `fork` could
/// not release.
static LISTING: Mutex<()> = Mutex::new(());

/// Waits until no thread lists devices, and keeps others from it: before a `fork`.
pub(super) fn before_fork() {
    mem::forget(LISTING.lock());
}

/// Ends what [`before_fork`] began, in the parent and in the child.
///
/// # Safety
/// The calling thread must have called [`before_fork`], in this process or in the one that it was forked from.
pub(super) unsafe fn after_fork() {
    // SAFETY: the caller's promise: the lock is held, and its guard was forgotten.
    unsafe { LISTING.force_unlock() };
}

/// `ibv_get_device_list(3)`: the real devices, then ours.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    if Inside::is() {
        // SAFETY: the real library's own argument, handed back to it.
        return unsafe { call!(ibv_get_device_list(num_devices)) };
    }
    catch(fail, || {
        if let Err(Errno(errno)) = nic::faults().check(Verb::GetDeviceList) {
            return fail(errno);
        }
        let mut count = 0;
        let count_place = &raw mut count;
        let real = {
            let _listing = LISTING.lock();
            // SAFETY: there is room for the count.
            unsafe { call!(ibv_get_device_list(count_place) else ptr::null_mut()) }
        };
        let real_devices = match usize::try_from(count) {
            Ok(count) if !real.is_null() => {
                // SAFETY: the list has that many devices until it is freed.
                unsafe { slice::from_raw_parts(real, count) }
            }
            _ => &[],
        };
        name_device();
        // In front of the list stands what it was made of, and behind it a null pointer.
        let length = real_devices.len() + 3;
        // SAFETY: zeroes are null pointers.
        let memory: *mut *mut ibv_device =
            unsafe { libc::calloc(length, size_of::<*mut ibv_device>()).cast() };
        if memory.is_null() {
            if !real.is_null() {
                // SAFETY: it is the real library's list, and nobody uses it.
                unsafe { call!(ibv_free_device_list(real)) };
            }
            return fail(libc::ENOMEM);
        }
        // SAFETY: `memory` was just made, with that many places.
        let list = unsafe { slice::from_raw_parts_mut(memory, length) };
        list[0] = real.cast();
        list[1..][..real_devices.len()].copy_from_slice(real_devices);
        list[length - 2] = address();
        if !num_devices.is_null() {
            // SAFETY: the caller has room for the count.
            unsafe { num_devices.write(count.max(0) + 1) };
        }
        list[1..].as_mut_ptr()
    })
}

/// `ibv_free_device_list(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if Inside::is() {
        // SAFETY: the real library's own list, handed back to it.
        return unsafe { call!(ibv_free_device_list(list)) };
    }
    if list.is_null() {
        return;
    }
    // SAFETY: the caller's list was made above, so there is a place in front of it.
    unsafe {
        let memory = list.sub(1);
        let real: *mut *mut ibv_device = (*memory).cast();
        if !real.is_null() {
            call!(ibv_free_device_list(real));
        }
        libc::free(memory.cast());
    }
}

/// `ibv_get_device_name(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if !is_own(device) {
        // SAFETY: the caller gives a device of the real library.
        return unsafe { call!(ibv_get_device_name(device)) };
    }
    // SAFETY: the device is static.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    if !is_own(device) {
        // SAFETY: the caller gives a device of the real library.
        return unsafe { call!(ibv_get_device_guid(device)) };
    }
    catch(|_| 0, || nic::guid().to_be())
}

/// `ibv_get_device_index(3)`: the kernel has given ours none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    if !is_own(device) {
        // SAFETY: the caller gives a device of the real library.
        return unsafe { call!(ibv_get_device_index(device) else -1) };
    }
    -1
}

/// Programs and drivers look past the public part: `is_mlx5_dev` reads the operations that a
/// driver's device has there. Zeroes tell them that it is not theirs.
#[repr(C)]
struct Device {
    public: ibv_device,
    private: [u8; 1024],
}

#[repr(transparent)]
struct Shared(UnsafeCell<Device>);

// SAFETY: the names are written once, before any caller gets the device; nothing is written to it afterwards. The cell
// is there because C has mutable pointers to the device.
unsafe impl Sync for Shared {}

static DEVICE: Shared = Shared(UnsafeCell::new(NAMELESS));
static OF_PARENT: Shared = Shared(UnsafeCell::new(NAMELESS));

const NAMELESS: Device = Device {
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

const _: () = assert!(mem::offset_of!(Device, private) == size_of::<ibv_device>());

/// Gives the device the name that the environment says.
fn name_device() {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        // A variable that is wrong is told when the device is opened.
        let default = Config::default();
        let name = Config::of_process().unwrap_or(&default).device.as_bytes();
        for device in [&DEVICE, &OF_PARENT] {
            // SAFETY: nothing else writes to the device, and readers get the device after this.
            let device = unsafe { &mut (*device.0.get()).public };
            // The last byte stays 0, also where the name is too long.
            let length = name.len().min(device.name.len() - 1);
            for (place, byte) in name[..length].iter().enumerate() {
                device.name[place] = byte.cast_signed();
                device.dev_name[place] = byte.cast_signed();
            }
        }
    });
}
