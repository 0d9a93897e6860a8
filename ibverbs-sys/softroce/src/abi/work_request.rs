//! Posting of send and receive requests.

use std::slice;

use ibverbs_sys::{
    ibv_access_flags, ibv_ah, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_qp,
    ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use libc::c_int;

use super::in_place::{Requests, message, segments};
use super::queue_pair::{QueuePairHandle, object};
use super::{ah, number, verb};
use crate::fault::Verb;
use crate::memory::window_access;
use crate::proto::{
    Inline, ReceiveRequest, Remote, Segment, SendOperation, Service, WindowBinding,
};
use crate::queue_pair::{Address, Draft, PostError, Rules};

/// Posts a list of send requests to a queue pair (`ibv_post_send(3)`).
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let failed = |errno| {
        // SAFETY: the C API requires `bad_wr` to be valid for writes.
        unsafe { bad_wr.write(wr) };
        errno
    };
    verb(Verb::PostSend, failed, || {
        // SAFETY: only contexts of this device have this function, so the queue pair belongs to it.
        let object = unsafe { object(qp) };
        let queue_pair = object.queue_pair();
        object.nic().post(queue_pair, |sender| {
            // SAFETY: the C API requires a list of valid requests that ends with a null pointer.
            // The data that their fields refer to is valid during the call.
            let mut list = unsafe { Requests::new(wr, queue_pair.rules()) };
            sender.execute(&mut list);
            let mut next = list.next_request();
            let mut gathered = Inline::new();
            // SAFETY: the C API requires a list of valid requests that ends with a null pointer.
            while let Some(request) = unsafe { next.as_ref() } {
                // SAFETY: the C API requires the data that the request's fields refer to.
                let message = unsafe { message(request, queue_pair.rules(), &mut gathered) };
                if message.is_some_and(|(message, data)| sender.post_ring_message(&message, data)) {
                    next = request.next;
                    continue;
                }
                // SAFETY: the C API requires the data that the request's fields refer to.
                let posted = unsafe { draft(object, request) }
                    .and_then(|draft| draft.finish(queue_pair.rules()))
                    .and_then(|request| sender.post(request));
                if let Err(error) = posted {
                    // SAFETY: the C API requires `bad_wr` to be valid for writes.
                    unsafe { bad_wr.write(next) };
                    return error.errno();
                }
                next = request.next;
            }
            0
        })
    })
}

/// Posts a list of receive requests to a queue pair (`ibv_post_recv(3)`).
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let failed = |errno| {
        // SAFETY: the C API requires `bad_wr` to be valid for writes.
        unsafe { bad_wr.write(wr) };
        errno
    };
    verb(Verb::PostRecv, failed, || {
        // SAFETY: only contexts of this device have this function, so the queue pair belongs to it.
        let queue_pair = unsafe { object(qp) }.queue_pair();
        let mut receiver = queue_pair.receiver();
        let mut next = wr;
        // SAFETY: the C API requires a list of valid requests that ends with a null pointer.
        while let Some(request) = unsafe { next.as_ref() } {
            let posted = usize::try_from(request.num_sge)
                .map_err(|_| PostError::Segments)
                .and_then(|count| queue_pair.rules().receive_segments(count))
                .and_then(|count| {
                    // SAFETY: the C API requires `num_sge` valid segments.
                    let list = unsafe { segments(request.sg_list, count) };
                    receiver.post(ReceiveRequest::new(request.wr_id, list))
                });
            if let Err(error) = posted {
                // SAFETY: the C API requires `bad_wr` to be valid for writes.
                unsafe { bad_wr.write(next) };
                return error.errno();
            }
            next = request.next;
        }
        0
    })
}

