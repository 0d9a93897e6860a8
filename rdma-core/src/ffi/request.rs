//! Construction of work requests: the C structs and the element lists that the device reads.
//!
//! Most requests take a fast path, which is inlined into the caller (`describe_fast_path` and its
//! variants). All other requests are fully checked by [`describe_send`] or [`describe_inline`].

use std::mem::{self, MaybeUninit};
use std::ptr;

use ibverbs_sys as sys;

use super::context::ContextHandle;
use super::elements::{ElementList, MAX_ELEMENTS, context_id};
use super::queue_pair::{QueuePairHandle, QueuePairSizes};
use super::request_check::{ATOMIC, check};
use crate::address::AddressHandle;
use crate::error::Result;
use crate::memory::{Elements, Gather, Scatter};
use crate::queue_pair::{
    Description, InlineData, KeepAlive, Operation, Placement, SendFlags, SendRequest, Target,
    Transport,
};

/// The opcode of flush requests (`IBV_WR_FLUSH`). Only headers newer than the bindings contain this
/// constant.
pub(super) const FLUSH: sys::ibv_wr_opcode = sys::ibv_wr_opcode(14);

/// Storage for the scatter/gather elements of a request, not yet initialised.
pub(super) type Room = [MaybeUninit<sys::ibv_sge>];

/// Returns uninitialised storage for the scatter/gather elements of one request, as an array that
/// the caller keeps on its stack until the request is posted.
#[inline]
pub(super) fn stack_room() -> [MaybeUninit<sys::ibv_sge>; MAX_ELEMENTS] {
    [const { MaybeUninit::uninit() }; MAX_ELEMENTS]
}

/// Checks a send request, and fills in the C struct `wr`. Writes the scatter/gather elements of the
/// request into `room`. `wr` points to the elements, so `room` must not change until the request is
/// posted. The memory of the request must not move until the request has completed.
#[inline]
pub(super) fn describe_send<T: Gather>(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    room: &mut Room,
    request: &SendRequest<T>,
    queue_pair: &QueuePairHandle,
    wr_id: u64,
) -> Result<()> {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::over(room, Some(queue_pair.domain().context())) };
    request.memory().gather(&mut Elements::new(&mut list));
    let description = request.description();
    check(&list, &description, queue_pair)?;
    request.keep().check(queue_pair)?;
    write(wr, &list, &description, request.keep(), wr_id);
    Ok(())
}

/// The limits of the fast path (posting with few, inlined checks) of a queue. A request that
/// exceeds a limit takes the general path, with all checks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    elements: usize,
    inline: u64,
    /// Address of the context with which the memory of requests must be registered: see
    /// [`context_id`].
    context: usize,
    /// Address of the context with which the memory of reads and atomics must be registered. On
    /// queue pairs that do not support these operations the value is [`NO_CONTEXT`], which matches
    /// no memory. Therefore other requests need no additional check.
    read_context: usize,
}

/// A number that is never the address of a context (open device). No memory can be registered with
/// such a context. Therefore a comparison of the memory's context with this number rejects every
/// request.
const NO_CONTEXT: usize = 1;

impl Limits {
    pub(super) fn of_sends(queue_pair: &QueuePairHandle) -> Self {
        let sizes = queue_pair.sizes();
        let context = context_id(queue_pair.domain().context());
        Self {
            elements: MAX_ELEMENTS.min(sizes.send_elements as usize),
            inline: sizes.inline_data.into(),
            context,
            read_context: match queue_pair.kind() {
                Transport::ReliableConnected => context,
                _ => NO_CONTEXT,
            },
        }
    }

    pub(super) fn of_receives(queue_pair: &QueuePairHandle) -> Self {
        let elements = queue_pair.sizes().receive_elements;
        Self::of_shared_receives(elements, queue_pair.domain().context())
    }

    /// Returns the limits for receives of a shared receive queue in `context`, with at most
    /// `elements` elements each.
    pub(super) fn of_shared_receives(elements: u32, context: &ContextHandle) -> Self {
        Self {
            elements: MAX_ELEMENTS.min(elements as usize),
            inline: 0,
            context: context_id(context),
            read_context: NO_CONTEXT,
        }
    }

    /// Returns the address of the context (open device) with which the memory of a request must be
    /// registered: see [`context_id`]. For reads and atomics returns [`NO_CONTEXT`] if the queue
    /// pair does not support these operations.
    #[inline(always)]
    fn context_for(self, operation: Operation) -> usize {
        match operation {
            Operation::Read | Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
                self.read_context
            }
            _ => self.context,
        }
    }

    /// Returns the maximum number of scatter/gather elements of a request.
    #[inline]
    pub(super) fn elements(self) -> usize {
        self.elements
    }
}

