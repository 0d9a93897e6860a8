//! Shared receive queues.

use std::mem;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_srq_init_attr_mask, ibv_srq_type,
};
use libc::{c_int, c_void};

use super::answer::{hand_out, pointer, status};
use super::in_place::segments;
use super::{completion, fail, forward, guard, number, open, pd, set_errno, verb, xrc};
use crate::census::{Counted, Kind};
use crate::completion::CompletionQueue;
use crate::context::{Held, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::nic::Nic;
use crate::proto::ReceiveRequest;
use crate::receive::{SharedReceiveQueue, XrcBinding};
use crate::xrc::XrcDomain;

/// A shared receive queue as C knows it.
#[repr(C)]
struct QueueHandle {
    public: ibv_srq,
    queue: Arc<SharedReceiveQueue>,
    nic: Arc<Nic>,
    _domain: Held<ProtectionDomain>,
    _xrc: Option<(Held<XrcDomain>, Held<CompletionQueue>)>,
    _counted: Counted,
}

/// The shared receive queue behind C's.
///
/// # Safety
/// `srq` must be one of this device, and the caller must not destroy it while the reference is used.
pub(crate) unsafe fn queue<'a>(srq: *const ibv_srq) -> &'a Arc<SharedReceiveQueue> {
    // SAFETY: the caller's promise; ours all lie in such a handle.
    unsafe { &(*srq.cast::<QueueHandle>()).queue }
}

/// The receive request that C describes; refused with more segments than there may be.
///
/// # Safety
/// `wr` has the segments that it says.
pub(crate) unsafe fn request(
    wr: &ibv_recv_wr,
    max_segments: u32,
) -> Result<ReceiveRequest, Refusal> {
    let count = u32::try_from(wr.num_sge).map_err(|_| Refusal::Invalid)?;
    if count > max_segments || (count > 0 && wr.sg_list.is_null()) {
        return Err(Refusal::Invalid);
    }
    // SAFETY: the caller's promise.
    let list = unsafe { segments(wr.sg_list, count as usize) };
    Ok(ReceiveRequest::new(wr.wr_id, list))
}

/// `ibv_create_srq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller gives a protection domain.
    unsafe { forward!((*pd).context, ibv_create_srq(pd, srq_init_attr)) };
    verb(Verb::CreateSrq, fail, || {
        // SAFETY: the domain is ours, and the caller gives attributes.
        pointer(|| unsafe {
            let init = &mut *srq_init_attr;
            create((*pd).context, pd, init.srq_context, &mut init.attr, None)
        })
    })
}

/// `ibv_create_srq_ex(3)`
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    verb(Verb::CreateSrq, fail, || {
        // SAFETY: the context is ours, and the caller gives attributes.
        pointer(|| unsafe { create_extended(context, &mut *init) })
    })
}

/// # Safety
/// `context` is ours; what the mask of `init` says is of some context.
unsafe fn create_extended(
    context: *mut ibv_context,
    init: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, Refusal> {
    type Mask = ibv_srq_init_attr_mask;
    const TYPE: u32 = Mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    const DOMAIN: u32 = Mask::IBV_SRQ_INIT_ATTR_PD.0;
    const XRC: u32 = Mask::IBV_SRQ_INIT_ATTR_XRCD.0 | Mask::IBV_SRQ_INIT_ATTR_CQ.0;
    const MATCHING: u32 = Mask::IBV_SRQ_INIT_ATTR_TM.0;
    let mask = init.comp_mask;
    if mask & !(TYPE | DOMAIN | XRC | MATCHING) != 0 {
        return Err(Refusal::Invalid);
    }
    let kind = if mask & TYPE != 0 {
        init.srq_type
    } else {
        ibv_srq_type::IBV_SRQT_BASIC
    };
    if kind == ibv_srq_type::IBV_SRQT_TM || mask & MATCHING != 0 {
        return Err(Refusal::Unsupported);
    }
    let is_xrc = kind == ibv_srq_type::IBV_SRQT_XRC;
    if !is_xrc && kind != ibv_srq_type::IBV_SRQT_BASIC {
        return Err(Refusal::Invalid);
    }
    let needed = if is_xrc { DOMAIN | XRC } else { DOMAIN };
    if mask & needed != needed || init.pd.is_null() {
        return Err(Refusal::Invalid);
    }
    // SAFETY: the caller's promise; what is of the same context is ours too.
    unsafe {
        if (*init.pd).context != context {
            return Err(Refusal::Invalid);
        }
        let mut bound = None;
        if is_xrc {
            if init.xrcd.is_null()
                || init.cq.is_null()
                || (*init.xrcd).context != context
                || (*init.cq).context != context
            {
                return Err(Refusal::Invalid);
            }
            let domain = Held::new(xrc::domain(init.xrcd))?;
            bound = Some((domain, Held::new(completion::queue(init.cq))?));
        }
        create(context, init.pd, init.srq_context, &mut init.attr, bound)
    }
}

/// # Safety
/// `context` is ours, and so is `pd`, which is of it.
unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(Held<XrcDomain>, Held<CompletionQueue>)>,
) -> Result<*mut ibv_srq, Refusal> {
    // SAFETY: the caller's promise.
    let (nic, domain) = unsafe { (open::nic(context), pd::domain(pd)) };
    let held = Held::new(domain)?;
    let binding = xrc.as_ref().map(|(domain, completions)| XrcBinding {
        domain: domain.id(),
        completion_queue: Arc::clone(completions.shared()),
    });
    let queue = nic.shared_queues.insert(|number| {
        SharedReceiveQueue::new(number, domain, attr.max_wr, attr.max_sge, binding)
    })?;
    // What was made, which may be more than was asked for.
    attr.max_wr = queue.capacity();
    attr.max_sge = queue.max_segments();
    // SAFETY: null pointers, numbers and a mutex that is open.
    let mut public: ibv_srq = unsafe { mem::zeroed() };
    public.context = context;
    public.srq_context = srq_context;
    public.pd = pd;
    public.handle = queue.number();
    let handle: *mut ibv_srq = hand_out(QueueHandle {
        public,
        queue: Arc::clone(&queue),
        nic: Arc::clone(nic),
        _domain: held,
        _xrc: xrc,
        _counted: Counted::new(Kind::SharedReceiveQueue),
    });
    queue.element().identify(handle.expose_provenance());
    Ok(handle)
}

