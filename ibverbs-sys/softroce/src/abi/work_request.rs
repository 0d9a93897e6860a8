//! Posting: lists of requests, and the functions of `ibv_qp_ex`, which a queue pair of ours has all of.

use std::mem::offset_of;
use std::slice;

use bitflags::bitflags;
use ibverbs_sys::{
    ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_qp, ibv_qp_ex,
    ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use libc::{c_int, c_void};

use super::queue_pair::{Object, object};
use super::{ah, guard, number, verb};
use crate::fault::Verb;
use crate::memory::window_access;
use crate::proto::{
    GatherList, Inline, ReceiveRequest, Remote, Segment, SendOperation, Service, WindowBinding,
};
use crate::queue_pair::{
    Action, Address, Data, Draft, List, OneSided, PostError, Rules, Saying, SayingData,
};

/// `ibv_post_send(3)`
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let failed = |errno| {
        // SAFETY: the caller has room for a pointer.
        unsafe { bad_wr.write(wr) };
        errno
    };
    verb(Verb::PostSend, failed, || {
        // SAFETY: the queue pair is ours.
        let object = unsafe { object(qp) };
        let queue_pair = object.queue_pair();
        let mut sender = queue_pair.sender();
        // SAFETY: the caller gives a list of requests, whose last one has no next; what hangs on one is what its fields say.
        let mut list = unsafe { Requests::new(wr, queue_pair.rules()) };
        sender.do_at_once(&mut list);
        let mut next = list.next.cast_mut();
        if next.is_null() {
            return 0;
        }
        let mut answer = 0;
        // SAFETY: the caller gives a list of requests, whose last one has no next.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: the caller's list; what hangs on a request is what its fields say.
            let saying = unsafe { saying(request, queue_pair.rules()) };
            if saying.is_some_and(|saying| sender.say(&saying)) {
                next = request.next;
                continue;
            }
            // SAFETY: as above.
            let posted = unsafe { describe(object, request) }
                .and_then(|draft| draft.finish(queue_pair.rules()))
                .and_then(|request| sender.post(request));
            if let Err(error) = posted {
                // SAFETY: the caller has room for a pointer.
                unsafe { bad_wr.write(next) };
                answer = error.errno();
                break;
            }
            next = request.next;
        }
        object.nic().send(sender);
        answer
    })
}

/// What is left of a list of requests.
struct Requests<'a> {
    next: *const ibv_send_wr,
    rules: &'a Rules,
}

impl<'a> Requests<'a> {
    /// # Safety
    /// Null, or a list whose last request has no next; it and what hangs on its requests, as their fields say, is there for
    /// as long as `'a`.
    unsafe fn new(next: *const ibv_send_wr, rules: &'a Rules) -> Self {
        Self { next, rules }
    }
}

