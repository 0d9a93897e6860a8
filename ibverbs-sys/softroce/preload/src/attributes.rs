//! Replacements for functions of the C library that read extended attributes of files, as `ls -l`
//! does. The files of the device have none.

use std::ffi::c_void;

use libc::{AT_FDCWD, c_char, size_t, ssize_t};

use crate::next::next;
use crate::question::answer;

/// Reads an extended attribute of a file (`getxattr(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(getxattr(path, name, value, size))
        })
    }
}

/// Reads an extended attribute of a file or of a symbolic link (`lgetxattr(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lgetxattr(
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(lgetxattr(path, name, value, size))
        })
    }
}

/// Lists the extended attributes of a file (`listxattr(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn listxattr(
    path: *const c_char,
    list: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(listxattr(path, list, size))) }
}

/// Lists the extended attributes of a file or of a symbolic link (`llistxattr(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn llistxattr(
    path: *const c_char,
    list: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(llistxattr(path, list, size))) }
}
