use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::ibv_fork_status;
use libc::c_int;

use super::real::call;

/// From now on a child of `fork` finds the device dead: its engine thread stayed with the parent,
/// its locks may be held by threads that are gone, and its sockets are the parent's.
///
/// Called when the device is used for the first time. A child forked before may open it for itself.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler stores one atomic, which is allowed in a child of a threaded process.
        // A library that holds it is never unloaded, since the engine thread runs its code.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether this is a forked child of the process that used the device.
pub(crate) fn is_dead() -> bool {
    DEAD.load(Ordering::Relaxed)
}

static DEAD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    DEAD.store(true, Ordering::Relaxed);
}

/// Prepares the memory of real devices for a `fork`. Ours needs nothing: threads of the parent copy
/// from and to its memory, so pages that a child shares are copied before they are written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    // SAFETY: there are no arguments.
    unsafe { call!(ibv_fork_init() else 0) }
}

/// Whether [`ibv_fork_init`] was called, or need not be.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    // SAFETY: there are no arguments.
    unsafe { call!(ibv_is_fork_initialized() else ibv_fork_status::IBV_FORK_UNNEEDED) }
}
