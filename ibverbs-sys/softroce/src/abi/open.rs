use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::{ibv_context, ibv_device, ibv_event_type, verbs_context};
use libc::c_int;

use super::command_file::CommandFile;
use super::real::call;
use super::{device, exit, fail, fork, forward, guard, inherited, tables, verb};
use crate::context::Context;
use crate::descriptor::{Descriptor, Opening};
use crate::fault::{Listener, Verb};
use crate::limits;
use crate::nic::{Nic, faults};
use crate::object_counts::{Counted, Kind};

/// The C object that `ibv_open_device` returns: the public context, followed by private data of
/// this device.
#[repr(C)]
struct OpenDevice {
    public: verbs_context,
    context: Arc<Context>,
    nic: Arc<Nic>,
    file: Arc<CommandFile>,
    /// Descriptor of the command file, which the program knows as `cmd_fd` and can duplicate for
    /// `ibv_import_device`.
    _command: Descriptor,
    /// Device that was opened before this one and is still open: the next element of the list of
    /// open devices. Null for the device that was opened first.
    next: *mut OpenDevice,
    _counted: Counted,
}

/// The open device that was opened last: the head of a linked list of all open devices. A child of
/// `fork` finds the contexts that it has inherited in this list. Only a thread that holds an
/// [`Opening`] changes the list. No thread can fork during an `Opening`, so the child never finds a
/// half-made change.
static OPEN_DEVICES: AtomicPtr<OpenDevice> = AtomicPtr::new(ptr::null_mut());

/// Replaces all functions of the contexts that a child of `fork` has inherited. Every verb called
/// with such a context then returns an error. Must be called in the child.
pub(super) fn refuse_all() {
    let mut open = OPEN_DEVICES.swap(ptr::null_mut(), Ordering::Relaxed);
    while !open.is_null() {
        // SAFETY: an open device is valid until it is removed from the list, and no other thread
        // runs in the child.
        unsafe {
            inherited::refuse(&raw mut (*open).public);
            open = (*open).next;
        }
    }
}

/// Adds the open device `open` to the list [`OPEN_DEVICES`].
fn add_to_list(open: *mut OpenDevice) {
    let _opening = Opening::begin();
    // SAFETY: the open device was just created, and no other thread has a reference to it.
    unsafe { (*open).next = OPEN_DEVICES.load(Ordering::Relaxed) };
    OPEN_DEVICES.store(open, Ordering::Relaxed);
}

/// Removes the open device `open` from the list [`OPEN_DEVICES`].
fn remove_from_list(open: *mut OpenDevice) {
    let _opening = Opening::begin();
    let mut at = OPEN_DEVICES.load(Ordering::Relaxed);
    // SAFETY: devices on the list are valid, and no other thread changes the list while `_opening`
    // exists.
    unsafe {
        if at == open {
            return OPEN_DEVICES.store((*open).next, Ordering::Relaxed);
        }
        while !at.is_null() {
            if (*at).next == open {
                return (*at).next = (*open).next;
            }
            at = (*at).next;
        }
    }
}

/// Returns the [`Context`] that is stored in the C object `context`.
///
/// # Safety
/// `context` must belong to this device, and must not be closed while the reference is used.
pub(crate) unsafe fn context<'a>(context: *const ibv_context) -> &'a Arc<Context> {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe { &(*open_device(context)).context }
}

/// Returns the NIC to which a context belongs.
///
/// # Safety
/// `context` must belong to this device, and must not be closed while the reference is used.
pub(crate) unsafe fn nic<'a>(context: *const ibv_context) -> &'a Arc<Nic> {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe { &(*open_device(context)).nic }
}

/// Returns the command file of a context: the table of the objects that other contexts can import.
/// A context and the contexts that `ibv_import_device` made from it have the same command file.
///
/// # Safety
/// `context` must belong to this device, and must not be closed while the reference is used.
pub(super) unsafe fn file<'a>(context: *const ibv_context) -> &'a Arc<CommandFile> {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe { &(*open_device(context)).file }
}

/// Returns the [`OpenDevice`] that contains the C structure `context`.
///
/// # Safety
/// `context` must belong to this device.
unsafe fn open_device(context: *const ibv_context) -> *mut OpenDevice {
    const OFFSET: usize =
        mem::offset_of!(OpenDevice, public) + mem::offset_of!(verbs_context, context);
    // SAFETY: `ibv_open_device` makes each context of this device inside an `OpenDevice`.
    unsafe { context.byte_sub(OFFSET).cast_mut().cast() }
}

