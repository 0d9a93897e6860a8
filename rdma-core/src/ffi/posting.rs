//! Handing work requests to the device, by `ibv_post_send` or by the functions `ibv_wr_*`.

use std::mem::{self, MaybeUninit};
use std::ptr;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_wr_opcode as opcode;

use super::context::positive;
use super::elements::MAX_ELEMENTS;
use super::queue_pair::QueuePairHandle;
use super::request::FLUSH;
use crate::error::{Error, Result};

/// What is behind the functions of `ibv_qp_ex` that the oldest headers have.
#[repr(C)]
struct Later {
    _known: sys::ibv_qp_ex,
    wr_flush: Option<unsafe extern "C" fn(*mut sys::ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

impl QueuePairHandle {
    /// Posts one send request.
    ///
    /// # Safety
    ///
    /// The elements that `wr` points at are valid for this call, and it has no next. If it succeeds,
    /// the memory that they name stays where it is, and unreachable in every way that its type does
    /// not allow the device as well, until the request has completed or the queue pair is destroyed;
    /// that of an inline request, and headers of a segmented one, are valid for this call. An
    /// address handle stays until the request has completed. The operation is one that the queue
    /// pair was made for.
    #[inline]
    pub(super) unsafe fn post_send(&self, wr: &mut sys::ibv_send_wr) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.post_sends(wr) }.map_err(|(error, _)| error)
    }

    /// What usual requests are posted to, by whoever keeps this handle.
    #[inline]
    pub(super) fn usual(&self) -> UsualQueuePair {
        UsualQueuePair(self.as_raw())
    }

    /// The error of [`UsualQueuePair::post_send`].
    #[cold]
    pub(super) fn post_send_error(&self, errno: i32) -> Error {
        self.post_error("ibv_post_send", errno)
    }

    /// Posts a list of send requests in one call. With an error comes the first request that was
    /// not posted; those before it were.
    ///
    /// # Safety
    ///
    /// As [`Self::post_send`], for each of the list, whose last has no next.
    #[inline]
    pub(super) unsafe fn post_sends(
        &self,
        first: &mut sys::ibv_send_wr,
    ) -> Result<(), (Error, *mut sys::ibv_send_wr)> {
        let first_opcode = first.opcode;
        let first = ptr::from_mut(first);
        // Whoever fails and does not say where has posted nothing: libibverbs itself does so for a
        // provider that lacks the function.
        let mut bad = first;
        let (verb, errno) = match self.as_extended() {
            // SAFETY: the caller vouches for the request.
            _ if first_opcode == opcode::IBV_WR_BIND_MW && unsafe { is_bound_alone(first) } => {
                // SAFETY: the queue pair is valid; the caller vouches for the request.
                ("ibv_bind_mw", unsafe { bind(self.as_raw(), first) })
            }
            // SAFETY: the queue pair is valid; the caller vouches for requests and memory.
            Some(queue_pair) if !unsafe { is_for_lists(first) } => ("ibv_wr_complete", unsafe {
                post_extended(queue_pair, first)
            }),
            // SAFETY: as above.
            _ => ("ibv_post_send", unsafe {
                sys::ibv_post_send(self.as_raw(), first, &mut bad)
            }),
        };
        if errno == 0 {
            return Ok(());
        }
        Err((self.post_error(verb, errno), bad))
    }

    /// Posts one receive request.
    ///
    /// # Safety
    ///
    /// As [`Self::post_send`].
    #[inline]
    pub(super) unsafe fn post_receive(&self, wr: &mut sys::ibv_recv_wr) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.post_receives(wr) }.map_err(|(error, _)| error)
    }

    /// The error of [`UsualQueuePair::post_receive`].
    #[cold]
    pub(super) fn post_receive_error(&self, errno: i32) -> Error {
        self.post_error("ibv_post_recv", errno)
    }

    /// Posts a list of receive requests in one call, as [`Self::post_sends`] does.
    ///
    /// # Safety
    ///
    /// As [`Self::post_sends`].
    #[inline]
    pub(super) unsafe fn post_receives(
        &self,
        first: &mut sys::ibv_recv_wr,
    ) -> Result<(), (Error, *mut sys::ibv_recv_wr)> {
        let first = ptr::from_mut(first);
        let mut bad = first;
        // SAFETY: the queue pair is valid; the caller vouches for requests and memory.
        let errno = unsafe { sys::ibv_post_recv(self.as_raw(), first, &mut bad) };
        if errno == 0 {
            return Ok(());
        }
        Err((self.post_error("ibv_post_recv", errno), bad))
    }

    #[cold]
    fn post_error(&self, verb: &'static str, errno: i32) -> Error {
        Error::verb(verb, self.describe(), positive(errno))
    }
}

/// The C object of a queue pair, beside the handle that keeps it: that is a step less on the way of
/// every request.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsualQueuePair(*mut sys::ibv_qp);

// SAFETY: verbs are thread-safe on a queue pair.
unsafe impl Send for UsualQueuePair {}
// SAFETY: as above.
unsafe impl Sync for UsualQueuePair {}

impl UsualQueuePair {
    /// Posts one send request by `ibv_post_send`, and returns what it returns.
    ///
    /// # Safety
    ///
    /// As [`QueuePairHandle::post_send`], for what the opcode of `wr` says that is there of it. The
    /// handle is still there, and the queue pair was not made for `ibv_wr_*`.
    #[inline(always)]
    pub(super) unsafe fn post_send(self, wr: *mut sys::ibv_send_wr) -> i32 {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the caller vouches for the queue pair, the request and its memory. Where a list of
        // one stopped needs not be looked at.
        unsafe { sys::ibv_post_send(self.0, wr, bad.as_mut_ptr()) }
    }

