//! Replacements for functions of the C library that return the status of files, and whether a file
//! may be used.

use std::ffi::c_void;

use libc::{AT_FDCWD, c_char, c_int, c_uint};

use crate::next::next;
use crate::question::answer;

/// Returns the status of a file (`stat(2)`). A path of softroce's device is replaced, see
/// [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stat(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(stat(path, status))) }
}

/// Returns the status of a file; the name of [`stat`] for programs with offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stat64(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(stat64(path, status))) }
}

/// Returns the status of a file; the name of [`stat`] in programs for C libraries before glibc
/// 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __xstat(
    version: c_int,
    path: *const c_char,
    status: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(__xstat(version, path, status))) }
}

/// Returns the status of a file; the name of [`stat64`] in programs for C libraries before glibc
/// 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __xstat64(
    version: c_int,
    path: *const c_char,
    status: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(__xstat64(version, path, status))
        })
    }
}

/// Returns the status of a file or of a symbolic link (`lstat(2)`). A path of softroce's device is
/// replaced, see [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lstat(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(lstat(path, status))) }
}

/// Returns the status of a file or of a symbolic link; the name of [`lstat`] for programs with
/// offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lstat64(path: *const c_char, status: *mut c_void) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(lstat64(path, status))) }
}

/// Returns the status of a file or of a symbolic link; the name of [`lstat`] in programs for C
/// libraries before glibc 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __lxstat(
    version: c_int,
    path: *const c_char,
    status: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(__lxstat(version, path, status))
        })
    }
}

/// Returns the status of a file or of a symbolic link; the name of [`lstat64`] in programs for C
/// libraries before glibc 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __lxstat64(
    version: c_int,
    path: *const c_char,
    status: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(__lxstat64(version, path, status))
        })
    }
}

/// Returns the status of a file relative to a directory (`fstatat(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstatat(
    dirfd: c_int,
    path: *const c_char,
    status: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(fstatat(dirfd, path, status, flags))
        })
    }
}

/// Returns the status of a file relative to a directory; the name of [`fstatat`] for programs with
/// offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fstatat64(
    dirfd: c_int,
    path: *const c_char,
    status: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(fstatat64(dirfd, path, status, flags))
        })
    }
}

/// Returns the status of a file relative to a directory; the name of [`fstatat`] in programs for C
/// libraries before glibc 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __fxstatat(
    version: c_int,
    dirfd: c_int,
    path: *const c_char,
    status: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(__fxstatat(version, dirfd, path, status, flags))
        })
    }
}

/// Returns the status of a file relative to a directory; the name of [`fstatat64`] in programs for
/// C libraries before glibc 2.33.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __fxstatat64(
    version: c_int,
    dirfd: c_int,
    path: *const c_char,
    status: *mut c_void,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(__fxstatat64(version, dirfd, path, status, flags))
        })
    }
}

/// Returns the extended status of a file (`statx(2)`). A path of softroce's device is replaced, see
/// [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(statx(dirfd, path, flags, mask, status))
        })
    }
}

/// Returns whether the process may use a file (`access(2)`). A path of softroce's device is
/// replaced, see [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(access(path, mode))) }
}

/// Returns whether the process may use a file that is named relative to a directory
/// (`faccessat(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn faccessat(
    dirfd: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(faccessat(dirfd, path, mode, flags))
        })
    }
}

/// Returns whether the effective user of the process may use a file (`euidaccess(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(euidaccess(path, mode))) }
}

/// Returns whether the effective user of the process may use a file; another name of
/// [`euidaccess`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn eaccess(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(eaccess(path, mode))) }
}
