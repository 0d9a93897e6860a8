use std::cell::UnsafeCell;
use std::mem;
use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_context, ibv_cq, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_open_attr,
    ibv_qp_open_attr_mask, ibv_qp_state, ibv_qp_type, ibv_srq, ibv_wr_opcode, ibv_xrcd,
};
use libc::{c_int, c_uint};

use super::extended_post::{self, Operations};
use super::{completion, fail, forward, guard, number, open, pd, srq, verb, xrc};
use crate::context::{Element, HasUsage, InUse};
use crate::fault::Verb;
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind};
use crate::proto::{Service, State};
use crate::queue_pair::{
    Adapter, Batch, CreateError, Creation, Handle, Modification, QueuePair, number_of, service_of,
};
use crate::xrc::XrcDomain;

/// The C object that `ibv_create_qp` returns: the public structure, followed by private data of
/// this device.
///
/// Newer versions of the header `verbs.h` add function pointers to the end of [`ibv_qp_ex`]. The
/// field `later`, which follows the known part in memory, contains these pointers.
#[repr(C)]
pub(super) struct QueuePairHandle {
    /// The public structure, in a cell because C code may read and write it at any time.
    public: UnsafeCell<ibv_qp_ex>,
    later: extended_post::LaterFunctions,
    queue_pair: Arc<QueuePair>,
    nic: Arc<Nic>,
    handle: Handle,
    batch: Batch,
    /// Set if the program may post by the functions of [`ibv_qp_ex`]. The program must request this
    /// when it creates the queue pair.
    extended: bool,
    /// XRC domain by which the queue pair was opened, kept so that the program cannot close the
    /// domain first.
    _xrc: Option<InUse<XrcDomain>>,
    _counted: Counted,
}

impl QueuePairHandle {
    pub(super) fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.queue_pair
    }

    pub(super) fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Returns the work request ID and the flags for the next request of a batch. The program has
    /// stored them in the fields `wr_id` and `wr_flags` of the `ibv_qp_ex`.
    pub(super) fn next_request(&self) -> (u64, u32) {
        let public = self.public.get().cast_const();
        // SAFETY: the fields are valid as long as the object. The only thread that may write them
        // is in one of this queue pair's functions.
        unsafe { ((*public).wr_id, (*public).wr_flags) }
    }
}

/// Returns the [`QueuePairHandle`] that contains the queue pair `qp` as its first field, and thus
/// has the same address.
///
/// # Safety
/// `qp` must belong to this device, and must not be destroyed while the reference is used.
pub(super) unsafe fn object<'a>(qp: *const ibv_qp) -> &'a QueuePairHandle {
    // SAFETY: the caller guarantees a queue pair of this device, and each such queue pair is the
    // first field of an `QueuePairHandle`.
    unsafe { &*qp.cast() }
}

/// Creates a queue pair (`ibv_create_qp(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_create_qp(pd, qp_init_attr)) };
    verb(Verb::CreateQp, fail, || {
        // SAFETY: the C API requires valid attributes, whose objects are valid and not destroyed
        // during the call.
        unsafe {
            let given = &mut *qp_init_attr;
            let wanted = Settings {
                context: (*pd).context,
                pd,
                xrcd: ptr::null_mut(),
                operations: None,
                basic: *given,
            };
            make(wanted, &mut given.cap)
        }
    })
}

/// Creates a queue pair with extended attributes (`ibv_create_qp_ex(3)`).
pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    verb(Verb::CreateQp, fail, || {
        // SAFETY: the C API requires attributes that are valid as far as their mask has bits, and
        // whose objects are valid and not destroyed during the call.
        unsafe {
            match checked(context, qp_init_attr) {
                Ok(wanted) => make(wanted, &mut (*qp_init_attr).cap),
                Err(error) => fail(error.errno()),
            }
        }
    })
}