impl<'a> List<'a> for Requests<'a> {
    #[inline]
    fn peek(&self) -> Option<OneSided<'a>> {
        const TAKEN: u32 = ibv_send_flags::IBV_SEND_FENCE.0
            | ibv_send_flags::IBV_SEND_SIGNALED.0
            | ibv_send_flags::IBV_SEND_SOLICITED.0
            | ibv_send_flags::IBV_SEND_INLINE.0;
        // SAFETY: of the list, as `new` was promised.
        let request = unsafe { self.next.as_ref()? };
        let flags = request.send_flags;
        let count = usize::try_from(request.num_sge).ok()?;
        if flags & !TAKEN != 0 || count > self.rules.capabilities.max_send_sge as usize {
            return None;
        }
        // SAFETY: the opcode says which parts of the union are there.
        let (action, remote) = unsafe {
            let wr = &request.wr;
            let (rdma, atomic) = (&wr.rdma, &wr.atomic);
            match request.opcode {
                ibv_wr_opcode::IBV_WR_RDMA_WRITE => (Action::Write, (rdma.remote_addr, rdma.rkey)),
                ibv_wr_opcode::IBV_WR_RDMA_READ => (Action::Read, (rdma.remote_addr, rdma.rkey)),
                ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let add = atomic.compare_add;
                    (Action::FetchAdd { add }, (atomic.remote_addr, atomic.rkey))
                }
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                    let (compare, swap) = (atomic.compare_add, atomic.swap);
                    let action = Action::CompareSwap { compare, swap };
                    (action, (atomic.remote_addr, atomic.rkey))
                }
                _ => return None,
            }
        };
        // SAFETY: so many pieces are there, and what they say of inline data.
        let data = unsafe {
            if flags & ibv_send_flags::IBV_SEND_INLINE.0 == 0 {
                Data::Gathered(pieces(request.sg_list.cast(), count))
            } else {
                let [piece] = pieces::<ibv_sge>(request.sg_list, count) else {
                    return None;
                };
                if piece.length == 0 || piece.length > self.rules.capabilities.max_inline_data {
                    return None;
                }
                let start = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
                Data::Inline(slice::from_raw_parts(start, piece.length as usize))
            }
        };
        let (address, key) = remote;
        Some(OneSided {
            id: request.wr_id,
            action,
            remote: Remote { address, key },
            data,
            signaled: flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0,
        })
    }

    #[inline]
    fn advance(&mut self) -> Option<OneSided<'a>> {
        // SAFETY: of the list, as `new` was promised.
        self.next = unsafe { self.next.as_ref()? }.next;
        self.peek()
    }
}

// A list of pieces is one of segments.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Segment>()
        && align_of::<ibv_sge>() >= align_of::<Segment>()
        && offset_of!(ibv_sge, addr) == offset_of!(Segment, address)
        && offset_of!(ibv_sge, length) == offset_of!(Segment, length)
        && offset_of!(ibv_sge, lkey) == offset_of!(Segment, key)
);

/// `ibv_post_recv(3)`
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let failed = |errno| {
        // SAFETY: the caller has room for a pointer.
        unsafe { bad_wr.write(wr) };
        errno
    };
    verb(Verb::PostRecv, failed, || {
        // SAFETY: the queue pair is ours.
        let queue_pair = unsafe { object(qp) }.queue_pair();
        let mut receiver = queue_pair.receiver();
        let mut next = wr;
        // SAFETY: the caller gives a list of requests, whose last one has no next.
        while let Some(request) = unsafe { next.as_ref() } {
            let posted = usize::try_from(request.num_sge)
                .map_err(|_| PostError::Segments)
                .and_then(|count| queue_pair.rules().receive_segments(count))
                .and_then(|count| {
                    // SAFETY: the caller gives so many pieces.
                    let segments: GatherList = unsafe { pieces(request.sg_list, count) }
                        .iter()
                        .map(segment)
                        .collect();
                    receiver.post(ReceiveRequest {
                        id: request.wr_id,
                        length: segments.iter().map(|s| u64::from(s.length)).sum(),
                        segments,
                    })
                });
            if let Err(error) = posted {
                // SAFETY: the caller has room for a pointer.
                unsafe { bad_wr.write(next) };
                return error.errno();
            }
            next = request.next;
        }
        0
    })
}

/// A request that is a message of at most one piece, which nothing speaks against.
///
/// # Safety
/// What the opcode and the flags say is in the request, is there for as long as the answer is used.
#[inline]
unsafe fn saying<'a>(request: &'a ibv_send_wr, rules: &Rules) -> Option<Saying<'a>> {
    const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
    const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
    const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
    let flags = request.send_flags;
    let immediate = match request.opcode {
        ibv_wr_opcode::IBV_WR_SEND => None,
        // SAFETY: the opcode says that this part of the union is there.
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => unsafe {
            Some(request.__bindgen_anon_1.imm_data.to_ne_bytes())
        },
        _ => return None,
    };
    let is_plain = rules.service == Service::ReliableConnection
        && flags & !(SIGNALED | SOLICITED | INLINE) == 0
        && request.num_sge == 1
        && rules.capabilities.max_send_sge >= 1;
    if !is_plain || request.sg_list.is_null() {
        return None;
    }
    // SAFETY: the caller gives a piece, and the bytes of one that is inline.
    let data = unsafe {
        let piece = &*request.sg_list;
        if flags & INLINE == 0 {
            SayingData::Gathered(segment(piece))
        } else if (1..=rules.capabilities.max_inline_data).contains(&piece.length) {
            let start = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            SayingData::Inline(slice::from_raw_parts(start, piece.length as usize))
        } else {
            return None;
        }
    };
    Some(Saying {
        id: request.wr_id,
        data,
        immediate,
        signaled: flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
    })
}

