use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use libc::c_int;

use super::fork;

/// Runs the body of a function that C calls. After a panic, and in a forked child, the answer is
/// `failed`, and errno is `EIO`.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    if fork::is_dead() {
        set_errno(libc::EIO);
        return failed;
    }
    // What a panic leaves behind is never used as if it were whole: the device says that it failed,
    // and the locks of parking_lot open.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(_) => {
            // The event itself must not panic out of here either.
            let _ = catch_unwind(|| FATAL.get().map(|raise| raise()));
            set_errno(libc::EIO);
            failed
        }
    }
}

/// Says what a panic does beside the errno: raises `IBV_EVENT_DEVICE_FATAL` at every open context.
pub(crate) fn on_panic(raise: fn()) {
    let _ = FATAL.set(raise);
}

static FATAL: OnceLock<fn()> = OnceLock::new();

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

/// Sets errno and gives the null pointer: how verbs that make an object fail.
pub(crate) fn fail<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
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
