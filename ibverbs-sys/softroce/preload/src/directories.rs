//! Replacements for functions of the C library that list directories.

use std::ffi::c_void;

use libc::{AT_FDCWD, DIR, c_char, c_int};

use crate::next::next;
use crate::question::answer;

/// Opens a directory (`opendir(3)`). A path of softroce's device is replaced, see
/// [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(opendir(path))) }
}

/// Returns the entries of a directory (`scandir(3)`). A path of softroce's device is replaced, see
/// [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn scandir(
    path: *const c_char,
    entries: *mut c_void,
    filter: *const c_void,
    order: *const c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(scandir(path, entries, filter, order))
        })
    }
}

/// Returns the entries of a directory; the name of [`scandir`] for programs with offsets of 64
/// bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn scandir64(
    path: *const c_char,
    entries: *mut c_void,
    filter: *const c_void,
    order: *const c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(scandir64(path, entries, filter, order))
        })
    }
}

/// Returns the entries of a directory relative to another one (`scandirat(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn scandirat(
    dirfd: c_int,
    path: *const c_char,
    entries: *mut c_void,
    filter: *const c_void,
    order: *const c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(scandirat(dirfd, path, entries, filter, order))
        })
    }
}

/// Returns the entries of a directory relative to another one; the name of [`scandirat`] for
/// programs with offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn scandirat64(
    dirfd: c_int,
    path: *const c_char,
    entries: *mut c_void,
    filter: *const c_void,
    order: *const c_void,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(scandirat64(dirfd, path, entries, filter, order))
        })
    }
}