/// `ibv_destroy_srq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller gives a shared receive queue.
    unsafe { forward!((*srq).context, ibv_destroy_srq(srq)) };
    verb(Verb::DestroySrq, number, || {
        status(|| {
            // SAFETY: the queue is ours; after this call the caller does not use it.
            unsafe {
                let handle = &*srq.cast::<QueueHandle>();
                handle.queue.close()?;
                handle.nic.shared_queues.remove(handle.queue.number());
                drop(Box::from_raw(srq.cast::<QueueHandle>()));
            }
            Ok(())
        })
    })
}

/// `ibv_modify_srq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    const CAPACITY: u32 = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;
    const LIMIT: u32 = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
    // SAFETY: the caller gives a shared receive queue.
    unsafe { forward!((*srq).context, ibv_modify_srq(srq, srq_attr, srq_attr_mask)) };
    verb(Verb::ModifySrq, number, || {
        status(|| {
            let mask = srq_attr_mask.cast_unsigned();
            if mask & !(CAPACITY | LIMIT) != 0 {
                return Err(Refusal::Invalid);
            }
            // SAFETY: the queue is ours, and the caller gives attributes.
            let (queue, attr) = unsafe { (queue(srq), &*srq_attr) };
            let wanted = |bit, value| (mask & bit != 0).then_some(value);
            queue.modify(wanted(CAPACITY, attr.max_wr), wanted(LIMIT, attr.srq_limit))
        })
    })
}

/// `ibv_query_srq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
) -> c_int {
    // SAFETY: the caller gives a shared receive queue.
    unsafe { forward!((*srq).context, ibv_query_srq(srq, srq_attr)) };
    verb(Verb::QuerySrq, number, || {
        // SAFETY: the queue is ours, and the caller has room for attributes.
        unsafe {
            let queue = queue(srq);
            srq_attr.write(ibv_srq_attr {
                max_wr: queue.capacity(),
                max_sge: queue.max_segments(),
                srq_limit: queue.limit(),
            });
        }
        0
    })
}

/// `ibv_get_srq_num(3)`
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: the queue is ours, and the caller has room for a number.
        unsafe {
            let queue = queue(srq);
            if queue.xrc().is_none() {
                return status(|| Err(Refusal::Unsupported));
            }
            srq_num.write(queue.number());
        }
        0
    })
}

/// `ibv_post_srq_recv(3)`
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let refuse = |errno| {
        // SAFETY: the caller gives a place for the request that is refused.
        unsafe { bad_wr.write(wr) };
        number(errno)
    };
    verb(Verb::PostSrqRecv, refuse, || {
        // SAFETY: the queue is ours; the caller gives a list of requests, and a place for the one that is refused.
        unsafe {
            let queue = queue(srq);
            let mut next = wr;
            while let Some(wanted) = next.as_ref() {
                let posted = request(wanted, queue.max_segments())
                    .and_then(|request| queue.post(request).map_err(|_| Refusal::Exhausted));
                if let Err(refusal) = posted {
                    bad_wr.write(next);
                    set_errno(refusal.errno());
                    return refusal.errno();
                }
                next = wanted.next;
            }
        }
        0
    })
}
