//! Functions of the public ABI that know no object: they convert the kernel's structs, mark memory
//! for a fork, and read sysfs. The real library's are used, and nothing happens where there is none.

use std::ffi::c_void;

use ibverbs_sys::{ibv_ah_attr, ibv_qp_attr};
use libc::{c_char, c_int, size_t};

use super::real::call;

/// Converts the kernel's address vector.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *mut c_void,
) {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_copy_ah_attr_from_kern(dst, src)) }
}

/// Converts the kernel's queue pair attributes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *mut c_void,
) {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_copy_qp_attr_from_kern(dst, src)) }
}

/// Converts the kernel's path record.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_copy_path_rec_from_kern(dst, src)) }
}

/// Converts a path record to the kernel's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_copy_path_rec_to_kern(dst, src)) }
}

/// Keeps a child of `fork` from pages that a real device may write to.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dontfork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_dontfork_range(base, size) else 0) }
}

/// Takes back [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dofork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_dofork_range(base, size) else 0) }
}

/// Where sysfs is.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    // SAFETY: there are no arguments.
    unsafe { call!(ibv_get_sysfs_path() else c"/sys".as_ptr()) }
}

/// Reads a file of sysfs. Of our device there is none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    // SAFETY: the caller's arguments, handed on.
    unsafe { call!(ibv_read_sysfs_file(directory, file, buffer, size) else -1) }
}