/// Opens an XRC target queue pair by its number (`ibv_open_qp(3)`).
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NUMBER: c_uint = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_NUM.0;
    const XRCD: c_uint = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_XRCD.0;
    const CONTEXT: c_uint = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_CONTEXT.0;
    const TYPE: c_uint = ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_TYPE.0;
    verb(Verb::OpenQp, fail, || {
        // SAFETY: the C API requires valid attributes.
        let attr = unsafe { &*attr };
        let needed = NUMBER | XRCD | TYPE;
        if attr.comp_mask & !(needed | CONTEXT) != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & needed != needed
            || attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV
            || attr.xrcd.is_null()
        {
            return fail(libc::EINVAL);
        }
        // SAFETY: the C API requires a valid XRC domain that is not closed during the call. Only
        // contexts of this device have this function.
        let (nic, domain, handle) = unsafe {
            if (*attr.xrcd).context != context {
                return fail(libc::EINVAL);
            }
            (
                open::nic(context),
                xrc::domain(attr.xrcd),
                new_handle(context),
            )
        };
        let Ok(held) = InUse::new(domain) else {
            return fail(libc::EINVAL);
        };
        let found = nic
            .queue_pairs
            .find(attr.qp_num)
            .filter(|found| found.xrc_domain() == Some(domain.id()))
            .filter(|found| found.open(handle.clone()));
        let Some(queue_pair) = found else {
            return fail(libc::EINVAL);
        };
        let wanted = Settings {
            context,
            pd: ptr::null_mut(),
            xrcd: attr.xrcd,
            operations: None,
            basic: ibv_qp_init_attr {
                qp_type: attr.qp_type,
                qp_context: if attr.comp_mask & CONTEXT != 0 {
                    attr.qp_context
                } else {
                    ptr::null_mut()
                },
                ..ibv_qp_init_attr::default()
            },
        };
        publish(&wanted, queue_pair, Arc::clone(nic), handle, Some(held))
    })
}

/// Destroys a queue pair (`ibv_destroy_qp(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_destroy_qp(qp)) };
    verb(Verb::DestroyQp, number, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked.
        let object = unsafe { object(qp) };
        let QueuePairHandle {
            queue_pair,
            nic,
            handle,
            ..
        } = object;
        let shared = queue_pair.service() == Service::XrcTarget;
        if !shared {
            let closed = (queue_pair.withdraw_and_wait()).and_then(|()| queue_pair.usage().close());
            if let Err(refusal) = closed {
                queue_pair.republish();
                return refusal.errno();
            }
        }
        if queue_pair.release(&handle.element) {
            // The completion of a received message may be all that the program waited for. The
            // acknowledgement of the message is sent now, or the peer would never get it.
            nic.transmit_last(queue_pair);
            nic.queue_pairs.remove(queue_pair.number());
            queue_pair.close();
            nic.remove(queue_pair);
        }
        handle.context.withdraw(&handle.element);
        // SAFETY: `publish` created the object by `Box::into_raw`, and the C API forbids its use
        // after this call.
        drop(unsafe { Box::from_raw(qp.cast::<QueuePairHandle>()) });
        0
    })
}

/// Changes the state and the attributes of a queue pair (`ibv_modify_qp(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
    const ENDS: [ibv_qp_state; 2] = [ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_ERR];
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_modify_qp(qp, attr, attr_mask)) };
    verb(Verb::ModifyQp, number, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked.
        let object = unsafe { object(qp) };
        // SAFETY: the C API requires the attributes that the mask names.
        let values = unsafe { attributes(attr) };
        // SAFETY: any 16 bytes are a valid GID.
        let destination = Ipv6Addr::from(unsafe { values.ah_attr.grh.dgid.raw });
        let wanted = Modification {
            mask: attr_mask.cast_unsigned(),
            values: &values,
            destination,
        };
        let ends = attr_mask & STATE != 0 && ENDS.contains(&values.qp_state);
        if object.nic.has_failed() && !ends {
            return libc::EIO;
        }
        if ends {
            if values.qp_state == ibv_qp_state::IBV_QPS_ERR {
                object.nic.await_acknowledgements(&object.queue_pair);
            }
            // Sends the pending acknowledgements of received messages, as the destruction of a
            // queue pair does.
            object.nic.transmit(&object.queue_pair);
        }
        match object.queue_pair.modify(&wanted) {
            Ok(state) => {
                // SAFETY: only the owner of the queue pair may read the field `state`, and the
                // owner is in this call.
                unsafe { (*qp).state = number_of(state) };
                if state == State::Reset {
                    object.nic.cancel_timer(&object.queue_pair);
                }
                if attr_mask & STATE != 0 && values.qp_state == ibv_qp_state::IBV_QPS_RTR {
                    object.nic.begin_handshake(&object.queue_pair);
                }
                object.nic.transmit(&object.queue_pair);
                0
            }
            Err(error) => error.errno(),
        }
    })
}

