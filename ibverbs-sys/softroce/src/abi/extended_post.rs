//! Posting of send requests by the functions of `ibv_qp_ex`. All queue pairs of this device have
//! these functions.

use std::slice;

use bitflags::bitflags;
use ibverbs_sys::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use libc::{c_int, c_void};

use super::queue_pair::{QueuePairHandle, object};
use super::work_request::{SEND, address, bind, copy, segment, slice};
use super::{fork, guard};
use crate::proto::{Flush, Remote, SendOperation, Service};
use crate::queue_pair::PostError;

bitflags! {
    /// Set of operations that a program requests for a queue pair: the bits of
    /// `ibv_qp_create_send_ops_flags` that the device supports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Operations: u64 {
        const WRITE = 1;
        const WRITE_WITH_IMMEDIATE = 1 << 1;
        const SEND = 1 << 2;
        const SEND_WITH_IMMEDIATE = 1 << 3;
        const READ = 1 << 4;
        const COMPARE_SWAP = 1 << 5;
        const FETCH_ADD = 1 << 6;
        const LOCAL_INVALIDATE = 1 << 7;
        const BIND = 1 << 8;
        const SEND_WITH_INVALIDATE = 1 << 9;
        const FLUSH = 1 << 11;
        const ATOMIC_WRITE = 1 << 12;
    }
}

impl Operations {
    /// Returns whether a queue pair supports all these operations, by the table in
    /// `ibv_wr_post(3)`. `service` is the transport service of the queue pair.
    pub(super) fn are_supported_by(self, service: Service) -> bool {
        let datagrams = Self::SEND | Self::SEND_WITH_IMMEDIATE;
        match service {
            Service::ReliableConnection | Service::XrcInitiator => Self::all(),
            Service::UnreliableConnection => {
                let atomics = Self::COMPARE_SWAP | Self::FETCH_ADD | Self::ATOMIC_WRITE;
                Self::all() - Self::READ - Self::FLUSH - atomics
            }
            Service::UnreliableDatagram => datagrams,
            Service::XrcTarget => Self::empty(),
        }
        .contains(self)
    }
}

/// Sets all function pointers of the C structure `qp`. C code calls them without checks, even for
/// operations that the program did not request. A call of an unsupported function makes the batch
/// of requests fail.
pub(super) fn set_functions(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
}

/// Function pointers that newer versions of the header `verbs.h` add to the end of `ibv_qp_ex`. The
/// bindings of this crate do not declare these pointers. The added pointers are `wr_flush`, and
/// spare entries for functions that are not known yet. Programs that were built with a newer header
/// call these functions.
#[repr(C)]
#[derive(Debug)]
pub(super) struct LaterFunctions {
    wr_flush: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
    spare: [unsafe extern "C" fn(*mut ibv_qp_ex); 7],
}

impl LaterFunctions {
    pub(super) fn new() -> Self {
        Self {
            wr_flush,
            spare: [wr_unknown; 7],
        }
    }
}

/// Calls `body` with the [`QueuePairHandle`] of the queue pair `qp`. Does nothing if the queue pair
/// was created before this process was forked. A panic in `body` is caught, because the C functions
/// that call this function cannot return an error.
///
/// # Safety
/// `qp` must be a queue pair of this device, and must not be destroyed during the call.
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&QueuePairHandle)) {
    // SAFETY: the caller guarantees a valid queue pair. An extended queue pair begins with the
    // plain one.
    if unsafe { is_inherited(qp) } {
        return;
    }
    // SAFETY: the caller guarantees a valid queue pair of this device.
    guard((), || body(unsafe { object(qp.cast()) }));
}

/// Returns whether the queue pair `qp` was created by the parent of this process, before a `fork`.
///
/// # Safety
/// `qp` must be a queue pair of this device, and must not be destroyed during the call.
unsafe fn is_inherited(qp: *mut ibv_qp_ex) -> bool {
    // SAFETY: the caller guarantees a valid queue pair. An extended queue pair begins with the
    // plain one.
    unsafe { fork::is_inherited((*qp).qp_base.context) }
}

/// Adds a send request with the operation `operation` to the batch of requests that the program
/// builds between `ibv_wr_start` and `ibv_wr_complete`.
///
/// # Safety
/// `qp` must be a queue pair of this device, and must not be destroyed during the call.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe {
        with(qp, |object| {
            let (id, flags) = object.next_request();
            let rules = object.queue_pair().rules();
            object.batch().begin(rules, id, flags, operation);
        });
    }
}

