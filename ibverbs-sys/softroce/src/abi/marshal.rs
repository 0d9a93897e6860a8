//! Functions of the public ABI that use no object: conversions of kernel structures, `fork`
//! support, and reading of sysfs. The functions call the real library, and do nothing if there is
//! no real library.

use std::ffi::c_void;

use ibverbs_sys::{ibv_ah_attr, ibv_qp_attr};
use libc::{c_char, c_int, size_t};

use super::real::call;

/// Converts the address vector `src`, which has the format of the kernel, and writes it to `dst` in
/// the format of the verbs API. Calls `ibv_copy_ah_attr_from_kern` of the system's libibverbs, and
/// does nothing if that library is not installed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *mut c_void,
) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_ah_attr_from_kern(dst, src)) }
}

/// Converts the queue pair attributes `src`, which have the format of the kernel, and writes them
/// to `dst` in the format of the verbs API. Calls `ibv_copy_qp_attr_from_kern` of the system's
/// libibverbs, and does nothing if that library is not installed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *mut c_void,
) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_qp_attr_from_kern(dst, src)) }
}

/// Converts the path record `src` (the description of a route between two ports) from the format of
/// the kernel, and writes the result to `dst`. Calls `ibv_copy_path_rec_from_kern` of the system's
/// libibverbs, and does nothing if that library is not installed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_path_rec_from_kern(dst, src)) }
}

/// Converts the path record `src` (the description of a route between two ports) to the format of
/// the kernel, and writes the result to `dst`. Calls `ibv_copy_path_rec_to_kern` of the system's
/// libibverbs, and does nothing if that library is not installed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut c_void, src: *mut c_void) {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_copy_path_rec_to_kern(dst, src)) }
}

/// Calls `ibv_dontfork_range` of the system's libibverbs, which keeps the `size` bytes at `base`
/// out of a child of `fork`. Hardware devices need this call for memory to which they write. The
/// softroce device does not need it. Returns 0 if there is no such library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dontfork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_dontfork_range(base, size) else 0) }
}

/// Calls `ibv_dofork_range` of the system's libibverbs. Afterwards, children of `fork` inherit the
/// `size` bytes at `base` again, which [`ibv_dontfork_range`] has excluded. Returns 0 if there is
/// no such library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dofork_range(base: *mut c_void, size: size_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function.
    unsafe { call!(ibv_dofork_range(base, size) else 0) }
}

/// Returns the path at which sysfs is mounted, as the system's libibverbs reports it. Returns
/// `/sys` if that library is not installed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    // SAFETY: the function takes no arguments.
    unsafe { call!(ibv_get_sysfs_path() else c"/sys".as_ptr()) }
}

/// Reads the file `file` in the directory `directory` of sysfs into `buffer`, which has `size`
/// bytes. Calls `ibv_read_sysfs_file` of the system's libibverbs, and returns -1 if that library is
/// not installed. The softroce device has no files in sysfs.
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
