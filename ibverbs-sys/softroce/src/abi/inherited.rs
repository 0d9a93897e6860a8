//! The functions of a context that a child of `fork` has inherited: all fail with `EIO`.

use std::mem;
use std::ptr;

use ibverbs_sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, verbs_context};
use libc::{c_int, c_void};

use super::{device, fail};

/// A function that fails and ignores its arguments. Such a function can replace verbs with
/// different arguments, because a C caller removes the arguments from the stack itself.
type AnyFunction<T> = unsafe extern "C" fn() -> T;

const NUMBER: AnyFunction<c_int> = number;
const NEGATIVE: AnyFunction<c_int> = negative;
const POINTER: AnyFunction<*mut c_void> = pointer;

/// Replaces all function pointers of a context by functions that fail, and marks the context as one
/// of another device. Performs only stores to memory, so a child of `fork` can call it.
///
/// # Safety
/// `context` must be an open context of this device, in a child of `fork` in which no other thread
/// runs.
#[expect(
    clippy::missing_transmute_annotations,
    reason = "each place has a type of its own, which says what the function becomes"
)]
pub(super) unsafe fn refuse(context: *mut verbs_context) {
    // SAFETY: the caller guarantees a valid context without concurrent users. C code calls each
    // function by the type of its entry. The functions stored here read no arguments, and return a
    // value of the same kind: a number, or a pointer.
    unsafe {
        let table = &mut *context;
        macro_rules! refuse {
            ($($place:ident),* by $function:ident: $answer:ty) => {
                $(table.$place = Some(mem::transmute::<AnyFunction<$answer>, _>($function));)*
            };
        }
        refuse!(
            query_port, advise_mr, free_dm, dealloc_td, modify_cq, query_rt_values, query_device_ex, get_srq_num,
            close_xrcd by NUMBER: c_int
        );
        refuse!(
            alloc_null_mr, reg_dm_mr, alloc_dm, alloc_parent_domain, alloc_td, create_cq_ex, open_qp, create_qp_ex,
            create_srq_ex, open_xrcd by POINTER: *mut c_void
        );
        let operations = &mut table.context.ops;
        operations.alloc_mw = Some(mem::transmute::<AnyFunction<*mut c_void>, _>(POINTER));
        operations.bind_mw = Some(mem::transmute::<AnyFunction<c_int>, _>(NUMBER));
        operations.dealloc_mw = Some(mem::transmute::<AnyFunction<c_int>, _>(NUMBER));
        operations.poll_cq = Some(mem::transmute::<AnyFunction<c_int>, _>(NEGATIVE));
        operations.req_notify_cq = Some(mem::transmute::<AnyFunction<c_int>, _>(NUMBER));
        operations.post_send = Some(post_send);
        operations.post_recv = Some(post_recv);
        operations.post_srq_recv = Some(post_srq_recv);
        table.context.device = device::device_of_parent();
        // The descriptors are closed, and their numbers may be reused for other files.
        table.context.async_fd = -1;
        table.context.cmd_fd = -1;
    }
}

unsafe extern "C" fn number() -> c_int {
    super::set_errno(libc::EIO);
    libc::EIO
}

unsafe extern "C" fn negative() -> c_int {
    super::set_errno(libc::EIO);
    -libc::EIO
}

unsafe extern "C" fn pointer() -> *mut c_void {
    fail(libc::EIO)
}

unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the C API requires `bad_wr` to be valid for writes.
    unsafe { ptr::write(bad_wr, wr) };
    libc::EIO
}

unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the C API requires `bad_wr` to be valid for writes.
    unsafe { ptr::write(bad_wr, wr) };
    libc::EIO
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the C API requires `bad_wr` to be valid for writes.
    unsafe { ptr::write(bad_wr, wr) };
    libc::EIO
}