/// Stores the attributes of a queue pair in `attr` and `init_attr` (`ibv_query_qp(3)`). All
/// attributes are stored, even if `attr_mask` does not request them. Returns 0 or an error number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_query_qp(qp, attr, attr_mask, init_attr)) };
    verb(Verb::QueryQp, number, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked.
        let object = unsafe { object(qp) };
        let current = object.queue_pair.query();
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked. The C API
        // requires room for both results.
        unsafe {
            let public = &mut *qp;
            if attr_mask & ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed() != 0 {
                public.state = current.qp_state;
            }
            write_attributes(attr, &current);
            init_attr.write(ibv_qp_init_attr {
                qp_context: public.qp_context,
                send_cq: public.send_cq,
                recv_cq: public.recv_cq,
                srq: public.srq,
                cap: object.queue_pair.capabilities(),
                qp_type: public.qp_type,
                sq_sig_all: c_int::from(object.queue_pair.signal_all()),
            });
        }
        0
    })
}

/// Returns the extended form of a queue pair (`ibv_qp_to_qp_ex(3)`), or null if the queue pair was
/// not created for extended posting.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_qp_to_qp_ex(qp)) };
    guard(ptr::null_mut(), || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked.
        if unsafe { object(qp) }.extended {
            qp.cast()
        } else {
            ptr::null_mut()
        }
    })
}

/// Returns whether the data of an operation `op` on a queue pair arrives in memory in ascending
/// order (`ibv_query_qp_data_in_order(3)`). If the data arrives in this order, a program may wait
/// for a message by polling its last byte. The result is 0 if this order is not guaranteed.
/// Otherwise the result is 1, or a bit mask if `flags` requests a bit mask.
///
/// The device processes packets in order, and copies data in ascending order. On every processor,
/// other threads see the last bytes of a message after all others. For the other bytes, threads see
/// the order only on processors that make stores visible in order, such as x86-64.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    op: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    const RETURN_CAPS: u32 = 1;
    const WHOLE_MESSAGE: c_int = 1;
    const ALIGNED_128_BYTES: c_int = 1 << 1;
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_query_qp_data_in_order(qp, op, flags) else 0) };
    guard(0, || {
        // SAFETY: the queue pair belongs to this device, as `forward!` has checked.
        let service = unsafe { object(qp) }.queue_pair.service();
        let connected = service != Service::UnreliableDatagram;
        let in_order = cfg!(target_arch = "x86_64")
            && match op {
                ibv_wr_opcode::IBV_WR_SEND
                | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
                | ibv_wr_opcode::IBV_WR_SEND_WITH_INV => true,
                ibv_wr_opcode::IBV_WR_RDMA_WRITE | ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                    connected
                }
                ibv_wr_opcode::IBV_WR_RDMA_READ => {
                    connected && service != Service::UnreliableConnection
                }
                _ => false,
            };
        match (in_order, flags & RETURN_CAPS != 0) {
            (true, true) => WHOLE_MESSAGE | ALIGNED_128_BYTES,
            (true, false) => 1,
            (false, _) => 0,
        }
    })
}

/// Sets the options for enhanced connection establishment (`ibv_set_ece(3)`). Always fails with
/// `EOPNOTSUPP` for queue pairs of this device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_set_ece(qp, ece)) };
    guard(libc::EIO, || libc::EOPNOTSUPP)
}

/// Queries the options for enhanced connection establishment (`ibv_query_ece(3)`). Always fails
/// with `EOPNOTSUPP` for queue pairs of this device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid queue pair.
    unsafe { forward!((*qp).context, ibv_query_ece(qp, ece)) };
    guard(libc::EIO, || libc::EOPNOTSUPP)
}

/// Arguments for creating or opening a queue pair. Each function that creates or opens queue pairs
/// converts its arguments to this form.
struct Settings {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    /// Operations that the program will post to the queue pair by the functions of [`ibv_qp_ex`].
    /// `None` if the program did not request these functions.
    operations: Option<Operations>,
    basic: ibv_qp_init_attr,
}

