use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

use super::set_errno;
use crate::context::Refusal;

/// Calls `make`, which creates a C object, and returns the resulting pointer. After an error, sets
/// errno and returns null, as verbs that create objects do.
pub(super) fn pointer<T>(make: impl FnOnce() -> Result<*mut T, Refusal>) -> *mut T {
    make().unwrap_or_else(|refusal| {
        set_errno(refusal.errno());
        ptr::null_mut()
    })
}

/// Calls `act`, the body of a verb that returns an error number, and returns 0. After an error,
/// sets errno to the error number and returns the same number.
pub(super) fn status(act: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    match act() {
        Ok(()) => 0,
        Err(refusal) => {
            set_errno(refusal.errno());
            refusal.errno()
        }
    }
}

/// Calls `fetch`, which waits for an event, and returns 0. After an error, sets errno and returns
/// -1.
pub(super) fn fetched(fetch: impl FnOnce() -> std::io::Result<()>) -> c_int {
    match fetch() {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// Returns a number for the `handle` field of a new C object such as `ibv_mr`. Each call returns a
/// different number. The kernel assigns these numbers for devices with a kernel driver, but
/// softroce has no kernel driver.
pub(super) fn handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Moves `object` to the heap. Returns a pointer to the C structure that is the first field of the
/// object.
pub(super) fn into_c_object<T, C>(object: T) -> *mut C {
    // Every type that is passed here is `repr(C)`, and its first field is the C structure.
    Box::into_raw(Box::new(object)).cast()
}