    /// Posts one receive request, and returns what `ibv_post_recv` returns.
    ///
    /// # Safety
    ///
    /// As [`QueuePairHandle::post_receive`]. The handle is still there.
    #[inline(always)]
    pub(super) unsafe fn post_receive(self, wr: *mut sys::ibv_recv_wr) -> i32 {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: as in `post_send`.
        unsafe { sys::ibv_post_recv(self.0, wr, bad.as_mut_ptr()) }
    }
}

/// Whether a request that binds is of a window of type 1, which has a verb of its own.
///
/// # Safety
///
/// The request is one that binds a window.
#[cold]
unsafe fn is_bound_alone(wr: *const sys::ibv_send_wr) -> bool {
    // SAFETY: the opcode says that this variant is there, and the window is, since the request is
    // kept with it.
    unsafe { (*(*wr).__bindgen_anon_2.bind_mw.mw).type_ == sys::ibv_mw_type::IBV_MW_TYPE_1 }
}

/// Posts a request that binds a window of type 1.
///
/// # Safety
///
/// As [`QueuePairHandle::post_sends`], for a request that binds a window and has no next.
#[cold]
unsafe fn bind(queue_pair: *mut sys::ibv_qp, wr: *const sys::ibv_send_wr) -> i32 {
    // SAFETY: the opcode says that this variant is there; the caller vouches for the rest.
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

/// Whether a list of requests that could be posted by the functions `ibv_wr_*` is posted by
/// `ibv_post_send` all the same, which may be used on such queue pairs as well (ibv_wr_post(3)): where
/// a request has several elements. Drivers are known whose `ibv_wr_set_sge_list` and
/// `ibv_wr_set_inline_data_list` count the bytes wrongly, so that a part of the message is sent: that
/// of Linux's Soft-RoCE in every release of rdma-core before 2026.
///
/// # Safety
///
/// As [`post_extended`].
#[inline]
unsafe fn is_for_lists(first: *const sys::ibv_send_wr) -> bool {
    let (mut lists, mut next) = (false, first);
    // SAFETY: the caller's list, whose last request has no next.
    while let Some(wr) = unsafe { next.as_ref() } {
        if matches!(wr.opcode, opcode::IBV_WR_ATOMIC_WRITE | FLUSH) {
            return false;
        }
        lists |= wr.num_sge > 1;
        next = wr.next;
    }
    lists
}

/// Posts a list by the functions `ibv_wr_*`, all of it or nothing.
///
/// Between start and complete the provider holds the queue pair's lock, so nothing here may panic,
/// and nothing of the caller's runs.
///
/// # Safety
///
/// As [`QueuePairHandle::post_sends`]; no request has more than [`MAX_ELEMENTS`] elements.
unsafe fn post_extended(queue_pair: *mut sys::ibv_qp_ex, first: *mut sys::ibv_send_wr) -> i32 {
    // SAFETY: the queue pair is valid, and was made for these functions.
    unsafe { sys::ibv_wr_start(queue_pair) };
    let mut next: *const sys::ibv_send_wr = first;
    // SAFETY: the caller's list, whose last request has no next.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: the queue pair was started, and the caller vouches for the request.
        if !unsafe { describe(queue_pair, wr) } {
            // SAFETY: the queue pair was started.
            unsafe { sys::ibv_wr_abort(queue_pair) };
            return libc::EINVAL;
        }
        next = wr.next;
    }
    // SAFETY: as above.
    unsafe { sys::ibv_wr_complete(queue_pair) }
}

/// Tells a request to a queue pair that was started; `false` if it is none.
///
/// # Safety
///
/// As [`post_extended`].
unsafe fn describe(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) -> bool {
    // SAFETY: the queue pair is valid, and between start and complete these fields are this
    // thread's; the opcode says which variants of the request's unions are there, and the queue
    // pair was made for it, so its function is there.
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
                // The queue pair was made for flushes, so its library knows where this function is.
                let Some(flush) = (*queue_pair.cast::<Later>()).wr_flush else {
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

/// # Safety
///
/// As [`describe`], of whose request this completes.
unsafe fn set_target(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) {
    // SAFETY: the kind of queue pair says which variants are there.
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

/// # Safety
///
/// As [`describe`], of whose request this completes.
unsafe fn set_data(queue_pair: *mut sys::ibv_qp_ex, wr: &sys::ibv_send_wr) {
    let count = wr.num_sge as usize;
    let inline = wr.send_flags & sys::ibv_send_flags::IBV_SEND_INLINE.0 as std::ffi::c_uint != 0;
    if count == 1 {
        // SAFETY: the request's element is there, and the data that it names if that is copied.
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
        // SAFETY: the request's elements are there.
        unsafe { sys::ibv_wr_set_sge_list(queue_pair, count, wr.sg_list) };
        return;
    }
    let mut pieces = [const { MaybeUninit::<sys::ibv_data_buf>::uninit() }; MAX_ELEMENTS];
    for (index, piece) in pieces.iter_mut().enumerate().take(count) {
        // SAFETY: the request has so many elements.
        let element = unsafe { &*wr.sg_list.add(index) };
        piece.write(sys::ibv_data_buf {
            addr: ptr::with_exposed_provenance_mut(element.addr as usize),
            length: element.length as usize,
        });
    }
    // SAFETY: so many pieces were written, and the caller vouches for the data they name.
    unsafe { sys::ibv_wr_set_inline_data_list(queue_pair, count, pieces.as_ptr().cast()) };
}

const _: () = assert!(mem::offset_of!(Later, wr_flush) == size_of::<sys::ibv_qp_ex>());
