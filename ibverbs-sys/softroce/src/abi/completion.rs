//! Completion channels and completion queues.

use std::cell::UnsafeCell;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use ibverbs_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_attr_mask, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_cq_init_attr_mask, ibv_create_cq_attr_flags, ibv_create_cq_wc_flags, ibv_modify_cq_attr,
    ibv_pd, ibv_wc,
};
use libc::{c_int, c_void};

use super::answer::{fetched, hand_out, handle, pointer, status};
use super::extended_poll::{self, Iteration};
use super::work_completion;
use super::{fail, forward, guard, minus_one, number, open, pd, verb};
use crate::census::{Counted, Kind, objects};
use crate::completion::{
    Arming, CompletionChannel, CompletionQueue, CompletionQueueAttributes, Moderation,
};
use crate::context::{Held, ProtectionDomain, Refusal, Shared};
use crate::fault::Verb;
use crate::limits;
use crate::nic::Nic;

/// A completion channel as C knows it.
#[repr(C)]
struct ChannelHandle {
    public: ibv_comp_channel,
    channel: Arc<CompletionChannel>,
    _counted: Counted,
}

/// A completion queue as C knows it: a plain one is the front of an extended one.
#[repr(C)]
pub(super) struct QueueHandle {
    /// In a cell, since C writes to it whoever else looks at the rest.
    _public: UnsafeCell<ibv_cq_ex>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) nic: Arc<Nic>,
    /// Where a program is that goes through the entries one by one.
    pub(super) iteration: Iteration,
    _channel: Option<Held<CompletionChannel>>,
    _domain: Option<Held<ProtectionDomain>>,
    _counted: Counted,
}

/// Parameters of a new completion queue, without its context.
struct Wanted {
    capacity: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    flags: u32,
    timestamps: bool,
    domain: *mut ibv_pd,
}

/// Returns the completion queue of a C object.
///
/// # Safety
/// `cq` must be one of this device, and the caller must not destroy it while the reference is used.
pub(crate) unsafe fn queue<'a>(cq: *const ibv_cq) -> &'a Arc<CompletionQueue> {
    // SAFETY: the caller's promise; ours all lie in such a handle.
    unsafe { &(*cq.cast::<QueueHandle>()).queue }
}

/// # Safety
/// `channel` must be one of this device, and the caller must not destroy it while the reference is used.
unsafe fn channel_of<'a>(channel: *const ibv_comp_channel) -> &'a Arc<CompletionChannel> {
    // SAFETY: the caller's promise; ours all lie in such a handle.
    unsafe { &(*channel.cast::<ChannelHandle>()).channel }
}

/// `ibv_create_comp_channel(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the caller gives an open context.
    unsafe { forward!(context, ibv_create_comp_channel(context)) };
    verb(
        Verb::CreateCompChannel,
        fail,
        // SAFETY: the context is ours.
        || match unsafe { open::nic(context) }.new_channel() {
            Ok(channel) => hand_out(ChannelHandle {
                public: ibv_comp_channel {
                    context,
                    fd: channel.number(),
                    refcnt: 0,
                },
                channel,
                _counted: Counted::new(Kind::CompletionChannel),
            }),
            Err(error) => fail(error.raw_os_error().unwrap_or(libc::EMFILE)),
        },
    )
}

/// `ibv_destroy_comp_channel(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller gives a completion channel.
    unsafe { forward!((*channel).context, ibv_destroy_comp_channel(channel)) };
    verb(Verb::DestroyCompChannel, number, || {
        status(|| {
            // SAFETY: the channel is ours; after this call the caller does not use it.
            unsafe {
                channel_of(channel).usage().close()?;
                drop(Box::from_raw(channel.cast::<ChannelHandle>()));
            }
            Ok(())
        })
    })
}

/// `ibv_get_cq_event(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller gives a completion channel.
    unsafe {
        forward!((*channel).context, ibv_get_cq_event(channel, cq, cq_context) else -1);
    }
    verb(Verb::GetCqEvent, minus_one, || {
        fetched(|| {
            // SAFETY: the channel is ours, and not destroyed as long as somebody waits for its events.
            let (nic, channel) = unsafe { (open::nic((*channel).context), channel_of(channel)) };
            let element = nic.next_event(channel)?;
            let named: *mut ibv_cq = ptr::with_exposed_provenance_mut(element.address());
            // SAFETY: a completion queue whose event was fetched waits for its acknowledgement.
            unsafe {
                *cq = named;
                *cq_context = (*named).cq_context;
            }
            Ok(())
        })
    })
}