/// Checks the attributes of a new queue pair, and converts them to [`Settings`]. Ignores attributes
/// whose bits are not set in the mask `comp_mask`. Fails if the device does not support an
/// attribute.
///
/// # Safety
/// `given` must point to attributes, and the attributes that its mask names must be valid.
unsafe fn checked(
    context: *mut ibv_context,
    given: *const ibv_qp_init_attr_ex,
) -> Result<Settings, CreateError> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    const XRCD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
    const FLAGS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
    const OPERATIONS: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    // SAFETY: the caller guarantees the attributes that the mask names; others are not read.
    unsafe {
        let mask = (*given).comp_mask;
        let has = |bit: u32| mask & bit != 0;
        // Segmentation offload and receive-side scaling need hardware. Bits of later versions are
        // unknown.
        if mask & !(PD | XRCD | FLAGS | OPERATIONS) != 0 {
            return Err(CreateError::Unsupported("an attribute of the mask"));
        }
        if has(FLAGS) && (*given).create_flags != 0 {
            return Err(CreateError::Unsupported("a creation flag"));
        }
        let operations = if has(OPERATIONS) {
            let operations = Operations::from_bits((*given).send_ops_flags)
                .ok_or(CreateError::Unsupported("an operation of send_ops_flags"))?;
            if !operations.are_supported_by(service_of((*given).qp_type)?) {
                return Err(CreateError::Unsupported("an operation of send_ops_flags"));
            }
            Some(operations)
        } else {
            None
        };
        Ok(Settings {
            context,
            pd: if has(PD) {
                (*given).pd
            } else {
                ptr::null_mut()
            },
            xrcd: if has(XRCD) {
                (*given).xrcd
            } else {
                ptr::null_mut()
            },
            operations,
            // The extended attributes begin with the plain ones.
            basic: *given.cast::<ibv_qp_init_attr>(),
        })
    }
}

/// Creates a queue pair with the attributes `wanted`, and returns its C object. Stores the actual
/// limits of the queue pair, such as the number of requests, in `capabilities`. Sets errno and
/// returns null on failure.
///
/// # Safety
/// The context must belong to this device. The objects that the queue pair uses must be valid and
/// not be destroyed during the call.
unsafe fn make(wanted: Settings, capabilities: &mut ibverbs_sys::ibv_qp_cap) -> *mut ibv_qp {
    // SAFETY: the caller guarantees the conditions of this function.
    let made = unsafe {
        let nic = Arc::clone(open::nic(wanted.context));
        let handle = new_handle(wanted.context);
        create(&wanted, &nic, handle.clone()).map(|queue_pair| (nic, handle, queue_pair))
    };
    match made {
        Ok((nic, handle, queue_pair)) => {
            *capabilities = queue_pair.capabilities();
            publish(&wanted, queue_pair, nic, handle, None)
        }
        Err(error) => fail(error.errno()),
    }
}

/// Creates a queue pair of `nic` with the attributes `wanted`, without the `ibv_qp` by which the
/// program uses the queue pair: [`publish`] creates this. `handle` refers to the open device to
/// which the queue pair will belong.
///
/// # Safety
/// The context must belong to this device. The objects that the queue pair uses must be valid and
/// not be destroyed during the call.
unsafe fn create(
    wanted: &Settings,
    nic: &Arc<Nic>,
    handle: Handle,
) -> Result<Arc<QueuePair>, CreateError> {
    let basic = &wanted.basic;
    let service = service_of(basic.qp_type)?;
    let context = wanted.context;
    // SAFETY: the caller guarantees the conditions of this function.
    let (domain, send_queue, receive_queue, shared_queue, xrc) = unsafe {
        (
            used_object(context, wanted.pd, pd::domain, "the protection domain")?,
            used_object(
                context,
                basic.send_cq,
                completion::queue,
                "a completion queue",
            )?,
            used_object(
                context,
                basic.recv_cq,
                completion::queue,
                "a completion queue",
            )?,
            used_object(context, basic.srq, srq::queue, "the shared receive queue")?,
            used_object(context, wanted.xrcd, xrc::domain, "the XRC domain")?,
        )
    };
    let device: Arc<dyn Adapter> = Arc::clone(nic) as Arc<dyn Adapter>;
    nic.queue_pairs.insert(|number| {
        let creation = Creation {
            handle,
            service,
            domain,
            send_queue,
            receive_queue,
            shared_queue,
            xrc,
            capabilities: basic.cap,
            signal_all: basic.sq_sig_all != 0,
        };
        QueuePair::new(number, &device, creation)
    })
}

