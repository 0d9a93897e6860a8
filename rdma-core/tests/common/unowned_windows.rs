//! A device whose memory windows of type 2 are usable through every queue pair: a real device with
//! a replaced function for sends.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, OnceLock};

use ibverbs_sys as sys;
use rdma_core::Context;

type PostSend = unsafe extern "C" fn(
    *mut sys::ibv_qp,
    *mut sys::ibv_send_wr,
    *mut *mut sys::ibv_send_wr,
) -> i32;

static SEND: OnceLock<PostSend> = OnceLock::new();
/// Bound windows, by their keys.
static BOUND: Mutex<Option<HashMap<u32, Window>>> = Mutex::new(None);

/// A bound window.
struct Window {
    memory: Range<u64>,
    /// Number of the queue pair that has bound the window.
    owner: u32,
}

/// Makes the memory windows of `context` usable through every queue pair.
pub(crate) fn make_windows_usable_by_all(context: &Context) {
    // SAFETY: the context is open, no other code uses it yet, and the function has the type of the
    // field.
    unsafe {
        let ops = &raw mut (*context.as_raw()).ops;
        let driver = (*ops).post_send.replace(post_send);
        let _ = SEND.set(driver.expect("the driver posts"));
    }
}

/// Posts the requests, after the writes among them to windows of other queue pairs were performed.
unsafe extern "C" fn post_send(
    queue_pair: *mut sys::ibv_qp,
    wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    let post = SEND.get().expect("it was replaced");
    // SAFETY: the arguments are those of the intercepted call: a list of requests.
    unsafe {
        let mut next = wr;
        while let Some(request) = next.as_mut() {
            match request.opcode {
                sys::ibv_wr_opcode::IBV_WR_BIND_MW => record(queue_pair, request),
                sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE => write(queue_pair, request),
                _ => {}
            }
            next = request.next;
        }
        post(queue_pair, wr, bad)
    }
}

/// Stores the memory of the window that a request binds.
///
/// # Safety
///
/// The request must bind a window.
unsafe fn record(queue_pair: *mut sys::ibv_qp, request: &sys::ibv_send_wr) {
    // SAFETY: the caller guarantees the kind of the request, and the queue pair is valid.
    let (window, owner) = unsafe { (&request.__bindgen_anon_2.bind_mw, (*queue_pair).qp_num) };
    let memory = window.bind_info.addr..window.bind_info.addr + window.bind_info.length;
    let mut bound = BOUND.lock().unwrap();
    let bound = bound.get_or_insert_default();
    bound.insert(window.rkey, Window { memory, owner });
}

/// Performs a write to the window of a queue pair that is not connected to `queue_pair`, and
/// removes the data from the request, so that the device completes the request without checking the
/// key.
///
/// # Safety
///
/// The request must be a write, and the target must be in this process.
unsafe fn write(queue_pair: *mut sys::ibv_qp, request: &mut sys::ibv_send_wr) {
    // SAFETY: the caller guarantees the kind of the request.
    let target = unsafe { request.wr.rdma };
    let bound = BOUND.lock().unwrap();
    let Some(Window { memory, owner }) = bound.as_ref().and_then(|bound| bound.get(&target.rkey))
    else {
        return;
    };
    // SAFETY: the queue pair is valid, and both structures are plain data.
    let peer = unsafe {
        let (mut attributes, mut initial) = (std::mem::zeroed(), std::mem::zeroed());
        let mask = sys::ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 as i32;
        let errno = sys::ibv_query_qp(queue_pair, &mut attributes, mask, &mut initial);
        assert_eq!(errno, 0);
        let attributes: sys::ibv_qp_attr = attributes;
        attributes.dest_qp_num
    };
    // SAFETY: a write of one element, as all writes of the tests.
    let source = unsafe { *request.sg_list };
    let end = target.remote_addr + u64::from(source.length);
    if peer == *owner || target.remote_addr < memory.start || end > memory.end {
        return;
    }
    // SAFETY: the memory of the window is in this process, is valid while the window is bound, and
    // no other code accesses it; the source is valid until the request completes.
    unsafe {
        let target = target.remote_addr as *mut u8;
        std::ptr::copy_nonoverlapping(source.addr as *const u8, target, source.length as usize);
    }
    request.num_sge = 0;
}
