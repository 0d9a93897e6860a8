use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::c_int;

use crate::fault::{Errno, Verb};
use crate::nic::{Nic, faults};

/// Calls `body`, the body of a function that C code calls, and returns its result. After a panic in
/// `body`, makes the device fail, sets errno to `EIO` and returns `failed`.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_panic(|_| failed, body)
}

/// Runs `body`, the implementation of the verb `verb`, and returns its result. If fault injection
/// ([`crate::fault`]) makes this call fail, sets errno and returns the result of `failed` for the
/// error number instead. Handles panics like [`guard`].
pub(crate) fn verb<T>(verb: Verb, failed: impl Fn(c_int) -> T, body: impl FnOnce() -> T) -> T {
    catch_panic(&failed, || match faults().check(verb) {
        Ok(()) => body(),
        Err(Errno(errno)) => {
            set_errno(errno);
            failed(errno)
        }
    })
}

/// Returns `errno` unchanged. Passed to [`verb`] for functions that return an error number;
/// [`minus_one`] and [`fail`] are for functions that set errno.
pub(crate) fn number(errno: c_int) -> c_int {
    errno
}

/// Sets errno and returns -1, for verbs that report errors in this way, such as `ibv_get_cq_event`.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Sets errno and returns a null pointer, for verbs that return an object, such as `ibv_create_cq`.
pub(crate) fn fail<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

/// Calls `body`, and returns its result. After a panic, makes the device fail, and returns the
/// result of `failed` for the error number `EIO`.
pub(crate) fn catch_panic<T>(failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> T) -> T {
    // State that a panic has left inconsistent is not used any more: the device reports a fatal
    // error and fails all verbs. The locks of the device are released.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(panic) => {
            // A panic while the first one is reported must not leave this function.
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
    // SAFETY: the pointer of the C library is valid in the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the pointer of the C library is valid in the calling thread.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::{errno, fail, guard, set_errno};

    #[test]
    fn a_result_is_returned_without_changing_errno() {
        set_errno(libc::EAGAIN);
        assert_eq!(guard(-1, || 7), 7);
        assert_eq!(errno(), libc::EAGAIN);
    }

    #[test]
    fn a_panic_becomes_eio() {
        set_errno(0);
        let answer = guard(-1, || if errno() == 0 { panic!("planted") } else { 7 });
        assert_eq!((answer, errno()), (-1, libc::EIO));
    }

    #[test]
    fn errno_is_set_for_the_calling_thread_only() {
        assert!(fail::<u8>(libc::ENOMEM).is_null());
        std::thread::spawn(|| set_errno(libc::EBADF))
            .join()
            .unwrap();
        assert_eq!(errno(), libc::ENOMEM);
    }
}
