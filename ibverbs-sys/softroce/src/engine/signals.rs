//! Signals of the process, which the engine's thread shall not get: a handler of the program's must not run in a thread
//! that the program does not know.

use std::mem;
use std::ptr;

/// Runs `body` with all signals blocked; threads that it starts inherit that.
pub(super) fn blocked<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: a set of signals is plain bits, and both are valid for the calls.
    let before = unsafe {
        let mut all = mem::zeroed();
        let mut before = mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let result = body();
    // SAFETY: the mask is the one that the thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: only the calling thread's mask is read.
        unsafe {
            let mut mask = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    #[test]
    fn a_thread_that_is_started_gets_none_and_its_starter_does() {
        let thread = blocked(|| std::thread::spawn(|| blocks(libc::SIGUSR1)));
        assert!(thread.join().unwrap());
        assert!(!blocks(libc::SIGUSR1));
    }
}
