//! Checks and results of the verbs for memory, completions, shared receive queues, domains and
//! addresses. The rules of the manual pages are tested as a C program sees them.

mod address;
mod buffer;
mod completion;
mod device;
mod domain;
mod import;
mod memory;
mod shared_receive;
mod threads;

use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, without_provenance_mut};
use std::{io, thread};

use ibverbs_sys::*;
use libc::{EAGAIN, EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP, EPERM};

const LOCAL_WRITE: i32 = 1;
const REMOTE_WRITE: i32 = 1 << 1;
const REMOTE_READ: i32 = 1 << 2;
const REMOTE_ATOMIC: i32 = 1 << 3;
const ZERO_BASED: i32 = 1 << 5;
const ON_DEMAND: i32 = 1 << 6;

/// Page of memory at the address of a page.
#[repr(align(4096))]
struct Page([u8; 4096]);

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self([0; 4096]))
    }

    fn start(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Runs `test` on a context of the device.
fn with_context(test: impl FnOnce(*mut ibv_context)) {
    softroce::install();
    let mut count = 0;
    // SAFETY: the list has `count` devices until it is freed; the last one is softroce's.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        let context = ibv_open_device(*list.add(count as usize - 1));
        ibv_free_device_list(list);
        assert!(!context.is_null(), "{}", io::Error::last_os_error());
        test(context);
        assert_eq!(ibv_close_device(context), 0);
    }
}

/// Runs `test` on a protection domain that no object uses afterwards.
fn with_domain(test: impl FnOnce(*mut ibv_context, *mut ibv_pd)) {
    with_context(|context| {
        // SAFETY: the context is open.
        unsafe {
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            test(context, pd);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    });
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

/// Asserts that a verb returned no object, and set errno to `expected`.
#[track_caller]
fn refused<T>(object: *mut T, expected: i32) {
    assert!(
        object.is_null(),
        "an object where errno {expected} was expected"
    );
    assert_eq!(errno(), expected);
}

fn set_nonblocking(descriptor: i32) {
    // SAFETY: the descriptor is open, and the flags are a number.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        assert_eq!(
            libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK),
            0
        );
    }
}

fn is_readable(descriptor: i32) -> bool {
    let mut about = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one descriptor.
    unsafe { libc::poll(&raw mut about, 1, 0) == 1 }
}

fn srq_attr(max_wr: u32, max_sge: u32) -> ibv_srq_init_attr {
    ibv_srq_init_attr {
        srq_context: without_provenance_mut(0x55),
        attr: ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: 0,
        },
    }
}
