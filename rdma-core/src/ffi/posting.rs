//! Posting of work requests to the device, by `ibv_post_send` or by the functions `ibv_wr_*`.

use std::mem::{self, MaybeUninit};
use std::ptr;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_wr_opcode as opcode;

use super::context::positive;
use super::elements::MAX_ELEMENTS;
use super::extended_queue::is_soft_roce_of_linux;
use super::queue_pair::QueuePairHandle;
use super::request::FLUSH;
use crate::error::{Error, Result};

/// The C struct `ibv_qp_ex` of newer headers, with the function `wr_flush`, which posts flush
/// requests. The struct in this crate's bindings is older, and ends before `wr_flush`.
#[repr(C)]
struct NewerQpEx {
    _known: sys::ibv_qp_ex,
    wr_flush: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

impl QueuePairHandle {
    /// Posts one send request to the device. Returns an error only if the driver reports the
    /// request as refused. If the driver reports an error without a refused request, logs the error
    /// and returns success, because the request is possibly in the queue. Soft-RoCE of Linux, for
    /// example, first queues a request and then notifies the kernel. The error can come from the
    /// notification.
    ///
    /// # Safety
    ///
    /// - The elements of `wr` must be valid during this call, and `wr` must have no next request.
    /// - After success, until the request has completed or the queue pair is destroyed, the memory
    ///   of the elements must stay valid, and must not be accessed in a way that conflicts with the
    ///   device. The data of an inline request and the headers of a segmented one need to be valid
    ///   only during this call.
    /// - An address handle must stay valid until the request has completed.
    /// - The queue pair must have been created for the operation.
    #[inline]
    pub(super) unsafe fn post_send(&self, wr: &mut sys::ibv_send_wr) -> Result<()> {
        let only = ptr::from_mut(wr);
        // SAFETY: the caller guarantees the same requirements for this list of one request.
        match unsafe { self.post_sends(wr) } {
            Err((error, bad)) if bad != only => {
                tracing::error!(%error, "{POSTED_DESPITE_ERROR}");
                Ok(())
            }
            posted => posted.map_err(|(error, _)| error),
        }
    }

    /// Returns a pointer to the `ibv_qp`, through which the fast path (with few checks) posts
    /// requests. The caller must keep this handle alive while it uses the pointer.
    #[inline]
    pub(super) fn fast_path(&self) -> FastPathQueuePair {
        FastPathQueuePair(self.as_raw())
    }

    /// Converts `errno`, an error number from [`FastPathQueuePair::post_send`], to an [`Error`].
    #[cold]
    pub(super) fn post_send_error(&self, errno: i32) -> Error {
        self.post_error("ibv_post_send", errno)
    }

    /// Posts a list of send requests in one call. On failure returns the error and the first
    /// request that was not posted. The requests before that request were posted. If the returned
    /// pointer is not in the list, each request of the list may have been posted.
    ///
    /// # Safety
    ///
    /// Each request must meet the requirements of [`Self::post_send`]. Requests other than the last
    /// may have a next request.
    #[inline]
    pub(super) unsafe fn post_sends(
        &self,
        first: &mut sys::ibv_send_wr,
    ) -> Result<(), (Error, *mut sys::ibv_send_wr)> {
        let first_opcode = first.opcode;
        let first = ptr::from_mut(first);
        // A call that fails without setting `bad` has posted no request. For example, libibverbs
        // fails in this way if the driver lacks the function.
        let mut bad = first;
        let (verb, errno) = match self.as_extended() {
            // SAFETY: the caller guarantees that the request is valid.
            _ if first_opcode == opcode::IBV_WR_BIND_MW && unsafe { is_bound_alone(first) } => {
                // SAFETY: the queue pair is valid; the caller guarantees that the request is valid.
                ("ibv_bind_mw", unsafe { bind(self.as_raw(), first) })
            }
            // SAFETY: the queue pair is valid; the caller guarantees valid requests and memory.
            Some(queue_pair) if !unsafe { is_for_lists(first) } => {
                // SAFETY: the queue pair is valid; the caller guarantees valid requests and memory.
                let (errno, completed) = unsafe { post_extended(queue_pair, first) };
                if errno != 0 && completed && self.may_be_queued_despite(errno) {
                    bad = ptr::null_mut();
                }
                ("ibv_wr_complete", errno)
            }
            // SAFETY: the queue pair is valid; the caller guarantees valid requests and memory.
            _ => ("ibv_post_send", unsafe {
                sys::ibv_post_send(self.as_raw(), first, &mut bad)
            }),
        };
        if errno == 0 {
            return Ok(());
        }
        Err((self.post_error(verb, errno), bad))
    }

