//! Requests that are read where the caller has them: those that may be done while they are posted, of which nothing is made
//! that would be queued.

use std::mem::offset_of;
use std::slice;

use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::work_request::pieces;
use crate::proto::{Data, Posted, Remote, Segment, Service};
use crate::queue_pair::{List, Rules};
use crate::transfer::{Action, Atomic, OneSided};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// What is left of a list of requests.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    next: *const ibv_send_wr,
    rules: &'a Rules,
}

impl<'a> Requests<'a> {
    /// # Safety
    /// Null, or a list whose last request has no next; it and what hangs on its requests, as their fields say, is there for
    /// as long as `'a`.
    pub(super) unsafe fn new(next: *const ibv_send_wr, rules: &'a Rules) -> Self {
        Self { next, rules }
    }

    /// The first of them.
    pub(super) fn rest(&self) -> *mut ibv_send_wr {
        self.next.cast_mut()
    }
}

impl<'a> List<'a> for Requests<'a> {
    #[inline]
    fn peek(&self) -> Option<OneSided<'a>> {
        // SAFETY: of the list, as `new` was promised.
        let request = unsafe { self.next.as_ref()? };
        // SAFETY: the opcode says which parts of the union are there.
        let (action, (address, key)) = unsafe {
            let wr = &request.wr;
            let (rdma, atomic) = (&wr.rdma, &wr.atomic);
            match request.opcode {
                ibv_wr_opcode::IBV_WR_RDMA_WRITE => (Action::Write, (rdma.remote_addr, rdma.rkey)),
                ibv_wr_opcode::IBV_WR_RDMA_READ => (Action::Read, (rdma.remote_addr, rdma.rkey)),
                ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let add = atomic.compare_add;
                    let action = Action::Atomic(Atomic::FetchAdd { add });
                    (action, (atomic.remote_addr, atomic.rkey))
                }
                ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => {
                    let (compare, swap) = (atomic.compare_add, atomic.swap);
                    let action = Action::Atomic(Atomic::CompareSwap { compare, swap });
                    (action, (atomic.remote_addr, atomic.rkey))
                }
                _ => return None,
            }
        };
        Some(OneSided {
            id: request.wr_id,
            action,
            remote: Remote { address, key },
            // SAFETY: what hangs on a request is what its fields say, as `new` was promised.
            data: unsafe { data(request, SIGNALED | SOLICITED | FENCE | INLINE, self.rules)? },
            signaled: request.send_flags & SIGNALED != 0,
        })
    }

    #[inline]
    fn advance(&mut self) -> Option<OneSided<'a>> {
        // SAFETY: of the list, as `new` was promised.
        self.next = unsafe { self.next.as_ref()? }.next;
        self.peek()
    }
}

/// Returns a request that is a send or a write with immediate data, of one segment or of inline bytes, without unusual flags.
///
/// # Safety
/// What the opcode and the flags say is in the request, is there for as long as the answer is used.
#[inline]
pub(super) unsafe fn message<'a>(
    request: &'a ibv_send_wr,
    rules: &Rules,
) -> Option<(Posted, Data<'a>)> {
    // SAFETY: the opcode says which parts of the unions are there.
    let (immediate, remote) = unsafe {
        let immediate = || Some(request.__bindgen_anon_1.imm_data.to_ne_bytes());
        match request.opcode {
            ibv_wr_opcode::IBV_WR_SEND => (None, None),
            ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => (immediate(), None),
            ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                let rdma = &request.wr.rdma;
                let (address, key) = (rdma.remote_addr, rdma.rkey);
                (immediate(), Some(Remote { address, key }))
            }
            _ => return None,
        }
    };
    if rules.service != Service::ReliableConnection {
        return None;
    }
    // SAFETY: the caller's promise.
    let data = unsafe { data(request, SIGNALED | SOLICITED | INLINE, rules)? };
    let message = Posted {
        id: request.wr_id,
        immediate,
        remote,
        signaled: request.send_flags & SIGNALED != 0,
        solicited: request.send_flags & SOLICITED != 0,
    };
    matches!(data, Data::Gathered([_]) | Data::Inline(_)).then_some((message, data))
}

/// The bytes of a request. None: they are not as they have to be, it has other flags than those, or inline data of several
/// pieces, or of none.
///
/// # Safety
/// The pieces that it has, and their bytes if they are inline, are there for as long as the answer is used.
#[inline]
unsafe fn data<'a>(request: &'a ibv_send_wr, flags: u32, rules: &Rules) -> Option<Data<'a>> {
    let count = usize::try_from(request.num_sge).ok()?;
    let most = &rules.capabilities;
    if request.send_flags & !flags != 0 || count > most.max_send_sge as usize {
        return None;
    }
    if request.send_flags & INLINE == 0 {
        // SAFETY: the caller's promise.
        let list = unsafe { segments(request.sg_list, count) };
        return Some(Data::Gathered(list));
    }
    // SAFETY: the caller's promise.
    let [piece] = (unsafe { pieces::<ibv_sge>(request.sg_list, count) }) else {
        return None;
    };
    if !(1..=most.max_inline_data).contains(&piece.length) {
        return None;
    }
    let start = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice::from_raw_parts(start, piece.length as usize) };
    Some(Data::Inline(bytes))
}

/// The pieces of a request, as segments.
///
/// # Safety
/// `list` must point to `count` elements, which stay valid while the slice is used.
#[inline]
pub(super) unsafe fn segments<'a>(list: *const ibv_sge, count: usize) -> &'a [Segment] {
    // SAFETY: the caller's promise, of pieces that are like segments.
    unsafe { pieces(list.cast(), count) }
}

// A list of pieces is one of segments.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Segment>()
        && align_of::<ibv_sge>() >= align_of::<Segment>()
        && offset_of!(ibv_sge, addr) == offset_of!(Segment, address)
        && offset_of!(ibv_sge, length) == offset_of!(Segment, length)
        && offset_of!(ibv_sge, lkey) == offset_of!(Segment, key)
);