/// Opens a device (`ibv_open_device(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    if !device::is_own(device) {
        // SAFETY: the device is not of this library, so it must be a valid one of the real library.
        return unsafe { call!(ibv_open_device(device)) };
    }
    verb(Verb::OpenDevice, fail, || {
        fork::register_handlers();
        exit::register_handler();
        let opened = Nic::open().and_then(|nic| {
            let file = CommandFile::new()?;
            let command = Descriptor::for_program(file.as_fd())?;
            Ok(make(Context::new()?, nic, file, command))
        });
        opened.unwrap_or_else(|error| {
            // The error number does not show which variable is invalid or which port is in use.
            let _ = writeln!(
                io::stderr(),
                "softroce: the device cannot be opened: {error}"
            );
            fail(errno_of(&error))
        })
    })
}

/// Creates the `ibv_context` for the context `context` of `nic`, and adds it to the list of open
/// devices. `file` is the command file of the context. `command` is a descriptor of this file,
/// which the program gets as `cmd_fd`.
fn make(
    context: Arc<Context>,
    nic: Arc<Nic>,
    file: Arc<CommandFile>,
    command: Descriptor,
) -> *mut ibv_context {
    let listener: Weak<Context> = Arc::downgrade(&context);
    faults().subscribe(listener);
    let mut public = tables::context();
    public.context.device = device::address();
    public.context.cmd_fd = command.as_raw_fd();
    public.context.async_fd = context.number();
    public.context.num_comp_vectors = limits::COMPLETION_VECTORS.cast_signed();
    let opened = Box::into_raw(Box::new(OpenDevice {
        public,
        context,
        nic,
        file,
        _command: command,
        next: ptr::null_mut(),
        _counted: Counted::new(Kind::Context),
    }));
    add_to_list(opened);
    // SAFETY: the object is valid until the context is closed.
    unsafe { &raw mut (*opened).public.context }
}

/// Closes a context (`ibv_close_device(3)`). Destroys queue pairs that the program has not
/// destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { forward!(context, ibv_close_device(context) else -1) };
    guard(-1, || {
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        let opened = unsafe { open_device(context) };
        remove_from_list(opened);
        // SAFETY: `ibv_open_device` created the object by `Box::into_raw`, and the C API forbids
        // its use after this call.
        let opened = unsafe { Box::from_raw(opened) };
        for queue_pair in opened.nic.queue_pairs.all() {
            // Destroys the queue pair as the kernel would, so that peers cannot reach the program's
            // memory through it.
            if queue_pair.release_all(&opened.context) {
                // Sends a pending acknowledgement, as `ibv_destroy_qp` does.
                opened.nic.transmit(&queue_pair);
                // The error is ignored: this call cannot report that a peer is stopped during a
                // copy.
                let _ = queue_pair.withdraw_and_wait();
                opened.nic.queue_pairs.remove(queue_pair.number());
                let leave = |group| opened.nic.network.leave(group);
                opened.nic.groups.detach_all(&queue_pair, leave);
                queue_pair.close();
                opened.nic.remove(&queue_pair);
            }
        }
        if Arc::strong_count(&opened.context) > 1 {
            // C objects that were not destroyed still point to the context, so it is leaked instead
            // of freed.
            mem::forget(opened);
        }
        0
    })
}

/// Creates another context that shares the objects of an open context (`ibv_import_device(3)`).
/// `cmd_fd` is a duplicate of the open context's `cmd_fd`. The new context owns this descriptor,
/// and closes the descriptor when the program closes the context.
///
/// The open context must belong to this process. In another process the descriptor does not
/// identify a context of this device, so the call fails.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    guard(ptr::null_mut(), || {
        let Some((file, nic)) = shared_by(cmd_fd) else {
            // SAFETY: the argument is that of the caller, for the same function.
            return unsafe { call!(ibv_import_device(cmd_fd) else fail(libc::EINVAL)) };
        };
        match Context::new() {
            Ok(context) => {
                // SAFETY: the descriptor is open, as `shared_by` has checked, and the C API gives
                // it to this function.
                let command = Descriptor::of_program(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
                make(context, nic, file, command)
            }
            Err(error) => fail(errno_of(&error)),
        }
    })
}

/// Returns the command file and the NIC of the open context that a program imports by the
/// descriptor `cmd_fd` (`ibv_import_device(3)`). The context is the one whose [`CommandFile`] has
/// this descriptor or a duplicate of the descriptor. Returns `None` if no context has the file.
fn shared_by(cmd_fd: c_int) -> Option<(Arc<CommandFile>, Arc<Nic>)> {
    if cmd_fd < 0 {
        return None;
    }
    let _opening = Opening::begin();
    let mut at = OPEN_DEVICES.load(Ordering::Relaxed);
    // SAFETY: devices on the list are valid, and no other thread changes the list while `_opening`
    // exists. The C API requires the caller to keep the descriptor open during the call.
    unsafe {
        let descriptor = BorrowedFd::borrow_raw(cmd_fd);
        while !at.is_null() {
            let open = &*at;
            if open.file.is_file_of(descriptor) {
                return Some((Arc::clone(&open.file), Arc::clone(&open.nic)));
            }
            at = open.next;
        }
    }
    None
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
