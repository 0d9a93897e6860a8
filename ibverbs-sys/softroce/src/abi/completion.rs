//! The verbs on completion channels and completion queues.

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

use super::answer::{fetched, handle, into_c_object, pointer, status};
use super::extended_poll::{self, Iteration};
use super::work_completion;
use super::{fail, forward, guard, minus_one, number, open, pd, verb};
use crate::completion::{
    Arming, CompletionChannel, CompletionQueue, CompletionQueueAttributes, Moderation,
};
use crate::context::{HasUsage, InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::limits;
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind, objects};

/// The C object that `ibv_create_comp_channel` returns: the public structure, followed by the
/// channel of this device.
#[repr(C)]
struct ChannelHandle {
    public: ibv_comp_channel,
    channel: Arc<CompletionChannel>,
    _counted: Counted,
}

/// The C object of a completion queue: the public structure, and the device's private data. The
/// structure of a plain queue is the beginning of the structure of an extended one.
#[repr(C)]
pub(super) struct QueueHandle {
    /// The public structure. In a cell, because C code writes to it while other threads have
    /// references to the object.
    _public: UnsafeCell<ibv_cq_ex>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) nic: Arc<Nic>,
    /// State of the iteration by `ibv_start_poll` and `ibv_next_poll` over the entries of an
    /// extended queue.
    pub(super) iteration: Iteration,
    _channel: Option<InUse<CompletionChannel>>,
    _domain: Option<InUse<ProtectionDomain>>,
    _counted: Counted,
}

/// Attributes of a new completion queue: the arguments of `ibv_create_cq`, or the fields of the
/// structure that the program passes to `ibv_create_cq_ex`.
struct Settings {
    capacity: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: u32,
    flags: u32,
    timestamps: bool,
    domain: *mut ibv_pd,
}

/// Returns the completion queue that the C object `cq` contains.
///
/// # Safety
/// `cq` must belong to this device, and must not be destroyed while the reference is used.
pub(crate) unsafe fn queue<'a>(cq: *const ibv_cq) -> &'a Arc<CompletionQueue> {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of a `QueueHandle`.
    unsafe { &(*cq.cast::<QueueHandle>()).queue }
}

/// Returns the [`CompletionChannel`] that is stored in the C object `channel`.
///
/// # Safety
/// `channel` must belong to this device, and must not be destroyed while the reference is used.
unsafe fn channel_of<'a>(channel: *const ibv_comp_channel) -> &'a Arc<CompletionChannel> {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of a `ChannelHandle`.
    unsafe { &(*channel.cast::<ChannelHandle>()).channel }
}

/// Creates a completion channel (`ibv_create_comp_channel(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { forward!(context, ibv_create_comp_channel(context)) };
    verb(
        Verb::CreateCompChannel,
        fail,
        // SAFETY: the context belongs to this device, as `forward!` has checked.
        || match unsafe { open::nic(context) }.new_channel() {
            Ok(channel) => into_c_object(ChannelHandle {
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

/// Destroys a completion channel (`ibv_destroy_comp_channel(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid completion channel.
    unsafe { forward!((*channel).context, ibv_destroy_comp_channel(channel)) };
    verb(Verb::DestroyCompChannel, number, || {
        status(|| {
            // SAFETY: the channel belongs to this device, and was created by `into_c_object`. The C
            // API forbids its use after this call.
            unsafe {
                channel_of(channel).usage().close()?;
                drop(Box::from_raw(channel.cast::<ChannelHandle>()));
            }
            Ok(())
        })
    })
}

/// Waits for the next completion event of a channel (`ibv_get_cq_event(3)`), and stores the
/// completion queue of the event in `cq`. Returns 0, or -1 and sets errno.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid completion channel.
    unsafe {
        forward!((*channel).context, ibv_get_cq_event(channel, cq, cq_context) else -1);
    }
    verb(Verb::GetCqEvent, minus_one, || {
        fetched(|| {
            // SAFETY: the channel belongs to this device, as `forward!` has checked. The C API
            // forbids its destruction while a thread waits for its events.
            let (nic, channel) = unsafe { (open::nic((*channel).context), channel_of(channel)) };
            let element = nic.next_event(channel)?;
            let named: *mut ibv_cq = ptr::with_exposed_provenance_mut(element.address());
            // SAFETY: a completion queue is not destroyed before its fetched event is acknowledged.
            // The C API requires both pointers to be valid for writes.
            unsafe {
                *cq = named;
                *cq_context = (*named).cq_context;
            }
            Ok(())
        })
    })
}

/// Acknowledges `nevents` completion events of the queue `cq`, which the program has fetched from a
/// completion channel (`ibv_ack_cq_events(3)`). `ibv_destroy_cq` waits until all fetched events are
/// acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: the C API requires the caller to pass a valid completion queue.
    unsafe { forward!((*cq).context, ibv_ack_cq_events(cq, nevents)) };
    guard((), || {
        // SAFETY: the completion queue belongs to this device, as `forward!` has checked. A thread
        // that waits in `ibv_destroy_cq` may free the queue as soon as the last event is
        // acknowledged, so this thread owns the element.
        let element = Arc::clone(unsafe { queue(cq) }.notifications());
        element.acknowledge(nevents);
    });
}

/// Creates a completion queue (`ibv_create_cq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe {
        forward!(
            context,
            ibv_create_cq(context, cqe, cq_context, channel, comp_vector)
        );
    }
    verb(Verb::CreateCq, fail, || {
        let wanted = Settings {
            // A negative capacity becomes a number above the limit, which is rejected.
            capacity: cqe.cast_unsigned(),
            cq_context,
            channel,
            vector: comp_vector.cast_unsigned(),
            flags: 0,
            timestamps: false,
            domain: ptr::null_mut(),
        };
        // SAFETY: the context belongs to this device, as `forward!` has checked. The C API requires
        // the channel to be null or valid.
        pointer(|| unsafe { create(context, wanted) }).cast()
    })
}