/// Checks a request of a connected queue pair with few, inlined checks, and fills in `wr`. The
/// request must use no object except its memory (for example no address handle). Returns `false` if
/// the request needs the full checks of [`describe_send`].
///
/// The function is inlined, so that the compiler removes checks whose result is known in the
/// caller.
#[inline(always)]
pub(super) fn describe_fast_path<T: Gather>(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    room: &mut Room,
    memory: &T,
    request: &Description,
    limits: Limits,
    wr_id: u64,
) -> bool {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list =
        unsafe { ElementList::of_fast_path(room, limits.context_for(request.operation)) };
    memory.gather(&mut Elements::new(&mut list));
    let is_inline = request.flags.contains(SendFlags::INLINE);
    let is_fast_path = match request.operation {
        Operation::Send { .. } | Operation::Write { .. } => {
            !is_inline || (list.is_mapped() && list.bytes() <= limits.inline)
        }
        Operation::Read => !is_inline && list.is_writable() && list.len() > 0,
        Operation::CompareAndSwap { .. } | Operation::FetchAndAdd { .. } => {
            let address = request.remote.address;
            !is_inline
                && list.is_writable()
                && list.bytes() == ATOMIC
                && address.is_multiple_of(ATOMIC)
        }
        _ => false,
    };
    let is_fast_path = is_fast_path && request.target == Target::Peer && list.fits(limits.elements);
    if is_fast_path {
        write_fast_path(wr, &list, request, wr_id);
    }
    is_fast_path
}

/// Checks a request with inline data of a connected queue pair with few, inlined checks, and fills
/// in `wr`. The request must use no object, such as an address handle. Returns `false` if the
/// request needs the full checks of [`describe_inline`].
#[inline(always)]
pub(super) fn describe_fast_path_inline<D: InlineData>(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    room: &mut Room,
    data: &D,
    request: &Description,
    limits: Limits,
    wr_id: u64,
) -> bool {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::of_fast_path(room, limits.context) };
    data.collect(&mut Elements::new(&mut list));
    let is_fast_path = matches!(
        request.operation,
        Operation::Send { .. } | Operation::Write { .. }
    );
    let is_fast_path = is_fast_path
        && request.target == Target::Peer
        && list.bytes() <= limits.inline
        && list.fits(limits.elements);
    if is_fast_path {
        let mut request = *request;
        // A request without data has nothing to copy, so the inline flag is not set.
        request.flags.set(SendFlags::INLINE, list.len() > 0);
        write_fast_path(wr, &list, &request, wr_id);
    }
    is_fast_path
}

/// Checks a datagram with few, inlined checks, and fills in the C struct `wr` of the request.
/// Returns `false` if the datagram needs the full checks of [`describe_send`].
#[inline(always)]
pub(super) fn describe_fast_path_datagram<T: Gather>(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    room: &mut Room,
    memory: &T,
    (request, handle): (&Description, &AddressHandle),
    limits: Limits,
    wr_id: u64,
) -> bool {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::of_fast_path(room, limits.context) };
    memory.gather(&mut Elements::new(&mut list));
    let (Operation::Send { .. }, Target::Datagram { queue_pair, qkey }) =
        (request.operation, request.target)
    else {
        return false;
    };
    let is_inline = request.flags.contains(SendFlags::INLINE);
    let is_fast_path = (!is_inline || (list.is_mapped() && list.bytes() <= limits.inline))
        && context_id(handle.context()) == limits.context
        && list.fits(limits.elements);
    if is_fast_path {
        write_fast_path(wr, &list, request, wr_id);
        let wr = wr.as_mut_ptr();
        // SAFETY: `wr` points to a work request, whose fields are only written.
        unsafe {
            (&raw mut (*wr).wr.ud.ah).write(handle.as_raw());
            (&raw mut (*wr).wr.ud.remote_qpn).write(queue_pair);
            (&raw mut (*wr).wr.ud.remote_qkey).write(qkey);
        }
    }
    is_fast_path
}

