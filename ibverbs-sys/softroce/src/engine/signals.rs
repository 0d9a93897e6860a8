//! Signal mask of the threads that the device starts. A signal handler of the program must not run
//! in a thread that the program does not know. SIGSEGV and SIGBUS, which report memory faults of
//! the thread itself, are not blocked: if they were, a fault would end the program.

use std::io;
use std::mem;
use std::ptr;
use std::thread;

/// Starts a thread of the device with the name `name`, which has at most 15 bytes. The thread runs
/// `body`. The kernel delivers no signals of the program to this thread.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    with_blocked_signals(|| thread::Builder::new().name(name.to_owned()).spawn(body)).map(drop)
}

/// Calls `body` while all signals are blocked, except signals that report memory faults. Threads
/// that `body` starts inherit this signal mask. Returns the result of `body`.
fn with_blocked_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is plain data, so a zeroed one is valid, and both sets are live during the
    // calls.
    let before = unsafe {
        let mut all = mem::zeroed();
        let mut before = mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let result = body();
    // SAFETY: `before` is the mask that the thread had, and is live during the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: only the calling thread's mask is read, into `mask`, which is live during the
        // call.
        unsafe {
            let mut mask = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, signal) == 1
        }
    }

    #[test]
    fn a_started_thread_blocks_signals_and_its_creator_receives_them() {
        let signals = [libc::SIGUSR1, libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS];
        let thread = with_blocked_signals(|| std::thread::spawn(move || signals.map(blocks)));
        assert_eq!(thread.join().unwrap(), [true, true, false, false]);
        assert!(!blocks(libc::SIGUSR1));
    }
}