/// Creates an extended completion queue (`ibv_create_cq_ex(3)`).
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    type Mask = ibv_cq_init_attr_mask;
    type Field = ibv_create_cq_wc_flags;
    const FLAGS: u32 = Mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    const DOMAIN: u32 = Mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    /// Completion fields that this device supports: all except VLAN, flow tag and tag matching.
    const FIELDS: u32 = Field::IBV_WC_EX_WITH_BYTE_LEN.0
        | Field::IBV_WC_EX_WITH_IMM.0
        | Field::IBV_WC_EX_WITH_QP_NUM.0
        | Field::IBV_WC_EX_WITH_SRC_QP.0
        | Field::IBV_WC_EX_WITH_SLID.0
        | Field::IBV_WC_EX_WITH_SL.0
        | Field::IBV_WC_EX_WITH_DLID_PATH_BITS.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    /// Completion fields with a time. If the program requests one of them, the device records the
    /// time of each completion.
    const TIMES: u32 = Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0
        | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    verb(Verb::CreateCq, fail, || {
        pointer(|| {
            // SAFETY: the C API requires valid attributes. Fields beyond the original ones are only
            // read if `comp_mask` has their bits.
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
                let wanted = Settings {
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

/// Creates a completion queue of `context` with the attributes `wanted`, and returns its C object.
/// Fails if an attribute is invalid or a limit is exceeded.
///
/// # Safety
/// `context` must belong to this device. The channel and the domain must each be null or valid.
unsafe fn create(context: *mut ibv_context, wanted: Settings) -> Result<*mut ibv_cq_ex, Refusal> {
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
    // SAFETY: the caller guarantees the conditions of this function. Objects of the same context
    // belong to this device.
    let (nic, channel, domain) = unsafe {
        let channel = wanted.channel.as_ref();
        let domain = wanted.domain.as_ref();
        if channel.is_some_and(|channel| channel.context != context)
            || domain.is_some_and(|domain| domain.context != context)
        {
            return Err(Refusal::Invalid);
        }
        let channel = channel
            .map(|channel| InUse::new(channel_of(channel)))
            .transpose()?;
        let domain = domain
            .map(|domain| InUse::new(pd::domain(domain)))
            .transpose()?;
        (open::nic(context), channel, domain)
    };
    let attributes = CompletionQueueAttributes {
        capacity: wanted.capacity,
        channel: channel.as_ref().map(|channel| Arc::clone(channel.shared())),
        ignore_overrun: wanted.flags & IGNORE_OVERRUN != 0,
        timestamps: wanted.timestamps,
    };
    // SAFETY: the caller guarantees that the context belongs to this device and is open.
    let queue = CompletionQueue::new(
        unsafe { open::context(context) },
        &nic.deadlines,
        attributes,
    )?;
    // SAFETY: zeroes are valid for all fields: null pointers, integers, absent functions, and an
    // unlocked mutex.
    let mut public: ibv_cq_ex = unsafe { mem::zeroed() };
    public.context = context;
    public.handle = handle();
    public.channel = wanted.channel;
    public.cq_context = wanted.cq_context;
    public.cqe = wanted.capacity.cast_signed();
    extended_poll::set_functions(&mut public);
    let made: *mut ibv_cq_ex = into_c_object(QueueHandle {
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

/// Destroys a completion queue (`ibv_destroy_cq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid completion queue.
    unsafe { forward!((*cq).context, ibv_destroy_cq(cq)) };
    verb(Verb::DestroyCq, number, || {
        status(|| {
            // SAFETY: the queue belongs to this device, and was created by `into_c_object`. The C
            // API forbids its use after this call.
            unsafe {
                queue(cq).close()?;
                drop(Box::from_raw(cq.cast::<QueueHandle>()));
            }
            Ok(())
        })
    })
}

/// Changes the capacity of a completion queue (`ibv_resize_cq(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid completion queue.
    unsafe { forward!((*cq).context, ibv_resize_cq(cq, cqe)) };
    verb(Verb::ResizeCq, number, || {
        status(|| {
            // SAFETY: the queue belongs to this device, as `forward!` has checked.
            unsafe { (*cq).cqe = queue(cq).resize(cqe.cast_unsigned())?.cast_signed() };
            Ok(())
        })
    })
}

/// Sets for how many completions, and for how long, a completion queue may delay its completion
/// event (`ibv_modify_cq(3)`). Returns 0 or an error number.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    const MODERATE: u32 = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
    verb(Verb::ModifyCq, number, || {
        // SAFETY: the C API requires valid attributes. Only contexts of this device have this
        // function, so the queue belongs to it.
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

/// Requests a completion event for the next completion of a completion queue
/// (`ibv_req_notify_cq(3)`). If `solicited_only` is not 0, only a solicited or failed completion
/// causes the event.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    verb(Verb::ReqNotifyCq, number, || {
        let arming = if solicited_only == 0 {
            Arming::Any
        } else {
            Arming::Solicited
        };
        // SAFETY: only contexts of this device have this function, so the queue belongs to it.
        let QueueHandle { queue, nic, .. } = unsafe { &*cq.cast::<QueueHandle>() };
        queue.arm(arming);
        nic.armed(queue.channel());
        0
    })
}

/// Removes at most `num_entries` completions from a completion queue, and stores them in `wc`
/// (`ibv_poll_cq(3)`). If the queue is empty, first receives and processes packets.
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
            // SAFETY: only contexts of this device have this function, so the queue belongs to it.
            let QueueHandle { queue, nic, .. } = unsafe { &*cq.cast::<QueueHandle>() };
            // SAFETY: the C API requires room for `num_entries` work completions.
            let mut count = unsafe { take(queue, limit, wc) };
            if count == 0 {
                // The polling thread processes packets, and takes the resulting completions at
                // once.
                nic.progress();
                // SAFETY: the C API requires room for `num_entries` work completions.
                count = unsafe { take_uninlined(queue, limit, wc) };
                if count == 0 && limit > 0 && queue.has_overrun() {
                    // The queue has overrun, and all completions from before the overrun were
                    // taken: the queue cannot be used any more.
                    return -libc::EIO;
                }
            }
            // The number is at most `num_entries`, so it fits.
            count as c_int
        },
    )
}

/// Removes at most `limit` entries from a completion queue, and stores them as work completions in
/// the array at `place`. Returns the number of removed entries.
///
/// # Safety
/// `place` must be valid for writes of `limit` work completions.
#[inline(always)]
unsafe fn take(queue: &CompletionQueue, limit: usize, mut place: *mut ibv_wc) -> usize {
    queue.poll(limit, |entry| {
        // SAFETY: at most `limit` entries are stored, for which the caller guarantees room.
        unsafe {
            place.write(work_completion::of(entry));
            place = place.add(1);
        }
    })
}

/// Calls [`take`], and returns its result: the number of work completions. Used after a poll has
/// found the completion queue empty and has then processed packets. The function is not inlined, so
/// that the code of a poll that finds entries stays short.
///
/// # Safety
/// `place` must be valid for writes of `limit` work completions.
#[inline(never)]
unsafe fn take_uninlined(queue: &CompletionQueue, limit: usize, place: *mut ibv_wc) -> usize {
    // SAFETY: the caller guarantees room for `limit` work completions.
    unsafe { take(queue, limit, place) }
}
