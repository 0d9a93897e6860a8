//! Send requests that are read directly from the caller's list, without a copy, because they can be
//! executed or sent while they are posted.

use std::mem::offset_of;
use std::slice;

use ibverbs_sys::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::work_request::{inline, slice};
use crate::proto::{Data, Inline, Remote, Segment, Service, UnqueuedMessage};
use crate::queue_pair::{PostedList, Rules};
use crate::transfer::{Action, Atomic, OneSided};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;
const SOLICITED: u32 = ibv_send_flags::IBV_SEND_SOLICITED.0;
const FENCE: u32 = ibv_send_flags::IBV_SEND_FENCE.0;
const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;

/// The rest of a program's list of send requests: the requests that have not been posted yet.
#[derive(Debug)]
pub(super) struct Requests<'a> {
    next: *const ibv_send_wr,
    rules: &'a Rules,
}

impl<'a> Requests<'a> {
    /// Creates a view of the linked list of send requests that begins with `next`. `rules` are the
    /// limits of the queue pair to which the requests are posted.
    ///
    /// # Safety
    /// `next` must be null or point to a list of valid requests that ends with a null pointer. The
    /// requests, and the data to which their fields refer, must be valid for `'a`.
    pub(super) unsafe fn new(next: *const ibv_send_wr, rules: &'a Rules) -> Self {
        Self { next, rules }
    }

    /// Returns a pointer to the first request of the program's list that has not been posted yet.
    /// Returns null if all requests have been posted.
    pub(super) fn next_request(&self) -> *mut ibv_send_wr {
        self.next.cast_mut()
    }
}

impl<'a> PostedList<'a> for Requests<'a> {
    #[inline]
    fn peek(&self) -> Option<OneSided<'a>> {
        // SAFETY: the caller of `new` guarantees a list of valid requests.
        let request = unsafe { self.next.as_ref()? };
        // SAFETY: the opcode determines which parts of the union are set.
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
            // SAFETY: the caller of `new` guarantees that the data of the request is valid.
            data: unsafe { data(request, SIGNALED | SOLICITED | FENCE | INLINE, self.rules)? },
            signaled: request.send_flags & SIGNALED != 0,
        })
    }

    #[inline]
    fn advance(&mut self) -> Option<OneSided<'a>> {
        // SAFETY: the caller of `new` guarantees a list of valid requests.
        self.next = unsafe { self.next.as_ref()? }.next;
        self.peek()
    }
}

/// Returns the message that `request` sends, and the data of the message. `rules` are the limits of
/// the queue pair. Copies inline data of several elements to `gathered`. The result then refers to
/// this copy.
///
/// Returns `None` if the caller must convert and post the request in the general way. Only sends
/// and writes with immediate data are supported, and only on a reliable connection, with common
/// flags, and within the limits `rules`.
///
/// # Safety
/// The request, and the data that its fields refer to, must be valid while the result is used.
#[inline]
pub(super) unsafe fn message<'a>(
    request: &'a ibv_send_wr,
    rules: &Rules,
    gathered: &'a mut Inline,
) -> Option<(UnqueuedMessage, Data<'a>)> {
    // SAFETY: the opcode determines which parts of the unions are set.
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
    let flags = SIGNALED | SOLICITED | INLINE;
    // SAFETY: the caller guarantees that the data of the request is valid.
    let data = match unsafe { data(request, flags, rules) } {
        Some(data) => data,
        None if request.send_flags & INLINE != 0 && request.send_flags & !flags == 0 => {
            // SAFETY: the caller guarantees that the segments of the request and their bytes are
            // valid.
            *gathered = unsafe { inline(request, rules).ok()? };
            Data::Inline(gathered)
        }
        None => return None,
    };
    let message = UnqueuedMessage {
        id: request.wr_id,
        immediate,
        remote,
        signaled: request.send_flags & SIGNALED != 0,
        solicited: request.send_flags & SOLICITED != 0,
    };
    Some((message, data))
}

/// Returns the data that `request` sends. Returns `None` in three cases. The request has a flag
/// that is not in `flags`. The request exceeds the limits `rules` of the queue pair. The request
/// has inline data that is empty, or that has more or fewer than one scatter/gather element.
///
/// # Safety
/// The segments of the request, and their bytes if they are inline, must be valid while the result
/// is used.
#[inline]
unsafe fn data<'a>(request: &'a ibv_send_wr, flags: u32, rules: &Rules) -> Option<Data<'a>> {
    let count = usize::try_from(request.num_sge).ok()?;
    let most = &rules.capabilities;
    if request.send_flags & !flags != 0 || count > most.max_send_sge as usize {
        return None;
    }
    if request.send_flags & INLINE == 0 {
        // SAFETY: the caller guarantees `count` valid segments.
        let list = unsafe { segments(request.sg_list, count) };
        return Some(Data::Gathered(list));
    }
    // SAFETY: the caller guarantees `count` valid segments.
    let [piece] = (unsafe { slice::<ibv_sge>(request.sg_list, count) }) else {
        return None;
    };
    if !(1..=most.max_inline_data).contains(&piece.length) {
        return None;
    }
    let start = std::ptr::with_exposed_provenance::<u8>(piece.addr as usize);
    // SAFETY: the caller guarantees that the inline bytes are valid.
    let bytes = unsafe { slice::from_raw_parts(start, piece.length as usize) };
    Some(Data::Inline(bytes))
}

/// Returns the `count` scatter/gather elements at `list` as segments of a request.
///
/// # Safety
/// `list` must point to `count` elements, which must be valid while the result is used.
#[inline]
pub(super) unsafe fn segments<'a>(list: *const ibv_sge, count: usize) -> &'a [Segment] {
    // SAFETY: the caller guarantees `count` valid elements, which have the layout of segments.
    unsafe { slice(list.cast(), count) }
}

// Checks that an `ibv_sge` has the layout of a segment.
const _: () = assert!(
    size_of::<ibv_sge>() == size_of::<Segment>()
        && align_of::<ibv_sge>() >= align_of::<Segment>()
        && offset_of!(ibv_sge, addr) == offset_of!(Segment, address)
        && offset_of!(ibv_sge, length) == offset_of!(Segment, length)
        && offset_of!(ibv_sge, lkey) == offset_of!(Segment, key)
);
