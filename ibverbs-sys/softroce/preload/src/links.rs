//! Replacements for functions of the C library that follow symbolic links.

use std::ptr;

use libc::{AT_FDCWD, c_char, c_int, size_t, ssize_t};

use crate::next::next;
use crate::question::{answer, node, restore};

/// Returns the target of a symbolic link (`readlink(2)`). A path of softroce's device is replaced,
/// see [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readlink(
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(readlink(path, buffer, size))) }
}

/// Returns the target of a symbolic link; the name of [`readlink`] for programs with checks of
/// their calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(AT_FDCWD, path, |path| {
            next!(__readlink_chk(path, buffer, size, room))
        })
    }
}

/// Returns the target of a symbolic link relative to a directory (`readlinkat(2)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn readlinkat(
    dirfd: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(readlinkat(dirfd, path, buffer, size))
        })
    }
}

/// Returns the target of a symbolic link relative to a directory; the name of [`readlinkat`] for
/// programs with checks of their calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __readlinkat_chk(
    dirfd: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(__readlinkat_chk(dirfd, path, buffer, size, room))
        })
    }
}

/// Returns the absolute path of a file without symbolic links (`realpath(3)`), in `resolved` or, if
/// that is null, in memory that the caller frees.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realpath(
    path: *const c_char,
    resolved: *mut c_char,
) -> *mut c_char {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { resolve(path, resolved, |path| next!(realpath(path, resolved))) }
}

/// Returns the absolute path of a file without symbolic links; the name of [`realpath`] for
/// programs with checks of their calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    room: size_t,
) -> *mut c_char {
    // SAFETY: as above.
    unsafe {
        resolve(path, resolved, |path| {
            next!(__realpath_chk(path, resolved, room))
        })
    }
}

/// Returns the absolute path of a file without symbolic links, in memory that the caller frees
/// (`canonicalize_file_name(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: as above.
    unsafe {
        resolve(path, ptr::null_mut(), |path| {
            next!(canonicalize_file_name(path))
        })
    }
}

/// Calls `function`, which returns the absolute path of a file without symbolic links in `resolved`
/// or in new memory. If `path` is about softroce's device, `function` gets another path, and its
/// result is replaced by the path under which the program knows the file.
///
/// # Safety
/// `path` must be a C string or null, and `resolved` must be null or have room for a path of any
/// length.
unsafe fn resolve(
    path: *const c_char,
    resolved: *mut c_char,
    function: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    // SAFETY: the caller guarantees the conditions of these functions. A path that `function` has
    // returned may be written.
    unsafe {
        if let Some(node) = node(path) {
            return match resolved.is_null() {
                true => libc::strdup(node.as_ptr()),
                false => libc::strcpy(resolved, node.as_ptr()),
            };
        }
        let found = answer(AT_FDCWD, path, function);
        if !found.is_null() {
            restore(found);
        }
        found
    }
}
