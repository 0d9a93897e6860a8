//! The verbs on asynchronous events.

use std::ptr;

use ibverbs_sys::{ibv_async_event, ibv_context, ibv_event_type};
use libc::c_int;

use super::answer::fetched;
use super::real::call;
use super::{fork, guard, is_ours, minus_one, open, verb};
use crate::context::Subject;
use crate::fault::Verb;

/// Fetches the next asynchronous event of the context, and stores it in `event`
/// (`ibv_get_async_event(3)`). Waits for an event, unless the program has made the descriptor
/// non-blocking. Returns 0, or -1 and sets errno.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { super::forward!(context, ibv_get_async_event(context, event) else -1) };
    verb(Verb::GetAsyncEvent, minus_one, || {
        fetched(|| {
            // SAFETY: the context belongs to this device, as `forward!` has checked. The C API
            // forbids closing it while a thread waits for its events.
            let next = unsafe { open::context(context) }.next_event()?;
            // SAFETY: the C API requires `event` to be valid for writes. Zeroes are a valid event.
            unsafe {
                ptr::write_bytes(event, 0, 1);
                (*event).event_type = next.kind;
                match next.subject {
                    // All pointers of the union are at the same offset.
                    Subject::Element(element) => {
                        (*event).element.cq = ptr::with_exposed_provenance_mut(element.address());
                    }
                    Subject::Port(port) => (*event).element.port_num = c_int::from(port),
                    Subject::Device => {}
                }
            }
            Ok(())
        })
    })
}

/// Acknowledges an asynchronous event (`ibv_ack_async_event(3)`), so that the object of the event
/// can be destroyed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the C API requires a fetched event. The object of such an event is not destroyed
    // before it is acknowledged.
    unsafe {
        let Some(context) = context_of(&*event) else {
            return;
        };
        if fork::is_inherited(context) {
            return;
        }
        if !is_ours(context) {
            return call!(ibv_ack_async_event(event));
        }
        guard((), || {
            open::context(context).acknowledge((*event).element.cq.addr());
        });
    }
}

/// Returns the context of the object to which an event belongs, or `None` for events of the device
/// or the port.
///
/// # Safety
/// The event must have been fetched, and not acknowledged.
unsafe fn context_of(event: &ibv_async_event) -> Option<*mut ibv_context> {
    type Kind = ibv_event_type;
    // SAFETY: the type of the event determines which pointer of the union is set.
    unsafe {
        Some(match event.event_type {
            Kind::IBV_EVENT_CQ_ERR => (*event.element.cq).context,
            Kind::IBV_EVENT_QP_FATAL
            | Kind::IBV_EVENT_QP_REQ_ERR
            | Kind::IBV_EVENT_QP_ACCESS_ERR
            | Kind::IBV_EVENT_COMM_EST
            | Kind::IBV_EVENT_SQ_DRAINED
            | Kind::IBV_EVENT_PATH_MIG
            | Kind::IBV_EVENT_PATH_MIG_ERR
            | Kind::IBV_EVENT_QP_LAST_WQE_REACHED => (*event.element.qp).context,
            Kind::IBV_EVENT_SRQ_ERR | Kind::IBV_EVENT_SRQ_LIMIT_REACHED => {
                (*event.element.srq).context
            }
            Kind::IBV_EVENT_WQ_FATAL => (*event.element.wq).context,
            _ => return None,
        })
    }
}
