//! The verbs on shared receive queues.

use std::mem;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_srq_init_attr_mask, ibv_srq_type,
};
use libc::{c_int, c_void};

use super::answer::{into_c_object, pointer, status};
use super::in_place::segments;
use super::{completion, fail, forward, guard, number, open, pd, set_errno, verb, xrc};
use crate::completion::CompletionQueue;
use crate::context::{InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind};
use crate::proto::ReceiveRequest;
use crate::receive::{SharedReceiveQueue, XrcBinding};
use crate::xrc::XrcDomain;

/// The C object that `ibv_create_srq` returns: the public structure, followed by private data of
/// this device.
#[repr(C)]
struct QueueHandle {
    public: ibv_srq,
    queue: Arc<SharedReceiveQueue>,
    nic: Arc<Nic>,
    _domain: InUse<ProtectionDomain>,
    _xrc: Option<(InUse<XrcDomain>, InUse<CompletionQueue>)>,
    _counted: Counted,
}

/// Returns the [`SharedReceiveQueue`] that is stored in the C object `srq`.
///
/// # Safety
/// `srq` must belong to this device, and must not be destroyed while the reference is used.
pub(crate) unsafe fn queue<'a>(srq: *const ibv_srq) -> &'a Arc<SharedReceiveQueue> {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of a `QueueHandle`.
    unsafe { &(*srq.cast::<QueueHandle>()).queue }
}

/// Converts the receive request `wr` from its form in the C ABI. Fails if `wr` has more than
/// `max_segments` scatter/gather elements.
///
/// # Safety
/// The segments of `wr` must be valid.
pub(crate) unsafe fn request(
    wr: &ibv_recv_wr,
    max_segments: u32,
) -> Result<ReceiveRequest, Refusal> {
    let count = u32::try_from(wr.num_sge).map_err(|_| Refusal::Invalid)?;
    if count > max_segments || (count > 0 && wr.sg_list.is_null()) {
        return Err(Refusal::Invalid);
    }
    // SAFETY: the caller guarantees that the segments are valid.
    let list = unsafe { segments(wr.sg_list, count as usize) };
    Ok(ReceiveRequest::new(wr.wr_id, list))
}

/// Creates a shared receive queue (`ibv_create_srq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    srq_init_attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_create_srq(pd, srq_init_attr)) };
    verb(Verb::CreateSrq, fail, || {
        // SAFETY: the domain belongs to this device, as `forward!` has checked. The C API requires
        // valid attributes.
        pointer(|| unsafe {
            let init = &mut *srq_init_attr;
            create((*pd).context, pd, init.srq_context, &mut init.attr, None)
        })
    })
}

/// Creates a shared receive queue with extended attributes (`ibv_create_srq_ex(3)`).
pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    verb(Verb::CreateSrq, fail, || {
        // SAFETY: only contexts of this device have this function, and the C API requires valid
        // attributes.
        pointer(|| unsafe { create_extended(context, &mut *init) })
    })
}

/// Creates a shared receive queue with the extended attributes `init`, and returns its C object.
/// Depending on `init`, the queue is for normal queue pairs or for extended reliable connections
/// (XRC).
///
/// # Safety
/// `context` must belong to this device. The objects that the mask of `init` names must be null or
/// valid.
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
    // SAFETY: the caller guarantees the conditions of this function. Objects of the same context
    // belong to this device.
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
            let domain = InUse::new(xrc::domain(init.xrcd))?;
            bound = Some((domain, InUse::new(completion::queue(init.cq))?));
        }
        create(context, init.pd, init.srq_context, &mut init.attr, bound)
    }
}

