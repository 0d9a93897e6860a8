use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

use super::set_errno;
use crate::context::Refusal;

/// What a verb that makes an object returns: the object, or null with errno set.
pub(super) fn pointer<T>(make: impl FnOnce() -> Result<*mut T, Refusal>) -> *mut T {
    make().unwrap_or_else(|refusal| {
        set_errno(refusal.errno());
        ptr::null_mut()
    })
}

/// What a verb that does something returns: 0, or the errno, which is set too.
pub(super) fn status(act: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    match act() {
        Ok(()) => 0,
        Err(refusal) => {
            set_errno(refusal.errno());
            refusal.errno()
        }
    }
}

/// What a verb that fetches something returns: 0, or -1 with errno set.
pub(super) fn fetched(fetch: impl FnOnce() -> std::io::Result<()>) -> c_int {
    match fetch() {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// A number for an object, in the place of the kernel's handle.
pub(super) fn handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Moves an object to where C finds it.
pub(super) fn hand_out<T, C>(object: T) -> *mut C {
    // The C struct is the first field of every object that is handed out.
    Box::into_raw(Box::new(object)).cast()
}