/// Converts a send request of the C ABI to a [`Draft`], a request that is checked later. `object`
/// is the queue pair to which the request is posted.
///
/// # Safety
/// The data to which the request's fields refer, according to its opcode and flags, must be valid.
unsafe fn draft(object: &QueuePairHandle, request: &ibv_send_wr) -> Result<Draft, PostError> {
    let rules = object.queue_pair().rules();
    // SAFETY: the caller guarantees a valid request. The opcode determines which parts of the
    // unions are set.
    let operation = unsafe {
        let immediate = || Some(request.__bindgen_anon_1.imm_data.to_ne_bytes());
        let key = || request.__bindgen_anon_1.invalidate_rkey;
        let remote = || Remote {
            address: request.wr.rdma.remote_addr,
            key: request.wr.rdma.rkey,
        };
        let atomic = || Remote {
            address: request.wr.atomic.remote_addr,
            key: request.wr.atomic.rkey,
        };
        match request.opcode {
            ibv_wr_opcode::IBV_WR_SEND => SEND,
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => SendOperation::Send {
                immediate: immediate(),
                invalidate: None,
            },
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => SendOperation::Send {
                immediate: None,
                invalidate: Some(key()),
            },
            ibv_wr_opcode::IBV_WR_RDMA_WRITE => SendOperation::Write {
                remote: remote(),
                immediate: None,
            },
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::Write {
                remote: remote(),
                immediate: immediate(),
            },
            ibv_wr_opcode::IBV_WR_RDMA_READ => SendOperation::Read { remote: remote() },
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => SendOperation::CompareSwap {
                remote: atomic(),
                compare: request.wr.atomic.compare_add,
                swap: request.wr.atomic.swap,
            },
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => SendOperation::FetchAdd {
                remote: atomic(),
                add: request.wr.atomic.compare_add,
            },
            ibv_wr_opcode::IBV_WR_LOCAL_INV => SendOperation::LocalInvalidate { key: key() },
            ibv_wr_opcode::IBV_WR_BIND_MW => {
                let bind = &request.__bindgen_anon_2.bind_mw;
                self::bind(bind.mw, bind.rkey, &bind.bind_info)?
            }
            _ => return Err(PostError::Operation),
        }
    };
    let is_local = matches!(
        operation,
        SendOperation::Bind(_) | SendOperation::LocalInvalidate { .. }
    );
    let mut draft = Draft::new(request.wr_id, request.send_flags, operation);
    if !is_local {
        // SAFETY: the caller guarantees `num_sge` valid segments, and valid bytes if they are
        // inline.
        unsafe {
            if request.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                draft.inline(inline(request, rules)?);
            } else {
                draft.gather(sge_list(request, rules)?.iter().map(segment));
            }
        }
    }
    match rules.service {
        // SAFETY: the caller guarantees a valid request. UD requests have this part of the union.
        Service::UnreliableDatagram => unsafe {
            let to = &request.wr.ud;
            draft.address(address(object, to.ah, to.remote_qpn, to.remote_qkey)?);
        },
        // SAFETY: the caller guarantees a valid request. XRC requests have this part of the union.
        Service::XrcInitiator => unsafe { draft.xrc_srq(request.qp_type.xrc.remote_srqn) },
        _ => {}
    }
    Ok(draft)
}

/// The plain Send operation: without immediate data, and without a memory key to invalidate.
pub(super) const SEND: SendOperation = SendOperation::Send {
    immediate: None,
    invalidate: None,
};

pub(super) fn segment(piece: &ibv_sge) -> Segment {
    Segment {
        address: piece.addr,
        length: piece.length,
        key: piece.lkey,
    }
}

/// Copies the inline data of a send request. Fails if the request has more segments or bytes than
/// `rules`, the limits of the queue pair, allow.
///
/// # Safety
/// The segments of the request and their bytes must be valid.
pub(super) unsafe fn inline(request: &ibv_send_wr, rules: &Rules) -> Result<Inline, PostError> {
    // SAFETY: the caller guarantees valid segments.
    let places = (unsafe { sge_list(request, rules)? }.iter())
        .map(|piece| (piece.addr as usize, piece.length as usize));
    // SAFETY: the caller guarantees valid bytes.
    unsafe { copy(rules, places) }
}

/// Returns the scatter/gather list of the send request `wr`. Fails if the list is longer than
/// `rules`, the limits of the queue pair, allow.
///
/// # Safety
/// The segments must be valid while the result is used.
unsafe fn sge_list<'a>(wr: &'a ibv_send_wr, rules: &Rules) -> Result<&'a [ibv_sge], PostError> {
    let count = usize::try_from(wr.num_sge).map_err(|_| PostError::Segments)?;
    let count = rules.send_segments(count)?;
    // SAFETY: the caller guarantees `num_sge` valid segments.
    Ok(unsafe { slice(wr.sg_list, count) })
}

/// Returns an array in C memory as a slice: the `count` elements at `list`. The pointer may be null
/// if `count` is 0.
///
/// # Safety
/// Unless `list` is null, it must point to `count` elements, which must be valid while the slice is
/// used.
pub(super) unsafe fn slice<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees `count` valid elements.
    unsafe { slice::from_raw_parts(list, count) }
}