/// Returns the softroce object that the C object `object` contains, for use by a new queue pair.
/// Returns `None` if `object` is null. Fails if the object belongs to another context than
/// `context`. `inner` converts the C object to the softroce object, and `what` names the object in
/// the error message.
///
/// # Safety
/// `object` must be null, or valid and begin with a pointer to its context. If the context belongs
/// to this device, the conditions of `inner` must hold.
unsafe fn used_object<'a, C, T>(
    context: *mut ibv_context,
    object: *const C,
    inner: unsafe fn(*const C) -> &'a T,
    what: &'static str,
) -> Result<Option<&'a T>, CreateError> {
    if object.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees the conditions. An object of the same context belongs to this
    // device.
    unsafe {
        if object.cast::<*mut ibv_context>().read() != context {
            return Err(CreateError::Foreign(what));
        }
        Ok(Some(inner(object)))
    }
}

const _: () = {
    assert!(mem::offset_of!(ibv_pd, context) == 0);
    assert!(mem::offset_of!(ibv_cq, context) == 0);
    assert!(mem::offset_of!(ibv_srq, context) == 0);
    assert!(mem::offset_of!(ibv_xrcd, context) == 0);
};

/// Creates the [`Handle`] of a new queue pair. The handle contains a reference to the open device
/// `context`, and a new record ([`Element`]) of the asynchronous events of the queue pair.
///
/// # Safety
/// `context` must belong to this device.
unsafe fn new_handle(context: *mut ibv_context) -> Handle {
    Handle {
        // SAFETY: the caller guarantees the conditions of this function.
        context: Arc::clone(unsafe { open::context(context) }),
        element: Element::new(),
    }
}

/// Creates the C object (`ibv_qp`) by which the program uses `queue_pair`, and returns a pointer to
/// it. `wanted` contains the attributes that the program has requested. The object holds
/// `queue_pair`, `nic`, `handle` and `xrc`. `xrc` is the XRC domain by which the program has opened
/// an existing XRC target (`ibv_open_qp(3)`), and `None` for a new queue pair.
fn publish(
    wanted: &Settings,
    queue_pair: Arc<QueuePair>,
    nic: Arc<Nic>,
    handle: Handle,
    xrc: Option<InUse<XrcDomain>>,
) -> *mut ibv_qp {
    let basic = &wanted.basic;
    let mut public = ibv_qp_ex::default();
    let target = queue_pair.service() == Service::XrcTarget;
    let initiator = queue_pair.service() == Service::XrcInitiator;
    let base = &mut public.qp_base;
    base.context = wanted.context;
    base.qp_context = basic.qp_context;
    base.handle = queue_pair.number();
    base.qp_num = queue_pair.number();
    base.qp_type = basic.qp_type;
    base.state = ibv_qp_state::IBV_QPS_RESET;
    if !target {
        base.pd = wanted.pd;
        base.send_cq = basic.send_cq;
    }
    if !target && !initiator {
        base.recv_cq = basic.recv_cq;
        base.srq = basic.srq;
    }
    extended_post::set_functions(&mut public);
    let element = Arc::clone(&handle.element);
    let object = Box::into_raw(Box::new(QueuePairHandle {
        public: UnsafeCell::new(public),
        later: extended_post::LaterFunctions::new(),
        queue_pair,
        nic,
        handle,
        batch: Batch::default(),
        extended: wanted.operations.is_some(),
        _xrc: xrc,
        _counted: Counted::new(Kind::QueuePair),
    }));
    element.identify(object.expose_provenance());
    object.cast()
}

/// Length in bytes of the attributes that all versions of the headers have: all fields before
/// `rate_limit`, which the device does not support.
const COMMON_LEN: usize = mem::offset_of!(ibv_qp_attr, rate_limit);

/// Copies queue pair attributes from the C structure `from`. A program with old headers passes a
/// shorter structure. So only the fields that every version of the structure has are copied. All
/// other fields of the result are zero.
///
/// # Safety
/// `from` must point to attributes.
unsafe fn attributes(from: *const ibv_qp_attr) -> ibv_qp_attr {
    let mut values = ibv_qp_attr::default();
    // SAFETY: the caller guarantees valid attributes. The attributes are integers, for which any
    // bytes are valid.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut values).cast(), COMMON_LEN) };
    values
}

/// Copies the queue pair attributes `values` to the C structure `to`. A program with old headers
/// passes a shorter structure. So only the fields that every version of the structure has are
/// written.
///
/// # Safety
/// `to` must be valid for writes of attributes.
unsafe fn write_attributes(to: *mut ibv_qp_attr, values: &ibv_qp_attr) {
    // SAFETY: the caller guarantees the conditions of this function.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(values).cast::<u8>(), to.cast(), COMMON_LEN) };
}
