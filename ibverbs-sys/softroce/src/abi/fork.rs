//! The device in a child of `fork`.
//!
//! A child does not inherit its parent's device. The engine's thread exists only in the parent,
//! locks may be held by threads that the child does not have, and packets of the child would have
//! its parent's address. So a handler in the child closes all inherited descriptors, and does not
//! use the device and its objects any more. Memory that the device shares with peers is not mapped
//! in the child (`MADV_DONTFORK`). A child that opens the device gets an address, memory and an
//! engine thread of its own.
//!
//! Verbs on inherited objects fail with `EIO`, as verbs on objects of a kernel device do when the
//! device is gone. The handler replaces the functions of every open context by functions that fail,
//! and marks the context as one of another device. So a process that never forks has no cost.
//! Inherited objects are never freed.
//!
//! `ibv_fork_init(3)` exists for devices that write to the pages of a process. This device does not
//! need it: threads of the process copy from and to its memory, so after a `fork` the kernel copies
//! pages before they are written, as for any thread.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::{ibv_context, ibv_fork_status};
use libc::c_int;

use super::real::call;
use super::{buffer, device, open, xrc};
use crate::{counters, descriptor, memory, nic, object_counts};

/// Registers the handlers for `fork` that prevent a child from using its parent's device.
///
/// Must be called at the first use of the device. A `fork` before that needs no handlers, because
/// the process has no files or memory of the device yet.
pub(crate) fn register_handlers() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the child's handler only stores to memory and closes descriptors, which is
        // permitted in a child of a threaded process. The other handlers wait for system calls of
        // other threads. A library that contains the handlers is never unloaded, because the engine
        // thread runs its code.
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// Returns whether this process is a child of `fork` that has inherited the open context `context`
/// from its parent. The child must not use such a context.
///
/// # Safety
/// `context` must be a context of this or another verbs library.
#[inline]
pub(crate) unsafe fn is_inherited(context: *const ibv_context) -> bool {
    // SAFETY: the caller guarantees a valid context. Only the forking thread writes the field,
    // before the child continues.
    IS_CHILD.load(Ordering::Relaxed) && unsafe { (*context).device == device::device_of_parent() }
}

/// Flag that is set in a child that was forked while the device was in use. Functions check this
/// flag first. The check is cheap, because the cache line of the flag is rarely written.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn prepare() {
    device::before_fork();
    descriptor::before_fork();
}

extern "C" fn in_parent() {
    descriptor::after_fork();
    // SAFETY: `prepare` was called before, in this thread.
    unsafe { device::after_fork() };
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    open::refuse_all();
    nic::reset_in_child();
    counters::reset_in_child();
    object_counts::reset_in_child();
    memory::reset_in_child();
    buffer::reset_in_child();
    xrc::reset_in_child();
    // This is the last step, because from here on other threads of the child may open files.
    descriptor::after_fork_in_child();
    // SAFETY: `prepare` was called before the fork, in the thread that this thread is a copy of.
    unsafe { device::after_fork() };
}

/// Calls `ibv_fork_init(3)` of the system's libibverbs, which prepares the devices of other drivers
/// for a `fork`. The softroce device needs no preparation. Returns 0 if there is no such library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_fork_init() -> c_int {
    // SAFETY: the function takes no arguments.
    unsafe { call!(ibv_fork_init() else 0) }
}

/// Returns whether [`ibv_fork_init`] was called or is not needed (`ibv_is_fork_initialized(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    // SAFETY: the function takes no arguments.
    unsafe { call!(ibv_is_fork_initialized() else ibv_fork_status::IBV_FORK_UNNEEDED) }
}
