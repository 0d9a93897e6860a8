//! Asynchronous events.

use std::ptr;

use ibverbs_sys::{ibv_async_event, ibv_context, ibv_event_type};
use libc::c_int;

use super::answer::fetched;
use super::real::call;
use super::{fork, guard, is_ours, minus_one, open, verb};
use crate::context::Subject;
use crate::fault::Verb;

/// `ibv_get_async_event(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller gives an open context.
    unsafe { super::forward!(context, ibv_get_async_event(context, event) else -1) };
    verb(Verb::GetAsyncEvent, minus_one, || {
        fetched(|| {
            // SAFETY: the context is ours, and open as long as somebody waits for its events.
            let next = unsafe { open::context(context) }.next_event()?;
            // SAFETY: the caller has room for an event; any bytes are one.
            unsafe {
                ptr::write_bytes(event, 0, 1);
                (*event).event_type = next.kind;
                match next.subject {
                    // The pointers all lie in the same place.
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

/// `ibv_ack_async_event(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller gives an event that it fetched, and the object of such an event is not
    // destroyed before this call.
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

/// Returns the context of the object that an event names, if it names any.
///
/// # Safety
/// The event must have been fetched, and not acknowledged.
unsafe fn context_of(event: &ibv_async_event) -> Option<*mut ibv_context> {
    type Kind = ibv_event_type;
    // SAFETY: which of the pointers it is follows from the kind.
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