/// Fills in the C struct `place` for a request on the fast path. Writes only the fields that the
/// device reads for such a request. Fields of other operations or queue pair types stay
/// uninitialised. The struct points to the elements in `list`.
#[inline(always)]
fn write_fast_path(
    place: &mut MaybeUninit<sys::ibv_send_wr>,
    list: &ElementList,
    request: &Description,
    wr_id: u64,
) {
    use sys::ibv_wr_opcode as op;
    let (mut immediate, mut operands) = (None, None);
    let opcode = match request.operation {
        Operation::Write { immediate: None } => op::IBV_WR_RDMA_WRITE,
        Operation::Write { immediate: with } => {
            immediate = with;
            op::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Operation::Read => op::IBV_WR_RDMA_READ,
        Operation::CompareAndSwap { expected, desired } => {
            operands = Some((expected, Some(desired)));
            op::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        Operation::FetchAndAdd { add } => {
            operands = Some((add, None));
            op::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Operation::Send {
            immediate: with @ Some(_),
        } => {
            immediate = with;
            op::IBV_WR_SEND_WITH_IMM
        }
        _ => op::IBV_WR_SEND,
    };
    let (wr, remote) = (place.as_mut_ptr(), request.remote);
    // SAFETY: `wr` points to a work request, whose fields are only written.
    unsafe {
        (&raw mut (*wr).wr_id).write(wr_id);
        (&raw mut (*wr).next).write(ptr::null_mut());
        (&raw mut (*wr).sg_list).write(list.start());
        (&raw mut (*wr).num_sge).write(list.len() as i32);
        (&raw mut (*wr).opcode).write(opcode);
        (&raw mut (*wr).send_flags).write(request.flags.bits() as _);
        (&raw mut (*wr).__bindgen_anon_1.imm_data).write(immediate.map_or(0, u32::to_be));
        match operands {
            Some((compare_add, swap)) => {
                (&raw mut (*wr).wr.atomic.remote_addr).write(remote.address);
                (&raw mut (*wr).wr.atomic.rkey).write(remote.rkey);
                (&raw mut (*wr).wr.atomic.compare_add).write(compare_add);
                if let Some(swap) = swap {
                    (&raw mut (*wr).wr.atomic.swap).write(swap);
                }
            }
            None if matches!(request.operation, Operation::Send { .. }) => {}
            None => {
                (&raw mut (*wr).wr.rdma.remote_addr).write(remote.address);
                (&raw mut (*wr).wr.rdma.rkey).write(remote.rkey);
            }
        }
    }
}

/// Checks a request with inline data, and fills in the C struct `wr`. The data must stay valid
/// until the request is posted, which copies the data.
#[inline]
pub(super) fn describe_inline<D: InlineData>(
    wr: &mut MaybeUninit<sys::ibv_send_wr>,
    room: &mut Room,
    request: &SendRequest<D>,
    queue_pair: &QueuePairHandle,
    wr_id: u64,
) -> Result<()> {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::over(room, Some(queue_pair.domain().context())) };
    request.memory().collect(&mut Elements::new(&mut list));
    let mut description = request.description();
    // Without data there is nothing to copy, and the inline flag would make the checks reject some
    // operations.
    let inline = list.len() > 0;
    description.flags.set(SendFlags::INLINE, inline);
    check(&list, &description, queue_pair)?;
    request.keep().check(queue_pair)?;
    write(wr, &list, &description, request.keep(), wr_id);
    Ok(())
}

/// Writes the C struct of a send request with the id `wr_id` into `place`. The struct points to the
/// elements in `list`, and to objects in `keep` that stay alive until the request has completed.
#[inline(always)]
fn write(
    place: &mut MaybeUninit<sys::ibv_send_wr>,
    list: &ElementList,
    request: &Description,
    keep: &KeepAlive,
    wr_id: u64,
) {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let wr = place.write(unsafe { mem::zeroed() });
    wr.wr_id = wr_id;
    wr.sg_list = list.start();
    wr.num_sge = list.len() as i32;
    wr.send_flags = request.flags.bits() as _;
    let remote = request.remote;
    match request.operation {
        Operation::Send { immediate: None } => wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND,
        Operation::Send {
            immediate: Some(immediate),
        } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            wr.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        Operation::SendWithInvalidate { key } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
            wr.__bindgen_anon_1.invalidate_rkey = key;
        }
        Operation::Write { immediate: None } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        }
        Operation::Write {
            immediate: Some(immediate),
        } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.__bindgen_anon_1.imm_data = immediate.to_be();
        }
        Operation::Read => wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
        Operation::CompareAndSwap { expected, desired } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic.compare_add = expected;
            wr.wr.atomic.swap = desired;
        }
        Operation::FetchAndAdd { add } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic.compare_add = add;
        }
        Operation::Invalidate { key } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_LOCAL_INV;
            wr.__bindgen_anon_1.invalidate_rkey = key;
        }
        Operation::Segmented { segment } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_TSO;
            let headers: &[u8] = match keep {
                KeepAlive::Segmented(segmented) => &segmented.headers,
                _ => &[],
            };
            wr.__bindgen_anon_2.tso.hdr = headers.as_ptr().cast_mut().cast();
            // The device rejects headers that are longer than the queue pair's limit.
            wr.__bindgen_anon_2.tso.hdr_sz = u16::try_from(headers.len()).unwrap_or(u16::MAX);
            wr.__bindgen_anon_2.tso.mss = segment;
        }
        Operation::AtomicWrite { value } => {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_ATOMIC_WRITE;
            wr.wr.atomic.compare_add = u64::from_ne_bytes(value);
        }
        Operation::Window { .. } => {
            if let KeepAlive::Window(change) = keep {
                change.describe(wr);
            }
            return;
        }
        Operation::Flush { placement, whole } => {
            wr.opcode = FLUSH;
            wr.wr.atomic.compare_add = remote.len;
            wr.wr.atomic.swap = flush_word(placement, whole);
        }
    }
    match request.target {
        Target::Datagram { queue_pair, qkey } => {
            wr.wr.ud.ah = keep
                .address()
                .map_or(ptr::null_mut(), |handle| handle.as_raw());
            wr.wr.ud.remote_qpn = queue_pair;
            wr.wr.ud.remote_qkey = qkey;
            return;
        }
        Target::SharedQueue { number } => wr.qp_type.xrc.remote_srqn = number,
        Target::Peer => {}
    }
    // In the C union, the remote address is at the same place for RDMA and for atomics, but the key
    // is not.
    match request.operation {
        Operation::CompareAndSwap { .. }
        | Operation::FetchAndAdd { .. }
        | Operation::AtomicWrite { .. }
        | Operation::Flush { .. } => {
            wr.wr.atomic.remote_addr = remote.address;
            wr.wr.atomic.rkey = remote.rkey;
        }
        _ => {
            wr.wr.rdma.remote_addr = remote.address;
            wr.wr.rdma.rkey = remote.rkey;
        }
    }
}

