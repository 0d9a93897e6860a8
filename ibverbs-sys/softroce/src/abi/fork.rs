//! The device in a child of `fork`.
//!
//! A child has nothing of its parent's device. The engine's thread stayed with the parent, locks may be held by threads
//! that the child does not have, and packets of the child would come from its parent's address. So the child's handler
//! closes all descriptors that the child has inherited, and leaves the device and its objects alone; memory that the
//! device shares with peers is not mapped in the child at all (`MADV_DONTFORK`). The child may open the device: then it
//! gets an address, memory and an engine thread of its own.
//!
//! Objects that were inherited answer `EIO`, as objects of a kernel device do when the device is gone. The handler
//! gives every open context functions that refuse, and marks it as a context of another device, so a process that never
//! forks pays nothing for this. The inherited objects are never freed.
//!
//! `ibv_fork_init(3)` asks programs to call it before they fork, for devices that write to the pages of a process. This
//! device does not write to pages: threads of the process copy from and to its memory, so after a `fork` the kernel
//! copies pages before they are written, as for any thread.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{ibv_context, ibv_fork_status};
use libc::c_int;

use super::real::call;
use super::{buffer, device, open, xrc};
use crate::{census, counters, descriptor, memory, nic};

/// Registers the handlers for `fork`: from now on a child of `fork` has no device of its parent's.
///
/// Called when the device is used for the first time. A child forked before that has nothing to leave alone.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the child's handler stores to memory and closes descriptors, which is allowed in a child of a
        // threaded process; the other handlers wait for system calls of other threads. The library with these handlers
        // is never unloaded, since the engine thread runs its code.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// Returns whether a context was open when this process was forked.
///
/// # Safety
/// `context` must be a context of some verbs library.
#[inline]
pub(crate) unsafe fn is_inherited(context: *const ibv_context) -> bool {
    // SAFETY: the caller's promise; only the thread that forks writes the field, before the child goes on.
    IS_CHILD.load(Ordering::Relaxed) && unsafe { (*context).device == device::of_parent() }
}

/// Set in a child that was forked while the device was open. This flag is tested first, as it is in memory that is never
/// written.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn prepare() {
    device::before_fork();
    descriptor::before_fork();
}

extern "C" fn in_parent() {
    descriptor::after_fork();
    // SAFETY: `prepare` ran before, in this thread.
    unsafe { device::after_fork() };
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    open::refuse_all();
    nic::forget();
    counters::forget();
    census::forget();
    memory::forget();
    buffer::forget();
    xrc::forget();
    // This is the last step: from here on other threads of the child may open files, if it has any by now.
    descriptor::after_fork_in_child();
    // SAFETY: `prepare` ran before the fork, in the thread that this thread is a copy of.
    unsafe { device::after_fork() };
}

/// Prepares the memory of real devices for a `fork`. This device needs no preparation.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    // SAFETY: there are no arguments.
    unsafe { call!(ibv_fork_init() else 0) }
}

/// Returns whether [`ibv_fork_init`] was called or is not needed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    // SAFETY: there are no arguments.
    unsafe { call!(ibv_is_fork_initialized() else ibv_fork_status::IBV_FORK_UNNEEDED) }
}
