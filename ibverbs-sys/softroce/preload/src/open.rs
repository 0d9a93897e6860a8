//! Replacements for functions of the C library that open files.
//!
//! `open` and `openat` take a mode as a variable argument if they create a file. Here it is an
//! ordinary argument, which the calling conventions of x86-64 and ARM64 pass in the same register.
//! The C library ignores it if no file is created.

use libc::{AT_FDCWD, FILE, c_char, c_int, mode_t};

use crate::next::next;
use crate::question::answer;

/// Opens a file (`open(2)`). A path of softroce's device is replaced, see [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(open(path, flags, mode))) }
}

/// Opens a file; the name of [`open`] for programs with offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(open64(path, flags, mode))) }
}

/// Opens a file; the name of [`open`] for programs with checks of their calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(__open_2(path, flags))) }
}

/// Opens a file; the name of [`open64`] for programs with checks of their calls
/// (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(__open64_2(path, flags))) }
}

/// Opens a file relative to a directory (`openat(2)`). A path of softroce's device is replaced, see
/// [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(dirfd, path, |path| next!(openat(dirfd, path, flags, mode))) }
}

/// Opens a file relative to a directory; the name of [`openat`] for programs with offsets of 64
/// bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn openat64(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe {
        answer(dirfd, path, |path| {
            next!(openat64(dirfd, path, flags, mode))
        })
    }
}

/// Opens a file relative to a directory; the name of [`openat`] for programs with checks of their
/// calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat_2(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(dirfd, path, |path| next!(__openat_2(dirfd, path, flags))) }
}

/// Opens a file relative to a directory; the name of [`openat64`] for programs with checks of their
/// calls (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __openat64_2(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(dirfd, path, |path| next!(__openat64_2(dirfd, path, flags))) }
}

/// Opens a stream (`fopen(3)`). A path of softroce's device is replaced, see [`crate::question`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(fopen(path, mode))) }
}

/// Opens a stream; the name of [`fopen`] for programs with offsets of 64 bits.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the arguments are those of the caller, for the same function, except for the path,
    // which is a C string, too.
    unsafe { answer(AT_FDCWD, path, |path| next!(fopen64(path, mode))) }
}
