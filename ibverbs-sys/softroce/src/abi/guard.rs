use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::c_int;

use crate::fault::{Errno, Verb};
use crate::nic::{Nic, faults};

/// Runs the body of a function that C calls. After a panic the answer is `failed`, and errno is `EIO`.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch(|_| failed, body)
}

/// Runs `body` as [`guard`] does, for a verb that can be [made to fail](crate::fault): `failed` gives the answer for an
/// errno, which is set, too.
pub(crate) fn verb<T>(verb: Verb, failed: impl Fn(c_int) -> T, body: impl FnOnce() -> T) -> T {
    catch(&failed, || match faults().check(verb) {
        Ok(()) => body(),
        Err(Errno(errno)) => {
            set_errno(errno);
            failed(errno)
        }
    })
}

/// Returns the answer of verbs that return the errno.
pub(crate) fn number(errno: c_int) -> c_int {
    errno
}

/// Sets errno, and returns -1: the answer of verbs that do so.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Sets errno, and returns the answer of verbs that make an object: no object.
pub(crate) fn fail<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Runs `body` as [`guard`] does, for functions that return an errno.
pub(crate) fn catch<T>(failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> T) -> T {
    // State that a panic has left inconsistent is never used as if it were consistent: the device reports that it
    // failed, and its locks open.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(panic) => {
            // Reporting the panic must not let another one out of this function.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                Nic::opened().is_some_and(|nic| nic.panicked(&*panic))
            }));
            set_errno(libc::EIO);
            failed(libc::EIO)
        }
    }
}

/// Returns the calling thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library's pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library's pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::{errno, fail, guard, set_errno};

    #[test]
    fn an_answer_passes_and_leaves_errno_alone() {
        set_errno(libc::EAGAIN);
        assert_eq!(guard(-1, || 7), 7);
        assert_eq!(errno(), libc::EAGAIN);
    }

    #[test]
    fn a_panic_ends_as_eio() {
        set_errno(0);
        let answer = guard(-1, || if errno() == 0 { panic!("planted") } else { 7 });
        assert_eq!((answer, errno()), (-1, libc::EIO));
    }

    #[test]
    fn errno_is_the_threads_own() {
        assert!(fail::<u8>(libc::ENOMEM).is_null());
        std::thread::spawn(|| set_errno(libc::EBADF))
            .join()
            .unwrap();
        assert_eq!(errno(), libc::ENOMEM);
    }
}
