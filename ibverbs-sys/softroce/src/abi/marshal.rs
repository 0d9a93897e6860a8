//! Functions of the public ABI that use no object: conversions of kernel structures, `fork`
//! support, and reading of sysfs. They call the real library, and do nothing if there is none.

use std::ffi::c_void;

use ibverbs_sys::{ibv_ah_attr, ibv_qp_attr};
use libc::{c_char, c_int, size_t};

use super::real::call;

/// Converts an address vector from the kernel's format, by the real library. Does nothing if there
/// is no real library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *mut c_void,
) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_ah_attr_from_kern(dst, src)) }
}

/// Converts queue pair attributes from the kernel's format, by the real library. Does nothing if
/// there is no real library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *mut c_void,
) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_qp_attr_from_kern(dst, src)) }
}

/// Converts a path record from the kernel's format, by the real library. Does nothing if there is
/// no real library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_path_rec_from_kern(dst, src)) }
}

/// Converts a path record to the kernel's format, by the real library. Does nothing if there is no
/// real library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_path_rec_to_kern(dst, src)) }
}

/// Excludes pages to which a real device may write from the memory that a child of `fork` inherits
/// (`ibv_dontfork_range`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dontfork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_dontfork_range(base, size) else 0) }
}

/// Reverses [`ibv_dontfork_range`]: children of `fork` inherit the pages again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dofork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_dofork_range(base, size) else 0) }
}

/// Returns the path at which sysfs is mounted, as the real library reports it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    // SAFETY: the function takes no arguments.
    unsafe { call!(ibv_get_sysfs_path() else c"/sys".as_ptr()) }
}

/// Reads a file of sysfs. The softroce device has no files there.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_read_sysfs_file(directory, file, buffer, size) else -1) }
}