/// `ibv_ack_cq_events(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: the caller gives a completion queue.
    unsafe { forward!((*cq).context, ibv_ack_cq_events(cq, nevents)) };
    guard((), || {
        // SAFETY: the completion queue is ours. A destruction that waits for this call may end as soon as
        // the last event is acknowledged, so the element is held on its own.
        let element = Arc::clone(unsafe { queue(cq) }.notifications());
        element.acknowledge(nevents);
    });
}

/// `ibv_create_cq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller gives an open context.
    unsafe {
        forward!(
            context,
            ibv_create_cq(context, cqe, cq_context, channel, comp_vector)
        );
    }
    verb(Verb::CreateCq, fail, || {
        let wanted = Wanted {
            // A negative capacity becomes a number above the limit, which is refused.
            capacity: cqe.cast_unsigned(),
            cq_context,
            channel,
            vector: comp_vector.cast_unsigned(),
            flags: 0,
            timestamps: false,
            domain: ptr::null_mut(),
        };
        // SAFETY: the context is ours, and the channel one of some library.
        pointer(|| unsafe { create(context, wanted) }).cast()
    })
}

/// `ibv_create_cq_ex(3)`
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    type Mask = ibv_cq_init_attr_mask;
    type Field = ibv_create_cq_wc_flags;
    const FLAGS: u32 = Mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    const DOMAIN: u32 = Mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    /// The fields that completions of this device can have: all but VLAN, flow tag and tag matching.
    const FIELDS: u32 = Field::IBV_WC_EX_WITH_BYTE_LEN.0
        | Field::IBV_WC_EX_WITH_IMM.0
        | Field::IBV_WC_EX_WITH_QP_NUM.0
        | Field::IBV_WC_EX_WITH_SRC_QP.0
        | Field::IBV_WC_EX_WITH_SLID.0
        | Field::IBV_WC_EX_WITH_SL.0
        | Field::IBV_WC_EX_WITH_DLID_PATH_BITS.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    /// The fields that need the time of the completion.
    const TIMES: u32 = Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    verb(Verb::CreateCq, fail, || {
        pointer(|| {
            // SAFETY: the caller gives attributes, whose comp_mask says which there are.
            unsafe {
                let attr = attr.cast_const();
                let mask = (*attr).comp_mask;
                if mask & !(FLAGS | DOMAIN) != 0 {
                    return Err(Refusal::Invalid);
                }
                if (*attr).wc_flags & !u64::from(FIELDS) != 0 {
                    return Err(Refusal::Unsupported);
                }
                let domain = if mask & DOMAIN != 0 {
                    (*attr).parent_domain
                } else {
                    ptr::null_mut()
                };
                if mask & DOMAIN != 0 && domain.is_null() {
                    return Err(Refusal::Invalid);
                }
                let wanted = Wanted {
                    capacity: (*attr).cqe,
                    cq_context: (*attr).cq_context,
                    channel: (*attr).channel,
                    vector: (*attr).comp_vector,
                    flags: if mask & FLAGS != 0 { (*attr).flags } else { 0 },
                    timestamps: (*attr).wc_flags & u64::from(TIMES) != 0,
                    domain,
                };
                create(context, wanted)
            }
        })
    })
}

/// Makes a completion queue.
///
/// # Safety
/// `context` must be one of this device; channel and domain must be null, or of some context.
unsafe fn create(context: *mut ibv_context, wanted: Wanted) -> Result<*mut ibv_cq_ex, Refusal> {
    const SINGLE_THREADED: u32 = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    const IGNORE_OVERRUN: u32 = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0;
    if wanted.vector >= limits::COMPLETION_VECTORS
        || wanted.flags & !(SINGLE_THREADED | IGNORE_OVERRUN) != 0
    {
        return Err(Refusal::Invalid);
    }
    if objects(Kind::CompletionQueue) >= limits::MAX_CQ as u64 {
        return Err(Refusal::Exhausted);
    }
    // SAFETY: the caller's promise; what is of the same context is ours too.
    let (nic, channel, domain) = unsafe {
        let channel = wanted.channel.as_ref();
        let domain = wanted.domain.as_ref();
        if channel.is_some_and(|channel| channel.context != context)
            || domain.is_some_and(|domain| domain.context != context)
        {
            return Err(Refusal::Invalid);
        }
        let channel = channel
            .map(|channel| Held::new(channel_of(channel)))
            .transpose()?;
        let domain = domain
            .map(|domain| Held::new(pd::domain(domain)))
            .transpose()?;
        (open::nic(context), channel, domain)
    };
    let attributes = CompletionQueueAttributes {
        capacity: wanted.capacity,
        channel: channel.as_ref().map(|channel| Arc::clone(channel.shared())),
        ignore_overrun: wanted.flags & IGNORE_OVERRUN != 0,
        timestamps: wanted.timestamps,
    };
    // SAFETY: the context is ours and open.
    let queue = CompletionQueue::new(
        unsafe { open::context(context) },
        &nic.deadlines,
        attributes,
    )?;
    // SAFETY: null pointers, numbers, missing functions and a mutex that is open.
    let mut public: ibv_cq_ex = unsafe { mem::zeroed() };
    public.context = context;
    public.handle = handle();
    public.channel = wanted.channel;
    public.cq_context = wanted.cq_context;
    public.cqe = wanted.capacity.cast_signed();
    extended_poll::fill(&mut public);
    let made: *mut ibv_cq_ex = hand_out(QueueHandle {
        _public: UnsafeCell::new(public),
        queue: Arc::clone(&queue),
        nic: Arc::clone(nic),
        iteration: Iteration::new(wanted.flags & SINGLE_THREADED != 0),
        _channel: channel,
        _domain: domain,
        _counted: Counted::new(Kind::CompletionQueue),
    });
    let address = made.expose_provenance();
    queue.element().identify(address);
    queue.notifications().identify(address);
    Ok(made)
}

