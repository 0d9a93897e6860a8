use std::io::{self, Write};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::{ibv_context, ibv_device, ibv_event_type, verbs_context};
use libc::c_int;

use super::real::call;
use super::{device, exit, fail, fork, forward, guard, inherited, tables, verb};
use crate::census::{Counted, Kind};
use crate::context::Context;
use crate::descriptor::Opening;
use crate::fault::{Listener, Verb};
use crate::limits;
use crate::nic::{Nic, faults};

/// An open device as C knows it: what a context of ours lies in.
#[repr(C)]
struct OpenDevice {
    public: verbs_context,
    context: Arc<Context>,
    nic: Arc<Nic>,
    /// The device opened before this one that is still open.
    next: *mut OpenDevice,
    _counted: Counted,
}

/// The open devices, the last one first. The list is changed only by threads that hold an [`Opening`], so no change is
/// unfinished at a `fork`.
static LAST: AtomicPtr<OpenDevice> = AtomicPtr::new(ptr::null_mut());

/// Makes all contexts that were inherited refuse every request, in a child of `fork`.
pub(super) fn refuse_all() {
    let mut open = LAST.swap(ptr::null_mut(), Ordering::Relaxed);
    while !open.is_null() {
        // SAFETY: an open device is valid until it is taken off the list, and no other thread runs.
        unsafe {
            inherited::refuse(&raw mut (*open).public);
            open = (*open).next;
        }
    }
}

/// Puts an open device on the list.
fn note(open: *mut OpenDevice) {
    let _opening = Opening::begin();
    // SAFETY: the open device was just made, and no other thread knows it.
    unsafe { (*open).next = LAST.load(Ordering::Relaxed) };
    LAST.store(open, Ordering::Relaxed);
}

/// Takes an open device off the list.
fn leave(open: *mut OpenDevice) {
    let _opening = Opening::begin();
    let mut at = LAST.load(Ordering::Relaxed);
    // SAFETY: devices on the list are valid, and no other thread changes the list.
    unsafe {
        if at == open {
            return LAST.store((*open).next, Ordering::Relaxed);
        }
        while !at.is_null() {
            if (*at).next == open {
                return (*at).next = (*open).next;
            }
            at = (*at).next;
        }
    }
}

/// Returns this crate's state of a context of this device.
///
/// # Safety
/// `context` must be one of this device, and the caller must not close it while the reference is used.
pub(crate) unsafe fn context<'a>(context: *const ibv_context) -> &'a Arc<Context> {
    // SAFETY: the caller's promise.
    unsafe { &(*open_device(context)).context }
}

/// Returns the device of a context of this device.
///
/// # Safety
/// `context` must be one of this device, and the caller must not close it while the reference is used.
pub(crate) unsafe fn nic<'a>(context: *const ibv_context) -> &'a Arc<Nic> {
    // SAFETY: the caller's promise.
    unsafe { &(*open_device(context)).nic }
}

/// # Safety
/// `context` must be one of this device.
unsafe fn open_device(context: *const ibv_context) -> *mut OpenDevice {
    const OFFSET: usize =
        mem::offset_of!(OpenDevice, public) + mem::offset_of!(verbs_context, context);
    // SAFETY: every context of ours was made inside of an open device, by `ibv_open_device`.
    unsafe { context.byte_sub(OFFSET).cast_mut().cast() }
}

/// `ibv_open_device(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if !device::is_own(device) {
        // SAFETY: the caller gives a device of the real library.
        return unsafe { call!(ibv_open_device(device)) };
    }
    verb(Verb::OpenDevice, fail, || {
        fork::watch();
        exit::watch();
        let opened = Nic::open().and_then(|nic| {
            Ok(OpenDevice {
                public: tables::context(),
                context: Context::new()?,
                nic,
                next: ptr::null_mut(),
                _counted: Counted::new(Kind::Context),
            })
        });
        let mut opened = match opened {
            Ok(opened) => Box::new(opened),
            Err(error) => {
                // An errno says too little of a variable that is wrong or a port that is taken.
                let _ = writeln!(
                    io::stderr(),
                    "softroce: the device cannot be opened: {error}"
                );
                return fail(errno_of(&error));
            }
        };
        let listener: Weak<Context> = Arc::downgrade(&opened.context);
        faults().subscribe(listener);
        let descriptor = opened.context.number();
        let context = &mut opened.public.context;
        context.device = device::address();
        context.cmd_fd = -1;
        context.async_fd = descriptor;
        context.num_comp_vectors = limits::COMPLETION_VECTORS.cast_signed();
        let opened = Box::into_raw(opened);
        note(opened);
        // SAFETY: it is there until it is closed.
        unsafe { &raw mut (*opened).public.context }
    })
}

/// `ibv_close_device(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller gives an open context.
    unsafe { forward!(context, ibv_close_device(context) else -1) };
    guard(-1, || {
        // SAFETY: the context is ours and open, so it came out of a box that nobody has taken back.
        let opened = unsafe { open_device(context) };
        leave(opened);
        // SAFETY: as above.
        let opened = unsafe { Box::from_raw(opened) };
        for queue_pair in opened.nic.queue_pairs.all() {
            // As the kernel does it: no peer reaches the program's memory through what it has forgotten.
            if queue_pair.abandon(&opened.context) {
                // As when it is destroyed: an acknowledgement that is owed goes.
                opened.nic.transmit(&queue_pair);
                // Where a peer is stopped in the middle of a copy, nobody is left to be told.
                let _ = queue_pair.vacate();
                opened.nic.queue_pairs.remove(queue_pair.number());
                queue_pair.close();
                opened.nic.forget(&queue_pair);
            }
        }
        if Arc::strong_count(&opened.context) > 1 {
            // C's structs of forgotten objects point here: better this memory is lost than read when it is gone.
            mem::forget(opened);
        }
        0
    })
}

/// `ibv_import_device(3)`: the descriptor is one of the kernel's, and ours has none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    // SAFETY: the caller's argument, handed on.
    unsafe { call!(ibv_import_device(cmd_fd)) }
}

fn errno_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        _ => libc::EIO,
    })
}

impl Listener for Context {
    fn raise(&self, kind: ibv_event_type) {
        match kind {
            ibv_event_type::IBV_EVENT_PORT_ACTIVE
            | ibv_event_type::IBV_EVENT_PORT_ERR
            | ibv_event_type::IBV_EVENT_LID_CHANGE
            | ibv_event_type::IBV_EVENT_PKEY_CHANGE
            | ibv_event_type::IBV_EVENT_SM_CHANGE
            | ibv_event_type::IBV_EVENT_CLIENT_REREGISTER
            | ibv_event_type::IBV_EVENT_GID_CHANGE => self.raise_port(kind, 1),
            _ => self.raise_device(kind),
        }
    }
}
