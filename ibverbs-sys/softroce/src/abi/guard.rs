use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use ibverbs_sys::ibv_event_type;
use libc::c_int;

use super::fork;
use crate::fault::{Errno, Faults, Verb};

/// Runs the body of a function that C calls. After a panic, and in a forked child, the answer is
/// `failed`, and errno is `EIO`.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    run(|_| failed, body)
}

/// As [`guard`], for a verb that can be [made to fail](crate::fault): `failed` gives the answer for
/// an errno, which is set, too.
pub(crate) fn verb<T>(verb: Verb, failed: impl Fn(c_int) -> T, body: impl FnOnce() -> T) -> T {
    run(&failed, || match Faults::of_process().check(verb) {
        Ok(()) => body(),
        Err(Errno(errno)) => {
            set_errno(errno);
            failed(errno)
        }
    })
}

/// The answer of verbs that return the errno.
pub(crate) fn number(errno: c_int) -> c_int {
    errno
}

/// The answer of verbs that return -1 and set errno.
pub(crate) fn minus_one(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The answer of verbs that make an object, which return no object and set errno.
pub(crate) fn fail<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}

fn run<T>(failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> T) -> T {
    if fork::is_dead() {
        set_errno(libc::EIO);
        return failed(libc::EIO);
    }
    catch(failed, body)
}

/// As [`guard`], for what works in a forked child too.
pub(crate) fn catch<T>(failed: impl FnOnce(c_int) -> T, body: impl FnOnce() -> T) -> T {
    // What a panic leaves behind is never used as if it were whole: the device says that it failed,
    // and locks open.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(_) => {
            // The event itself must not panic out of here either.
            let _ = catch_unwind(|| {
                Faults::of_process().raise(ibv_event_type::IBV_EVENT_DEVICE_FATAL);
            });
            set_errno(libc::EIO);
            failed(libc::EIO)
        }
    }
}

/// The calling thread's errno.
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