/// Marks the current batch of send requests of `qp` as failed. `ibv_wr_complete`, by which the
/// program ends the batch, then returns an error. Called when the program adds a request with an
/// unsupported operation.
///
/// # Safety
/// `qp` must be a queue pair of this device, and must not be destroyed during the call.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe {
        with(qp, |object| {
            object.batch().set_unsupported(object.queue_pair().rules());
        });
    };
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let remote = remote(rkey, remote_addr);
    let operation = SendOperation::CompareSwap {
        remote,
        compare,
        swap,
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let remote = remote(rkey, remote_addr);
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, SendOperation::FetchAdd { remote, add }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: only queue pairs of this device have this function. The C API requires a valid window
    // and valid information.
    unsafe {
        with(qp, |object| {
            let (id, flags) = object.next_request();
            let rules = object.queue_pair().rules();
            match bind(mw, rkey, &*bind_info) {
                Ok(operation) => object.batch().begin(rules, id, flags, operation),
                Err(error) => object.batch().record_error(error),
            }
        });
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let operation = SendOperation::LocalInvalidate {
        key: invalidate_rkey,
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let remote = remote(rkey, remote_addr);
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, SendOperation::Read { remote }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let remote = remote(rkey, remote_addr);
    let operation = SendOperation::Write {
        remote,
        immediate: None,
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: u32,
) {
    let remote = remote(rkey, remote_addr);
    let operation = SendOperation::Write {
        remote,
        immediate: Some(imm_data.to_ne_bytes()),
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, SEND) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let operation = SendOperation::Send {
        immediate: Some(imm_data.to_ne_bytes()),
        invalidate: None,
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let operation = SendOperation::Send {
        immediate: None,
        invalidate: Some(invalidate_rkey),
    };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { begin(qp, operation) };
}

/// Makes the batch of requests fail: the device does not support segmentation offload.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    let remote = remote(rkey, remote_addr);
    // SAFETY: the C API requires eight bytes that are valid for reads. Only queue pairs of this
    // device have this function.
    unsafe {
        let bytes = atomic_wr.cast::<[u8; 8]>().read_unaligned();
        begin(qp, SendOperation::AtomicWrite { remote, bytes });
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let remote = remote(rkey, remote_addr);
    // SAFETY: only queue pairs of this device have this function.
    unsafe {
        match u32::try_from(len) {
            Ok(length) => {
                let flush = Flush {
                    remote,
                    length,
                    placement,
                    level,
                };
                begin(qp, SendOperation::Flush(flush));
            }
            Err(_) => with(qp, |object| object.batch().record_error(PostError::Length)),
        }
    }
}

/// Makes the batch of requests that the program is posting fail. This function stands for every
/// function of `ibv_qp_ex` that this crate does not know. Such a function may have more parameters.
/// The additional arguments are harmless, because the caller removes all arguments in the C calling
/// convention.
unsafe extern "C" fn wr_unknown(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: only queue pairs of this device have this function. The C API requires a valid
    // address handle.
    unsafe {
        with(qp, |object| {
            match address(object, ah, remote_qpn, remote_qkey) {
                Ok(address) => object.batch().address(address),
                Err(error) => object.batch().record_error(error),
            }
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { with(qp, |object| object.batch().xrc_srq(remote_srqn)) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: only queue pairs of this device have this function. The C API requires `length` bytes
    // that are valid for reads.
    unsafe {
        with(qp, |object| {
            set_inline(object, [(addr.expose_provenance(), length)].into_iter());
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: only queue pairs of this device have this function. The C API requires a valid list
    // of valid buffers.
    unsafe {
        with(qp, |object| {
            let places = slice(buf_list, num_buf)
                .iter()
                .map(|piece| (piece.addr.expose_provenance(), piece.length));
            set_inline(object, places);
        });
    }
}

/// Sets the data of the last request of the batch to inline data. `places` are the addresses and
/// lengths of the parts of the data. The bytes are copied.
///
/// # Safety
/// The bytes at `places` must be valid for reads.
unsafe fn set_inline(qp: &QueuePairHandle, places: impl Iterator<Item = (usize, usize)> + Clone) {
    // SAFETY: the caller guarantees the conditions of this function.
    match unsafe { copy(qp.queue_pair().rules(), places) } {
        Ok(data) => qp.batch().inline(data),
        Err(error) => qp.batch().record_error(error),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = ibv_sge { addr, length, lkey };
    // SAFETY: only queue pairs of this device have this function.
    unsafe { with(qp, |object| set_segments(object, slice::from_ref(&piece))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: only queue pairs of this device have this function. The C API requires a list of
    // `num_sge` elements.
    unsafe {
        with(qp, |object| {
            match object.queue_pair().rules().send_segments(num_sge) {
                Ok(count) => set_segments(object, slice(sg_list, count)),
                Err(error) => object.batch().record_error(error),
            }
        });
    }
}

fn set_segments(object: &QueuePairHandle, pieces: &[ibv_sge]) {
    match object.queue_pair().rules().send_segments(pieces.len()) {
        Ok(_) => object.batch().gather(pieces.iter().map(segment)),
        Err(error) => object.batch().record_error(error),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { with(qp, |object| object.batch().start()) };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: only queue pairs of this device have this function.
    if unsafe { is_inherited(qp) } {
        return libc::EIO;
    }
    guard(libc::EIO, || {
        // SAFETY: only queue pairs of this device have this function.
        let object = unsafe { object(qp.cast()) };
        let queue_pair = object.queue_pair();
        let posted = object.batch().complete(queue_pair.rules(), |requests| {
            (object.nic()).post(queue_pair, |sender| sender.post_all(requests))
        });
        posted.map_or_else(PostError::errno, |()| 0)
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of this device have this function.
    unsafe { with(qp, |object| object.batch().abort()) };
}

/// Returns the location in the peer's memory that a request names by the remote key `key` and the
/// address `address`.
fn remote(key: u32, address: u64) -> Remote {
    Remote { address, key }
}