    /// Posts one receive request to the device.
    ///
    /// # Safety
    ///
    /// `wr` must have no next request. The list of elements of `wr`, and their memory, must meet
    /// the requirements of [`Self::post_send`].
    #[inline]
    pub(super) unsafe fn post_receive(&self, wr: &mut sys::ibv_recv_wr) -> Result<()> {
        // SAFETY: the caller guarantees the same requirements for this list of one request.
        unsafe { self.post_receives(wr) }.map_err(|(error, _)| error)
    }

    /// Converts `errno`, an error number from [`FastPathQueuePair::post_receive`], to an [`Error`].
    #[cold]
    pub(super) fn post_receive_error(&self, errno: i32) -> Error {
        self.post_error("ibv_post_recv", errno)
    }

    /// Posts a list of receive requests in one call. On failure returns the error and the first
    /// request that was not posted. The requests before that request were posted.
    ///
    /// # Safety
    ///
    /// Each request must meet the requirements of [`Self::post_receive`], except that only the last
    /// request of the list must have no next one.
    #[inline]
    pub(super) unsafe fn post_receives(
        &self,
        first: &mut sys::ibv_recv_wr,
    ) -> Result<(), (Error, *mut sys::ibv_recv_wr)> {
        let first = ptr::from_mut(first);
        let mut bad = first;
        // SAFETY: the queue pair is valid; the caller guarantees valid requests and memory.
        let errno = unsafe { sys::ibv_post_recv(self.as_raw(), first, &mut bad) };
        if errno == 0 {
            return Ok(());
        }
        Err((self.post_error("ibv_post_recv", errno), bad))
    }

    /// Returns whether the requests of a list are possibly in the queue although `ibv_wr_complete`
    /// has returned `errno`. Returns `true` only for the driver of Linux's Soft-RoCE. That driver
    /// refuses a list with `ENOSPC` if the queue is full. Any other positive number comes from the
    /// notification of the kernel, which follows after the requests were queued.
    #[cold]
    fn may_be_queued_despite(&self, errno: i32) -> bool {
        let context = self.domain().context();
        errno > 0 && errno != libc::ENOSPC && is_soft_roce_of_linux(context)
    }

    #[cold]
    fn post_error(&self, verb: &'static str, errno: i32) -> Error {
        let errno = positive(errno);
        Error::verb(verb, self.describe(), errno)
    }
}

/// A pointer to the `ibv_qp` of a queue pair, through which the fast path (with few checks) posts
/// requests. A queue stores this pointer beside the handle that keeps the queue pair alive. The
/// pointer beside the handle saves a pointer indirection for every request.
#[derive(Debug, Clone, Copy)]
pub(super) struct FastPathQueuePair(*mut sys::ibv_qp);

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for FastPathQueuePair {}
// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Sync for FastPathQueuePair {}

impl FastPathQueuePair {
    /// Posts one send request by `ibv_post_send`, and returns the error number, or 0 on success.
    /// Also returns 0 after an error that leaves the request possibly in the queue, as
    /// [`QueuePairHandle::post_send`] describes.
    ///
    /// # Safety
    ///
    /// `wr` must meet the requirements of [`QueuePairHandle::post_send`]. Only the fields that its
    /// opcode uses need to be initialised. The handle must be alive, and the queue pair must not
    /// have been created for `ibv_wr_*`.
    #[inline(always)]
    pub(super) unsafe fn post_send(self, wr: *mut sys::ibv_send_wr) -> i32 {
        let mut bad = wr;
        // SAFETY: the caller guarantees that the queue pair, the request and its memory are valid.
        let errno = unsafe { sys::ibv_post_send(self.0, wr, &mut bad) };
        if errno != 0 && bad != wr {
            return posted_despite(errno);
        }
        errno
    }

