//! Decides for each path that the program passes to the C library whether the path belongs to
//! softroce's device, and replaces such a path by one in the private directory.

use std::ffi::{CStr, CString};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use device::sysfs;
use libc::{c_char, c_int};
use rustix::fs::{CWD, readlinkat_raw};

use crate::next::{errno, set_errno};
use crate::tree::{self, Tree};

/// Length in bytes of the buffers for paths: the longest path that the kernel accepts, with its
/// zero.
const PATH_BUFFER_LENGTH: usize = libc::PATH_MAX as usize;

/// Calls `function`, a function of the C library, with a path: if `path` is about softroce's
/// device, with the path of the file in the private directory, and otherwise with `path` itself. A
/// relative path is relative to the directory with the descriptor `at`.
///
/// # Safety
/// `path` must be a C string or null.
#[inline]
pub(crate) unsafe fn answer<R>(
    at: c_int,
    path: *const c_char,
    function: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: the caller guarantees the conditions of these functions.
    unsafe {
        if !may_be_device_path(path) {
            return function(path);
        }
        answer_device_path(at, path, function)
    }
}

/// Returns whether a path may belong to softroce's device. This check only reads the path, and
/// rejects almost all other paths, so that they cost little.
///
/// # Safety
/// `path` must be a C string or null.
#[inline]
unsafe fn may_be_device_path(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller guarantees a C string. Each byte is read only if the bytes before it are
    // not the end of the string.
    unsafe {
        let byte = |at: usize| path.add(at).read().cast_unsigned();
        let has_start = match byte(0) {
            b'/' => match byte(1) {
                b's' => byte(2) == b'y' && byte(3) == b's' && byte(4) == b'/',
                b'd' => byte(2) == b'e' && byte(3) == b'v' && byte(4) == b'/',
                _ => false,
            },
            // The path is relative to a directory that may be above the device's files.
            _ => true,
        };
        has_start && !libc::strstr(path, c"infiniband".as_ptr()).is_null()
    }
}

#[cold]
unsafe fn answer_device_path<R>(
    at: c_int,
    path: *const c_char,
    function: impl FnOnce(*const c_char) -> R,
) -> R {
    let mut buffer = [0; PATH_BUFFER_LENGTH];
    // SAFETY: the caller guarantees a C string.
    function(unsafe { answered_path(at, path, &mut buffer) })
}

/// Returns the path to pass to the C library's function: the path of a file in the private
/// directory, which is written to `buffer`, if `path` belongs to softroce's device, and otherwise
/// `path` itself.
///
/// # Safety
/// `path` must be a C string.
unsafe fn answered_path(
    at: c_int,
    path: *const c_char,
    buffer: &mut [u8; PATH_BUFFER_LENGTH],
) -> *const c_char {
    let saved = errno();
    // SAFETY: the caller guarantees a C string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    // A panic must not leave this library. The C library answers then.
    let written = catch_unwind(AssertUnwindSafe(|| write_answer(at, bytes, buffer)));
    set_errno(saved);
    match written {
        Ok(Some(())) => buffer.as_ptr().cast(),
        _ => path,
    }
}

/// Writes the path that replaces `path` to `buffer`, with a zero behind it. Returns `None` if
/// `path` must not be replaced, for example because it does not belong to softroce's device.
fn write_answer(at: c_int, path: &[u8], buffer: &mut [u8; PATH_BUFFER_LENGTH]) -> Option<()> {
    let mut absolute = [0; PATH_BUFFER_LENGTH];
    let path = if path.starts_with(b"/") {
        path
    } else {
        absolute_path(at, path, &mut absolute)?
    };
    let place = DevicePath::of(path, sysfs::device_name().as_bytes())?;
    if place == DevicePath::Shared && sysfs::is_real_library_running() {
        return None;
    }
    match place {
        DevicePath::Node => write(buffer, &[sysfs::NODE.as_bytes()]),
        DevicePath::Shared => write(buffer, &[tree::with_devices_of_the_machine()?.root(), path]),
        DevicePath::Device => write(buffer, &[tree::current()?.root(), path]),
    }
}

/// Writes `parts` one after the other and a final zero to `buffer`, or returns `None` if the buffer
/// is too short.
fn write(mut buffer: &mut [u8], parts: &[&[u8]]) -> Option<()> {
    for part in parts {
        buffer.write_all(part).ok()?;
    }
    buffer.write_all(&[0]).ok()
}

/// Returns the absolute path of a file that is named relative to the directory with the descriptor
/// `at`.
fn absolute_path<'a>(
    at: c_int,
    path: &[u8],
    buffer: &'a mut [u8; PATH_BUFFER_LENGTH],
) -> Option<&'a [u8]> {
    let mut name = [0; 32];
    match at {
        libc::AT_FDCWD => write(&mut name, &[b"/proc/self/cwd"])?,
        at => write(&mut name, &[b"/proc/self/fd/", at.to_string().as_bytes()])?,
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    let room = &mut buffer[..PATH_BUFFER_LENGTH / 2];
    let length = readlinkat_raw(CWD, name, room).ok()?;
    let end = length + 1 + path.len();
    let rest = buffer.get_mut(length..end)?;
    rest[0] = b'/';
    rest[1..].copy_from_slice(path);
    Some(&buffer[..end])
}

/// The kind of file that a path of softroce's device names. The kind determines the path that
/// replaces this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DevicePath {
    /// The device's node in `/dev/infiniband`.
    Node,
    /// A directory that has entries for devices of the machine, too.
    Shared,
    /// A file of the device under `/sys`.
    Device,
}