/// Packs the placement type of a flush, and whether the flush is for the whole region, into one
/// word. The module `posting` unpacks the word.
fn flush_word(placement: Placement, whole: bool) -> u64 {
    let kind = match placement {
        Placement::Global => 1,
        Placement::Persistent => 2,
    };
    kind | u64::from(whole) << 8
}

/// The scatter/gather elements of a receive request. Must not move until the request is posted,
/// because the C struct of the request points to the elements.
pub(super) struct ReceiveElements {
    room: [MaybeUninit<sys::ibv_sge>; MAX_ELEMENTS],
    len: usize,
}

impl ReceiveElements {
    /// Creates an empty element list, which [`Self::scatter`] fills.
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            room: stack_room(),
            len: 0,
        }
    }

    /// Stores the scatter/gather elements of `memory` in `self`. Returns an error if the number or
    /// the total length of the elements is too large, if memory is registered with another context,
    /// or if the device cannot write to the memory.
    ///
    /// The elements are not returned, because a return would copy the whole array several times.
    #[inline]
    pub(super) fn scatter<T: Scatter>(
        &mut self,
        memory: &T,
        limits: QueuePairSizes,
        context: &ContextHandle,
    ) -> Result<()> {
        self.len = scatter(&mut self.room, memory, limits, context)?;
        Ok(())
    }

    /// Returns a receive request with the id `wr_id`, which points to the elements in `self`.
    #[inline]
    pub(super) fn work_request(&mut self, wr_id: u64) -> sys::ibv_recv_wr {
        receive_request(&mut self.room, self.len, wr_id)
    }
}

/// Writes the scatter/gather elements of `memory` into `room`, and returns their number. Returns an
/// error if the number or the total length of the elements is too large, if memory is registered
/// with another context, or if the device cannot write to the memory.
#[inline]
pub(super) fn scatter<T: Scatter>(
    room: &mut Room,
    memory: &T,
    limits: QueuePairSizes,
    context: &ContextHandle,
) -> Result<usize> {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::over(room, Some(context)) };
    memory.scatter(&mut Elements::new(&mut list))?;
    list.checked(limits.receive_elements)?;
    Ok(list.len())
}

/// Writes the scatter/gather elements of `memory` into `room` after few, inlined checks, and
/// returns their number. Returns `None` if the full checks of [`scatter`] are needed.
#[inline(always)]
pub(super) fn scatter_fast_path<T: Scatter>(
    room: &mut Room,
    memory: &T,
    limits: Limits,
) -> Option<usize> {
    // SAFETY: nothing else uses `room` while the list exists.
    let mut list = unsafe { ElementList::of_fast_path(room, limits.context) };
    let is_writable = memory.scatter(&mut Elements::new(&mut list)).is_ok();
    (is_writable && list.fits(limits.elements)).then_some(list.len())
}

/// Returns a receive request with the id `wr_id` that points to the first `len` scatter/gather
/// elements in `room`.
#[inline]
pub(super) fn receive_request(room: &mut Room, len: usize, wr_id: u64) -> sys::ibv_recv_wr {
    sys::ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: room.as_mut_ptr().cast(),
        num_sge: len as i32,
    }
}