    /// Posts one receive request by `ibv_post_recv`, and returns the error number, or 0 on success.
    ///
    /// # Safety
    ///
    /// `wr` must meet the requirements of [`QueuePairHandle::post_receive`]. The handle must be
    /// alive.
    #[inline(always)]
    pub(super) unsafe fn post_receive(self, wr: *mut sys::ibv_recv_wr) -> i32 {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the caller guarantees that the queue pair, the request and its memory are valid.
        // `bad` is not needed for a list of one request.
        unsafe { sys::ibv_post_recv(self.0, wr, bad.as_mut_ptr()) }
    }
}

/// The log message for a post call that has failed although the driver has not reported the request
/// as refused. The memory of the request is kept, because the device is possibly still using the
/// memory.
const POSTED_DESPITE_ERROR: &str = "posting failed, but the driver refused no request";

/// Logs the error number of a failed post call that has possibly posted its request nevertheless,
/// and returns 0 (success).
#[cold]
fn posted_despite(errno: i32) -> i32 {
    tracing::error!(errno = %positive(errno), "{POSTED_DESPITE_ERROR}");
    0
}

/// Returns whether a bind request is for a window of type 1. Such a window must be bound by its own
/// call, `ibv_bind_mw`.
///
/// # Safety
///
/// The request must be a valid one that binds a window.
#[cold]
unsafe fn is_bound_alone(wr: *const sys::ibv_send_wr) -> bool {
    // SAFETY: the opcode determines this variant of the union, and the window exists because its
    // owner is kept with the request.
    unsafe { (*(*wr).__bindgen_anon_2.bind_mw.mw).type_ == sys::ibv_mw_type::IBV_MW_TYPE_1 }
}

/// Posts a request that binds a window of type 1, by `ibv_bind_mw`. Returns the error number, or 0
/// on success.
///
/// # Safety
///
/// `wr` must meet the requirements of [`QueuePairHandle::post_send`], and must bind a window.
#[cold]
unsafe fn bind(queue_pair: *mut sys::ibv_qp, wr: *const sys::ibv_send_wr) -> i32 {
    // SAFETY: the opcode determines this variant of the union; the caller guarantees that the
    // window and its region are valid.
    unsafe {
        let request = &(*wr).__bindgen_anon_2.bind_mw;
        let mut bind = sys::ibv_mw_bind {
            wr_id: (*wr).wr_id,
            send_flags: (*wr).send_flags,
            bind_info: request.bind_info,
        };
        sys::ibv_bind_mw(queue_pair, request.mw, &mut bind)
    }
}

/// Returns whether a list of send requests must be posted by `ibv_post_send` instead of the newer
/// functions `ibv_wr_*`. The queue pair was created for `ibv_wr_*`, and supports both ways
/// (ibv_wr_post(3)). Returns `true` if a request has several scatter/gather elements. Returns
/// `false` if the list contains an opcode that only `ibv_wr_*` can post.
///
/// The reason is a defect of some drivers: `ibv_wr_set_sge_list` and `ibv_wr_set_inline_data_list`
/// count the bytes wrongly, so that only a part of the message is sent. The driver of Linux's
/// Soft-RoCE has this defect in every release of rdma-core before 2026.
///
/// # Safety
///
/// `first` must be the first of a valid list, whose last request has no next one.
#[inline]
unsafe fn is_for_lists(first: *const sys::ibv_send_wr) -> bool {
    let (mut lists, mut next) = (false, first);
    // SAFETY: the caller guarantees a valid list, whose last request has no next one.
    while let Some(wr) = unsafe { next.as_ref() } {
        if matches!(wr.opcode, opcode::IBV_WR_ATOMIC_WRITE | FLUSH) {
            return false;
        }
        lists |= wr.num_sge > 1;
        next = wr.next;
    }
    lists
}

/// Posts a list of send requests by the functions `ibv_wr_*`. Posts no request if `ibv_wr_*` has no
/// function for an opcode of the list. Returns the error number, or 0 on success, and whether
/// `ibv_wr_complete` was called.
///
/// From `ibv_wr_start` to `ibv_wr_complete` the driver holds the queue pair's lock. Therefore the
/// code in between must not panic, and must not call code of the program.
///
/// # Safety
///
/// The list must meet the requirements of [`QueuePairHandle::post_sends`], and no request may have
/// more than [`MAX_ELEMENTS`] elements.
unsafe fn post_extended(
    queue_pair: *mut sys::ibv_qp_ex,
    first: *mut sys::ibv_send_wr,
) -> (i32, bool) {
    // SAFETY: the queue pair is valid, and was created for these functions.
    unsafe { sys::ibv_wr_start(queue_pair) };
    let mut next: *const sys::ibv_send_wr = first;
    // SAFETY: the caller guarantees a valid list, whose last request has no next one.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the queue pair was started, and the caller guarantees that the request is valid.
        if !unsafe { describe(queue_pair, wr) } {
            // SAFETY: the queue pair was started.
            unsafe { sys::ibv_wr_abort(queue_pair) };
            return (libc::EINVAL, false);
        }
        next = wr.next;
    }
    // SAFETY: the queue pair was started.
    (unsafe { sys::ibv_wr_complete(queue_pair) }, true)
}

