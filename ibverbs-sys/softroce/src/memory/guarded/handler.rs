//! The handler of SIGSEGV and SIGBUS.
//!
//! The handler is installed once and stays. After a fault of an instruction of the table, the
//! thread continues at the instruction's recovery address. Every other fault, and every signal that
//! a process sends, is passed to the handler that was installed before, with that handler's flags
//! and mask. The handler is async-signal-safe: it reads the table and calls the previous handler.

use std::mem;
use std::ptr;
use std::sync::{Once, OnceLock};

use libc::{c_int, c_void, siginfo_t};

use super::processor::instruction;
use super::table;

/// Signal actions (`sigaction`) for SIGSEGV and SIGBUS that the process had before this library
/// installed its handler.
static PREVIOUS_ACTIONS: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];

/// Signals for which this library installs its handler, in the order of [`PREVIOUS_ACTIONS`].
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs a handler of SIGSEGV and SIGBUS. With the handler, an access of this library to
/// registered memory that is not mapped returns an error and does not end the program. Only the
/// first call has an effect.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        for (signal, before) in SIGNALS.into_iter().zip(&PREVIOUS_ACTIONS) {
            // SAFETY: signal sets and actions are plain data, valid for the calls. The handler has
            // the signature that its flags require. This thread blocks the signal until the
            // previous action is stored; a handler in another thread waits for that.
            unsafe {
                let mut this: libc::sigset_t = mem::zeroed();
                let mut mask: libc::sigset_t = mem::zeroed();
                libc::sigemptyset(&raw mut this);
                libc::sigaddset(&raw mut this, signal);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const this, &raw mut mask);
                let mut action: libc::sigaction = mem::zeroed();
                libc::sigaction(signal, ptr::null(), &raw mut action);
                let is_default = action.sa_sigaction == libc::SIG_DFL;
                action.sa_sigaction = on_fault as Handler as usize;
                action.sa_flags &= !libc::SA_RESETHAND;
                action.sa_flags |= libc::SA_SIGINFO;
                if is_default {
                    action.sa_flags |= libc::SA_ONSTACK;
                }
                let mut replaced: libc::sigaction = mem::zeroed();
                if libc::sigaction(signal, &raw const action, &raw mut replaced) == 0 {
                    let _ = before.set(replaced);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
            }
        }
    });
}

type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the interrupted thread.
    let mut instruction = unsafe { instruction(context.cast()) };
    // SAFETY: the kernel passes a valid description of the signal.
    let is_fault = unsafe { (*info).si_code } > 0;
    if is_fault && let Some(recovery) = table::recovery(instruction.address()) {
        instruction.set(recovery);
        return;
    }
    let place = usize::from(signal == SIGNALS[1]);
    let before = loop {
        // Another thread is installing this handler, and is about to store the previous action.
        if let Some(before) = PREVIOUS_ACTIONS[place].get() {
            break before;
        }
        std::hint::spin_loop();
    };
    // SAFETY: the arguments are those that the kernel has passed.
    unsafe { call_previous(before, is_fault, signal, info, context) };
}

/// Handles a signal as the process would have done without this library. `before` is the signal
/// action (`sigaction`) that was installed before the handler of this library. `is_fault` is set if
/// the signal reports a fault.
///
/// # Safety
/// `signal`, `info` and `context` must be the arguments of a signal handler, and `before` the
/// action that it has replaced.
unsafe fn call_previous(
    before: &libc::sigaction,
    is_fault: bool,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    match before.sa_sigaction {
        // A fault cannot be ignored: the faulting instruction would be executed again, so the
        // kernel ends the program.
        libc::SIG_IGN if !is_fault => {}
        // SAFETY: no code relies on this handler any more, since the program ends: by the default
        // action for the repeated fault or for the raised signal.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            set_default(signal);
            if !is_fault {
                libc::raise(signal);
            }
        },
        handler => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                // SAFETY: the program has installed its handler for a single signal, and expects
                // the default action afterwards.
                unsafe { set_default(signal) };
            }
            // SAFETY: the handler has the signature that its flags require.
            unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    mem::transmute::<usize, Handler>(handler)(signal, info, context);
                } else {
                    mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
                }
            }
        }
    }
}

/// Restores the default action of the signal `signal`.
///
/// # Safety
/// The caller must ensure that no code relies on the present handler any more.
unsafe fn set_default(signal: c_int) {
    // SAFETY: an action is plain data; all of its other fields may be 0 for the default action.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}