/// `ibv_destroy_cq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller gives a completion queue.
    unsafe { forward!((*cq).context, ibv_destroy_cq(cq)) };
    verb(Verb::DestroyCq, number, || {
        status(|| {
            // SAFETY: the queue is ours; after this call the caller does not use it.
            unsafe {
                queue(cq).close()?;
                drop(Box::from_raw(cq.cast::<QueueHandle>()));
            }
            Ok(())
        })
    })
}

/// `ibv_resize_cq(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller gives a completion queue.
    unsafe { forward!((*cq).context, ibv_resize_cq(cq, cqe)) };
    verb(Verb::ResizeCq, number, || {
        status(|| {
            // SAFETY: the queue is ours.
            unsafe { (*cq).cqe = queue(cq).resize(cqe.cast_unsigned())?.cast_signed() };
            Ok(())
        })
    })
}

/// `ibv_modify_cq(3)`
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    const MODERATE: u32 = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
    verb(Verb::ModifyCq, number, || {
        // SAFETY: the caller gives attributes and a queue of ours.
        let (attr, queue) = unsafe { (&*attr, queue(cq)) };
        if attr.attr_mask & !MODERATE != 0 {
            return status(|| Err(Refusal::Invalid));
        }
        if attr.attr_mask & MODERATE != 0 {
            queue.moderate(Moderation {
                count: attr.moderate.cq_count,
                period: Duration::from_micros(attr.moderate.cq_period.into()),
            });
        }
        0
    })
}

/// `ibv_req_notify_cq(3)`
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    verb(Verb::ReqNotifyCq, number, || {
        let arming = if solicited_only == 0 {
            Arming::Any
        } else {
            Arming::Solicited
        };
        // SAFETY: the queue is ours.
        let QueueHandle { queue, nic, .. } = unsafe { &*cq.cast::<QueueHandle>() };
        queue.arm(arming);
        // A program that arms a queue is about to wait: from now on packets wake the engine.
        nic.watch();
        0
    })
}

/// `ibv_poll_cq(3)`
pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    verb(
        Verb::PollCq,
        |errno| -errno,
        || {
            let Ok(limit) = usize::try_from(num_entries) else {
                return -libc::EINVAL;
            };
            // SAFETY: the queue is ours.
            let QueueHandle { queue, nic, .. } = unsafe { &*cq.cast::<QueueHandle>() };
            // SAFETY: the caller has room for `limit` entries.
            let mut count = unsafe { take(queue, limit, wc) };
            if count == 0 {
                // A thread that polls does the device's work, and takes the completions of that work at once.
                nic.progress();
                // SAFETY: as before.
                count = unsafe { take_late(queue, limit, wc) };
                if count == 0 && limit > 0 && queue.has_overrun() {
                    // All completions from before the overrun are taken: the queue can no longer be used.
                    return -libc::EIO;
                }
            }
            // No more than num_entries.
            count as c_int
        },
    )
}

/// Takes entries as work completions; how many.
///
/// # Safety
/// There must be room for `limit` work completions at `place`.
#[inline(always)]
unsafe fn take(queue: &CompletionQueue, limit: usize, mut place: *mut ibv_wc) -> usize {
    queue.poll(limit, |entry| {
        // SAFETY: the caller's promise; no more than `limit` are taken.
        unsafe {
            place.write(work_completion::of(entry));
            place = place.add(1);
        }
    })
}

/// [`take`] as a function call: for the slow path of a poll that found nothing at first.
///
/// # Safety
/// There must be room for `limit` work completions at `place`.
#[inline(never)]
unsafe fn take_late(queue: &CompletionQueue, limit: usize, place: *mut ibv_wc) -> usize {
    // SAFETY: the caller's promise.
    unsafe { take(queue, limit, place) }
}