/// Reads a request.
///
/// # Safety
/// What the opcode and the flags say is in the request, is there.
unsafe fn describe(object: &Object, request: &ibv_send_wr) -> Result<Draft, PostError> {
    let rules = object.queue_pair().rules();
    // SAFETY: the caller's promise: the opcode says which parts of the unions are there.
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
        let count = usize::try_from(request.num_sge).map_err(|_| PostError::Segments)?;
        let count = rules.send_segments(count)?;
        // SAFETY: the caller gives so many pieces, of data if it is inline.
        unsafe {
            let pieces = pieces(request.sg_list, count);
            if request.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                let places = pieces
                    .iter()
                    .map(|piece| (piece.addr as usize, piece.length as usize));
                draft.inline(copy(rules, places)?);
            } else {
                draft.gather(pieces.iter().map(segment));
            }
        }
    }
    match rules.service {
        // SAFETY: a request of such a queue pair has this part of the union.
        Service::UnreliableDatagram => unsafe {
            let to = &request.wr.ud;
            draft.address(address(object, to.ah, to.remote_qpn, to.remote_qkey)?);
        },
        // SAFETY: as above.
        Service::XrcInitiator => unsafe { draft.xrc_srq(request.qp_type.xrc.remote_srqn) },
        _ => {}
    }
    Ok(draft)
}

const SEND: SendOperation = SendOperation::Send {
    immediate: None,
    invalidate: None,
};

fn segment(piece: &ibv_sge) -> Segment {
    Segment {
        address: piece.addr,
        length: piece.length,
        key: piece.lkey,
    }
}

/// A list that may be null if it is empty.
///
/// # Safety
/// There are `count` elements at `list` for as long as the slice is used.
unsafe fn pieces<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(list, count) }
}

/// Copies inline data, as addresses and lengths give it.
///
/// # Safety
/// The bytes are there.
unsafe fn copy(
    rules: &Rules,
    places: impl Iterator<Item = (usize, usize)> + Clone,
) -> Result<Inline, PostError> {
    let total = (places.clone())
        .map(|(_, length)| length as u64)
        .fold(0, u64::saturating_add);
    let mut data = Inline::with_capacity(rules.inline(total)? as usize);
    for (address, length) in places.filter(|(_, length)| *length > 0) {
        // SAFETY: the caller's promise.
        data.extend_from_slice(unsafe {
            slice::from_raw_parts(std::ptr::with_exposed_provenance(address), length)
        });
    }
    Ok(data)
}