impl DevicePath {
    /// Returns the kind of file that the absolute path `path` names, or `None` if the path does not
    /// belong to the device with the name `device`.
    fn of(path: &[u8], device: &[u8]) -> Option<Self> {
        let mut parts = path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty() && part != b".");
        let class = |part: &[u8]| part == b"infiniband" || part == b"infiniband_verbs";
        let (tree, kind) = (parts.next()?, parts.next()?);
        let name = match (tree, kind) {
            (b"dev", b"infiniband") => parts.next(),
            (b"sys", b"class") if class(parts.next()?) => parts.next(),
            (b"sys", b"devices") if parts.next()? == b"virtual" && class(parts.next()?) => {
                parts.next()
            }
            _ => return None,
        };
        let has_more = parts.next().is_some();
        match name {
            None => Some(Self::Shared),
            // The parent of such a directory exists even if the machine has no such directory.
            Some(b"..") if !has_more => Some(Self::Shared),
            Some(name) if name != device => None,
            Some(_) if tree == b"sys" => Some(Self::Device),
            Some(_) => (!has_more).then_some(Self::Node),
        }
    }
}

/// Replaces the path of a file in the private directory by the path under which programs know the
/// file. Leaves any other path unchanged.
///
/// # Safety
/// `path` must be a C string that may be written.
pub(crate) unsafe fn restore(path: *mut c_char) {
    let Some(tree) = tree::existing() else {
        return;
    };
    // SAFETY: the caller guarantees a C string. The rest of the string, with its zero, is moved to
    // its beginning.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes_with_nul();
        if let Some(rest) = behind_root(tree, bytes) {
            ptr::copy(rest.as_ptr().cast(), path, rest.len());
        }
    }
}

fn behind_root<'a>(tree: &Tree, path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(tree.root())?;
    rest.starts_with(b"/").then_some(rest)
}

/// Returns the usual path of the device's node, if `path` is a path of the node.
///
/// # Safety
/// `path` must be a C string or null.
pub(crate) unsafe fn node(path: *const c_char) -> Option<CString> {
    // SAFETY: the caller guarantees the conditions of these functions.
    let path = unsafe {
        if !may_be_device_path(path) {
            return None;
        }
        CStr::from_ptr(path).to_bytes()
    };
    let name = sysfs::device_name();
    let is_node = DevicePath::of(path, name.as_bytes()) == Some(DevicePath::Node);
    let node = is_node.then(|| CString::new(format!("/dev/infiniband/{name}")));
    node?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_device_and_its_classes_have_a_place() {
        let place = |path: &str| DevicePath::of(path.as_bytes(), b"softroce0");
        assert_eq!(place("/dev/infiniband/softroce0"), Some(DevicePath::Node));
        assert_eq!(
            place("/dev//infiniband/./softroce0"),
            Some(DevicePath::Node)
        );
        for path in [
            "/dev/infiniband",
            "/dev/infiniband/",
            "/sys/class/infiniband",
            "/sys/class/infiniband_verbs/",
            "/sys/class/infiniband/..",
            "/sys/devices/virtual/infiniband",
        ] {
            assert_eq!(place(path), Some(DevicePath::Shared), "{path}");
        }
        for path in [
            "/sys/class/infiniband/softroce0",
            "/sys/class/infiniband/softroce0/ports/1/gids/0",
            "/sys/class/infiniband/softroce0/../softroce0/node_guid",
            "/sys/class/infiniband_verbs/softroce0/ibdev",
            "/sys/devices/virtual/infiniband/softroce0/node_guid",
        ] {
            assert_eq!(place(path), Some(DevicePath::Device), "{path}");
        }
        for path in [
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/infiniband/softroce",
            "/sys/class/infiniband/softroce00/ports",
            "/sys/class/infiniband/mlx5_0",
            "/sys/class/infiniband_cm",
            "/sys/class/infiniband_verbs/abi_version",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/devices/virtual",
            "/sys/devices/virtual/infiniband/rxe_0",
            "/sys/devices/virtual/net/lo",
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/softroce0/more",
            "/dev/null",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(place(path), None, "{path}");
        }
    }

    #[test]
    fn other_paths_are_not_even_near() {
        // SAFETY: all arguments are C strings or null.
        unsafe {
            for path in [
                c"",
                c"/",
                c"/s",
                c"/sys",
                c"/de",
                c"/etc/passwd",
                c"file",
                c"/sys/class/net",
                c"/dev/null",
                c"/home/infiniband",
            ] {
                assert!(!may_be_device_path(path.as_ptr()), "{path:?}");
            }
            assert!(!may_be_device_path(ptr::null()));
            for path in [
                c"/sys/class//infiniband",
                c"/dev/infiniband",
                c"class/infiniband",
            ] {
                assert!(may_be_device_path(path.as_ptr()), "{path:?}");
            }
        }
    }

    #[test]
    fn a_relative_path_is_that_below_its_directory() {
        let directory = std::fs::File::open("/sys/class").unwrap();
        let at = std::os::fd::AsRawFd::as_raw_fd(&directory);
        let mut buffer = [0; PATH_BUFFER_LENGTH];
        assert_eq!(
            absolute_path(at, b"infiniband/x", &mut buffer),
            Some(&b"/sys/class/infiniband/x"[..])
        );
        assert_eq!(absolute_path(-1, b"infiniband", &mut buffer), None);
    }
}