/// Adds the request `wr` to the list that `ibv_wr_start` has begun on the queue pair. Returns
/// `false` if `ibv_wr_*` has no function for the opcode of the request.
///
/// # Safety
///
/// The queue pair must have been started, and `wr` must be a valid request as in [`post_extended`].
unsafe fn describe(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) -> bool {
    // SAFETY: the queue pair is valid, and between start and complete this thread owns these
    // fields. The opcode determines the variants of the request's unions, and the function for the
    // opcode exists because the queue pair was created for it.
    unsafe {
        (*queue_pair).wr_id = wr.wr_id;
        (*queue_pair).wr_flags = wr.send_flags;
        let immediate = wr.__bindgen_anon_1.imm_data;
        let key = wr.__bindgen_anon_1.invalidate_rkey;
        let (rdma, atomic) = (&wr.wr.rdma, &wr.wr.atomic);
        match wr.opcode {
            opcode::IBV_WR_SEND => sys::ibv_wr_send(queue_pair),
            opcode::IBV_WR_SEND_WITH_IMM => sys::ibv_wr_send_imm(queue_pair, immediate),
            opcode::IBV_WR_SEND_WITH_INV => sys::ibv_wr_send_inv(queue_pair, key),
            opcode::IBV_WR_RDMA_WRITE => {
                sys::ibv_wr_rdma_write(queue_pair, rdma.rkey, rdma.remote_addr);
            }
            opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                sys::ibv_wr_rdma_write_imm(queue_pair, rdma.rkey, rdma.remote_addr, immediate);
            }
            opcode::IBV_WR_RDMA_READ => {
                sys::ibv_wr_rdma_read(queue_pair, rdma.rkey, rdma.remote_addr);
            }
            opcode::IBV_WR_ATOMIC_CMP_AND_SWP => sys::ibv_wr_atomic_cmp_swp(
                queue_pair,
                atomic.rkey,
                atomic.remote_addr,
                atomic.compare_add,
                atomic.swap,
            ),
            opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => sys::ibv_wr_atomic_fetch_add(
                queue_pair,
                atomic.rkey,
                atomic.remote_addr,
                atomic.compare_add,
            ),
            opcode::IBV_WR_ATOMIC_WRITE => sys::ibv_wr_atomic_write(
                queue_pair,
                atomic.rkey,
                atomic.remote_addr,
                (&raw const atomic.compare_add).cast(),
            ),
            opcode::IBV_WR_TSO => {
                let tso = &wr.__bindgen_anon_2.tso;
                sys::ibv_wr_send_tso(queue_pair, tso.hdr, tso.hdr_sz, tso.mss);
            }
            opcode::IBV_WR_BIND_MW => {
                let bind = &wr.__bindgen_anon_2.bind_mw;
                sys::ibv_wr_bind_mw(queue_pair, bind.mw, bind.rkey, &bind.bind_info);
                return true;
            }
            opcode::IBV_WR_LOCAL_INV => {
                sys::ibv_wr_local_inv(queue_pair, key);
                return true;
            }
            FLUSH => {
                // The queue pair was created for flushes, so the driver's struct is long enough to
                // contain this function.
                let Some(flush) = (*queue_pair.cast::<NewerQpEx>()).wr_flush else {
                    return false;
                };
                let [kind, level, ..] = atomic.swap.to_le_bytes();
                let len = atomic.compare_add as usize;
                flush(
                    queue_pair,
                    atomic.rkey,
                    atomic.remote_addr,
                    len,
                    kind,
                    level,
                );
            }
            _ => return false,
        }
        set_target(queue_pair, wr);
        set_data(queue_pair, wr);
    }
    true
}