/// Creates a shared receive queue in the protection domain `pd`, and returns its `ibv_srq`. `attr`
/// contains the requested numbers of requests and segments, and gets the actual numbers.
/// `srq_context` is a value of the program that the `ibv_srq` contains. `xrc` contains the XRC
/// domain and the completion queue of an XRC shared receive queue; `None` for other queues.
///
/// # Safety
/// `context` must belong to this device, and `pd` to `context`.
unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(InUse<XrcDomain>, InUse<CompletionQueue>)>,
) -> Result<*mut ibv_srq, Refusal> {
    // SAFETY: the caller guarantees the conditions of this function.
    let (nic, domain) = unsafe { (open::nic(context), pd::domain(pd)) };
    // SAFETY: the caller guarantees a context of this device.
    let events = unsafe { open::context(context) };
    let held = InUse::new(domain)?;
    let binding = xrc.as_ref().map(|(domain, completions)| XrcBinding {
        domain: domain.id(),
        completion_queue: Arc::clone(completions.shared()),
    });
    let queue = nic.shared_queues.insert(|number| {
        let place = (events, domain);
        SharedReceiveQueue::new(number, place, attr.max_wr, attr.max_sge, binding)
    })?;
    // Returns the actual values, which may be larger than the requested ones.
    attr.max_wr = queue.capacity();
    attr.max_sge = queue.max_segments();
    // SAFETY: zeroes are valid for all fields: null pointers, integers, and an unlocked mutex.
    let mut public: ibv_srq = unsafe { mem::zeroed() };
    public.context = context;
    public.srq_context = srq_context;
    public.pd = pd;
    public.handle = queue.number();
    let handle: *mut ibv_srq = into_c_object(QueueHandle {
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

/// Destroys a shared receive queue (`ibv_destroy_srq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid shared receive queue.
    unsafe { forward!((*srq).context, ibv_destroy_srq(srq)) };
    verb(Verb::DestroySrq, number, || {
        status(|| {
            // SAFETY: the queue belongs to this device, and was created by `into_c_object`. The C
            // API forbids its use after this call.
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

/// Sets the capacity, the limit or both of a shared receive queue, as `srq_attr_mask` selects
/// (`ibv_modify_srq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
    srq_attr_mask: c_int,
) -> c_int {
    const CAPACITY: u32 = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0;
    const LIMIT: u32 = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
    // SAFETY: the C API requires the caller to pass a valid shared receive queue.
    unsafe { forward!((*srq).context, ibv_modify_srq(srq, srq_attr, srq_attr_mask)) };
    verb(Verb::ModifySrq, number, || {
        status(|| {
            let mask = srq_attr_mask.cast_unsigned();
            if mask & !(CAPACITY | LIMIT) != 0 {
                return Err(Refusal::Invalid);
            }
            // SAFETY: the queue belongs to this device, as `forward!` has checked. The C API
            // requires valid attributes.
            let (queue, attr) = unsafe { (queue(srq), &*srq_attr) };
            let wanted = |bit, value| (mask & bit != 0).then_some(value);
            queue.modify(wanted(CAPACITY, attr.max_wr), wanted(LIMIT, attr.srq_limit))
        })
    })
}

/// Stores the attributes of a shared receive queue in `srq_attr` (`ibv_query_srq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_srq(
    srq: *mut ibv_srq,
    srq_attr: *mut ibv_srq_attr,
) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid shared receive queue.
    unsafe { forward!((*srq).context, ibv_query_srq(srq, srq_attr)) };
    verb(Verb::QuerySrq, number, || {
        // SAFETY: the queue belongs to this device, as `forward!` has checked. The C API requires
        // room for attributes.
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

/// Stores the number of an XRC shared receive queue in `srq_num` (`ibv_get_srq_num(3)`). Peers
/// address the queue by this number.
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: only contexts of this device have this function. The C API requires `srq_num` to
        // be valid for writes.
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

/// Posts receive requests to a shared receive queue (`ibv_post_srq_recv(3)`).
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let refuse = |errno| {
        // SAFETY: the C API requires `bad_wr` to be valid for writes.
        unsafe { bad_wr.write(wr) };
        number(errno)
    };
    verb(Verb::PostSrqRecv, refuse, || {
        // SAFETY: only contexts of this device have this function. The C API requires a list of
        // valid requests that ends with a null pointer, and `bad_wr` to be valid for writes.
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