/// Where a datagram goes: with an address handle of the queue pair's protection domain (IBTA 10.2.5).
///
/// # Safety
/// `handle` is null or an address handle of some library.
unsafe fn address(
    object: &Object,
    handle: *mut ibv_ah,
    destination: u32,
    queue_key: u32,
) -> Result<Address, PostError> {
    if handle.is_null() {
        return Err(PostError::Address);
    }
    // SAFETY: the caller's promise; what has our context is ours.
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

/// `ibv_bind_mw(3)`: binds a window of type 1, to a key that is told at once. What is wrong beside the type,
/// the completion tells.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    verb(Verb::BindMw, number, || {
        // SAFETY: the queue pair is ours, and the caller gives a window and what to do with it.
        let (object, bind, window) = unsafe { (object(qp), &*mw_bind, &mut *mw) };
        let queue_pair = object.queue_pair();
        // The upper bits are the window's, the others change each time (IBTA 10.6.7.2.2).
        let key = window.rkey & !0xff | window.rkey.wrapping_add(1) & 0xff;
        let kind = ibv_mw_type::IBV_MW_TYPE_1;
        // SAFETY: the caller gives a region, if any.
        let posted = unsafe { binding(window, kind, key, &bind.bind_info) }
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

/// What a window is to be bound to.
///
/// # Safety
/// The region in the binding is null or one of some library.
unsafe fn binding(
    window: &ibv_mw,
    kind: ibv_mw_type,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<WindowBinding, PostError> {
    // SAFETY: the caller's promise.
    let region = unsafe { info.mr.as_ref() };
    let without = region.is_none() && info.length > 0;
    if window.type_ != kind || without {
        return Err(PostError::Bind);
    }
    Ok(WindowBinding {
        window: window.rkey,
        key,
        region: region.map_or(0, |region| region.lkey),
        address: info.addr,
        length: info.length,
        access: window_access(info.mw_access_flags).map_err(|_| PostError::Bind)?,
    })
}

/// The request that binds a window of type 2.
///
/// # Safety
/// The window and the region in the binding are null or of some library.
unsafe fn bind(
    window: *const ibv_mw,
    key: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOperation, PostError> {
    // SAFETY: the caller's promise.
    unsafe {
        let window = window.as_ref().ok_or(PostError::Bind)?;
        binding(window, ibv_mw_type::IBV_MW_TYPE_2, key, info).map(SendOperation::Bind)
    }
}

bitflags! {
    /// The bits of `ibv_qp_create_send_ops_flags` that the device has functions for.
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
    }
}

impl Operations {
    /// Whether queue pairs of this service have them all: the table of `ibv_wr_post(3)`.
    pub(super) fn fit(self, service: Service) -> bool {
        let datagrams = Self::SEND | Self::SEND_WITH_IMMEDIATE;
        match service {
            Service::ReliableConnection | Service::XrcInitiator => Self::all(),
            Service::UnreliableConnection => {
                Self::all() - Self::READ - Self::COMPARE_SWAP - Self::FETCH_ADD
            }
            Service::UnreliableDatagram => datagrams,
            Service::XrcTarget => Self::empty(),
        }
        .contains(self)
    }
}

/// Sets all functions, whatever they were asked for: C calls them unchecked. One that the queue pair
/// does not have makes its batch fail.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
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

/// Functions that newer headers have behind those of `ibv_qp_ex`: `wr_flush`, and room for more.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Later([unsafe extern "C" fn(*mut ibv_qp_ex); 8]);

impl Later {
    pub(super) fn new() -> Self {
        Self([wr_unknown; 8])
    }
}

/// Runs the body of a function that gives no answer, with what hangs on the queue pair.
///
/// # Safety
/// The queue pair is ours, and not destroyed meanwhile.
unsafe fn with(qp: *mut ibv_qp_ex, body: impl FnOnce(&Object)) {
    // SAFETY: the caller's promise; an extended queue pair begins with the plain one.
    guard((), || body(unsafe { object(qp.cast()) }));
}

/// Begins a request.
///
/// # Safety
/// As [`with`] says.
unsafe fn begin(qp: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: the caller's promise.
    unsafe {
        with(qp, |object| {
            let (id, flags) = object.next();
            let rules = object.queue_pair().rules();
            object.batch().begin(rules, id, flags, operation);
        });
    }
}

/// Begins one that the device does not have.
///
/// # Safety
/// As [`with`] says.
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe {
        with(qp, |object| {
            object.batch().refuse(object.queue_pair().rules());
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
    let remote = Remote {
        address: remote_addr,
        key: rkey,
    };
    let operation = SendOperation::CompareSwap {
        remote,
        compare,
        swap,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let remote = Remote {
        address: remote_addr,
        key: rkey,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, SendOperation::FetchAdd { remote, add }) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: only queue pairs of ours have this function, and the caller gives a window and where to bind it.
    unsafe {
        with(qp, |object| {
            let (id, flags) = object.next();
            let rules = object.queue_pair().rules();
            match bind(mw, rkey, &*bind_info) {
                Ok(operation) => object.batch().begin(rules, id, flags, operation),
                Err(error) => object.batch().poison(error),
            }
        });
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let operation = SendOperation::LocalInvalidate {
        key: invalidate_rkey,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let remote = Remote {
        address: remote_addr,
        key: rkey,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, SendOperation::Read { remote }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let remote = Remote {
        address: remote_addr,
        key: rkey,
    };
    let operation = SendOperation::Write {
        remote,
        immediate: None,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: u32,
) {
    let remote = Remote {
        address: remote_addr,
        key: rkey,
    };
    let operation = SendOperation::Write {
        remote,
        immediate: Some(imm_data.to_ne_bytes()),
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, SEND) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let operation = SendOperation::Send {
        immediate: Some(imm_data.to_ne_bytes()),
        invalidate: None,
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    let operation = SendOperation::Send {
        immediate: None,
        invalidate: Some(invalidate_rkey),
    };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { begin(qp, operation) };
}

/// Segmentation offload: the device does not say that it can.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { refuse(qp) };
}

/// Writes of eight bytes at once: the device does not say that it can.
unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { refuse(qp) };
}

/// What newer headers have: further arguments, whatever they are, are the caller's to clear away.
unsafe extern "C" fn wr_unknown(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { refuse(qp) };
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: only queue pairs of ours have this function, and the caller gives an address handle.
    unsafe {
        with(qp, |object| {
            match address(object, ah, remote_qpn, remote_qkey) {
                Ok(address) => object.batch().address(address),
                Err(error) => object.batch().poison(error),
            }
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { with(qp, |object| object.batch().xrc_srq(remote_srqn)) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: only queue pairs of ours have this function, and the caller gives data.
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
    // SAFETY: only queue pairs of ours have this function, and the caller gives a list of data.
    unsafe {
        with(qp, |object| {
            let places = pieces(buf_list, num_buf)
                .iter()
                .map(|piece| (piece.addr.expose_provenance(), piece.length));
            set_inline(object, places);
        });
    }
}

/// # Safety
/// The bytes are there.
unsafe fn set_inline(object: &Object, places: impl Iterator<Item = (usize, usize)> + Clone) {
    // SAFETY: the caller's promise.
    match unsafe { copy(object.queue_pair().rules(), places) } {
        Ok(data) => object.batch().inline(data),
        Err(error) => object.batch().poison(error),
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = ibv_sge { addr, length, lkey };
    // SAFETY: only queue pairs of ours have this function.
    unsafe { with(qp, |object| set_segments(object, slice::from_ref(&piece))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: only queue pairs of ours have this function, and the caller gives so many pieces.
    unsafe {
        with(qp, |object| {
            match object.queue_pair().rules().send_segments(num_sge) {
                Ok(count) => set_segments(object, pieces(sg_list, count)),
                Err(error) => object.batch().poison(error),
            }
        });
    }
}

fn set_segments(object: &Object, pieces: &[ibv_sge]) {
    match object.queue_pair().rules().send_segments(pieces.len()) {
        Ok(_) => object.batch().gather(pieces.iter().map(segment)),
        Err(error) => object.batch().poison(error),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { with(qp, |object| object.batch().start()) };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: only queue pairs of ours have this function.
        let object = unsafe { object(qp.cast()) };
        let queue_pair = object.queue_pair();
        let posted = object.batch().complete(queue_pair.rules(), |requests| {
            let mut sender = queue_pair.sender();
            sender.post_all(requests)?;
            object.nic().send(sender);
            Ok(())
        });
        posted.map_or_else(PostError::errno, |()| 0)
    })
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: only queue pairs of ours have this function.
    unsafe { with(qp, |object| object.batch().abort()) };
}