/// Returns a copy of the inline data of a send request. `places` are the addresses and lengths of
/// the pieces of the data. Fails if the data is longer than the limit in `rules` allows.
///
/// # Safety
/// The bytes at the given addresses must be valid for reads.
pub(super) unsafe fn copy(
    rules: &Rules,
    places: impl Iterator<Item = (usize, usize)> + Clone,
) -> Result<Inline, PostError> {
    let total = (places.clone())
        .map(|(_, length)| length as u64)
        .fold(0, u64::saturating_add);
    let mut data = Inline::with_capacity(rules.inline(total)? as usize);
    for (address, length) in places.filter(|(_, length)| *length > 0) {
        // SAFETY: the caller guarantees that the bytes are valid for reads.
        data.extend_from_slice(unsafe {
            slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length)
        });
    }
    Ok(data)
}

/// Returns the destination of a datagram: the path of the address handle `handle`, the queue pair
/// number `destination` and the queue key `queue_key`. Fails unless the address handle has the
/// protection domain of the queue pair `object` (IBTA 10.2.5).
///
/// # Safety
/// `handle` must be null, or a valid address handle of softroce or of another verbs library.
pub(super) unsafe fn address(
    object: &QueuePairHandle,
    handle: *mut ibv_ah,
    destination: u32,
    queue_key: u32,
) -> Result<Address, PostError> {
    if handle.is_null() {
        return Err(PostError::Address);
    }
    // SAFETY: the caller guarantees a valid handle. A handle with a context of this device belongs
    // to this device.
    unsafe {
        if !super::is_ours((*handle).context) {
            return Err(PostError::Address);
        }
        let handle = ah::handle(handle);
        if Some(handle.domain().id()) != object.queue_pair().domain() {
            return Err(PostError::Address);
        }
        Ok(Address {
            path: *handle.path(),
            destination,
            queue_key,
        })
    }
}

/// Posts a request that binds a memory window of type 1 to a region (`ibv_bind_mw(3)`). On success,
/// stores the window's new key in the `ibv_mw`, and returns 0. Returns an error number if the
/// request is invalid. For example, the window must not have type 2, and must not become zero-based
/// (IBTA o10-36.2.2). Other errors are reported by the completion of the request.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    verb(Verb::BindMw, number, || {
        // SAFETY: only contexts of this device have this function, so the queue pair belongs to it.
        // The C API requires a valid window and valid attributes.
        let (object, bind, window) = unsafe { (object(qp), &*mw_bind, &mut *mw) };
        let queue_pair = object.queue_pair();
        // The upper 24 bits are the window's index; the low 8 bits change with each binding (IBTA
        // 10.6.7.2.2).
        let key = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
        let zero_based = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        let is_refused = window.type_ != ibv_mw_type::IBV_MW_TYPE_1
            || bind.bind_info.mw_access_flags & zero_based != 0;
        if is_refused {
            return PostError::Bind.errno();
        }
        // SAFETY: the C API requires the region to be null or valid.
        let posted = unsafe { binding(window, key, &bind.bind_info) }
            .and_then(|binding| queue_pair.post_bind(bind.wr_id, bind.send_flags, binding));
        match posted {
            Ok(()) => {
                window.rkey = key;
                object.nic().transmit(queue_pair);
                0
            }
            Err(error) => error.errno(),
        }
    })
}

/// Converts the attributes `info` of a bind request to a [`WindowBinding`], the form in which
/// softroce uses them. `window` is the memory window that the request binds, and `key` is its new
/// key.
///
/// # Safety
/// The region in `info` must be null, or a valid region of softroce or of another verbs library.
unsafe fn binding(
    window: &ibv_mw,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<WindowBinding, PostError> {
    // SAFETY: the caller guarantees that the region is null or valid.
    let region = unsafe { info.mr.as_ref() };
    if region.is_none() && info.length > 0 {
        return Err(PostError::Bind);
    }
    Ok(WindowBinding {
        window: window.rkey,
        key,
        region: region.map_or(0, |region| region.lkey),
        address: info.addr,
        length: info.length,
        access: window_access(info.mw_access_flags),
    })
}

/// Returns the send operation that binds the memory window `window` to the region and the range in
/// `info`. `key` is the key that the window gets. The window may be of either type, as with the
/// kernel's Soft-RoCE and with network cards.
///
/// # Safety
/// The window and the region in `info` must each be null, or a valid object of softroce or of
/// another verbs library.
pub(super) unsafe fn bind(
    window: *const ibv_mw,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOperation, PostError> {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe {
        let window = window.as_ref().ok_or(PostError::Bind)?;
        binding(window, key, info).map(SendOperation::Bind)
    }
}