/// Sets the destination of the request that [`describe`] has begun, if the type of the queue pair
/// needs one.
///
/// # Safety
///
/// `wr` must be the request that [`describe`] has just begun on this queue pair.
unsafe fn set_target(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) {
    // SAFETY: the kind of the queue pair determines the variants of the request's unions.
    unsafe {
        match (*queue_pair).qp_base.qp_type {
            sys::ibv_qp_type::IBV_QPT_UD | sys::ibv_qp_type::IBV_QPT_DRIVER => {
                let to = &wr.wr.ud;
                sys::ibv_wr_set_ud_addr(queue_pair, to.ah, to.remote_qpn, to.remote_qkey);
            }
            sys::ibv_qp_type::IBV_QPT_XRC_SEND => {
                sys::ibv_wr_set_xrc_srqn(queue_pair, wr.qp_type.xrc.remote_srqn);
            }
            _ => {}
        }
    }
}

/// Passes the elements or the inline data of `wr` to the request that [`describe`] has begun.
///
/// # Safety
///
/// `wr` must be the request that [`describe`] has just begun on this queue pair.
unsafe fn set_data(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) {
    let count = wr.num_sge as usize;
    let inline = wr.send_flags & sys::ibv_send_flags::IBV_SEND_INLINE.0 as std::ffi::c_uint != 0;
    if count == 1 {
        // SAFETY: the caller guarantees one element, and valid data for an inline request.
        unsafe {
            let sys::ibv_sge { addr, length, lkey } = *wr.sg_list;
            if inline {
                let data = ptr::with_exposed_provenance_mut(addr as usize);
                sys::ibv_wr_set_inline_data(queue_pair, data, length as usize);
            } else {
                sys::ibv_wr_set_sge(queue_pair, lkey, addr, length);
            }
        }
        return;
    }
    if !inline {
        // SAFETY: the caller guarantees `count` elements.
        unsafe { sys::ibv_wr_set_sge_list(queue_pair, count, wr.sg_list) };
        return;
    }
    let mut pieces = [const { MaybeUninit::<sys::ibv_data_buf>::uninit() }; MAX_ELEMENTS];
    for (index, piece) in pieces.iter_mut().enumerate().take(count) {
        // SAFETY: the caller guarantees `count` elements.
        let element = unsafe { &*wr.sg_list.add(index) };
        piece.write(sys::ibv_data_buf {
            addr: ptr::with_exposed_provenance_mut(element.addr as usize),
            length: element.length as usize,
        });
    }
    // SAFETY: `count` pieces were written, and the caller guarantees that their data is valid.
    unsafe { sys::ibv_wr_set_inline_data_list(queue_pair, count, pieces.as_ptr().cast()) };
}

const _: () = assert!(mem::offset_of!(NewerQpEx, wr_flush) == size_of::<sys::ibv_qp_ex>());
