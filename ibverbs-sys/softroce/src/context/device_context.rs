use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use ibverbs_sys::ibv_event_type;

use parking_lot::Mutex;

use super::{Element, EventQueue};
use crate::descriptor::Descriptor;

/// Context of an opened device: the part of an `ibv_context` that queues asynchronous events for
/// the program.
#[derive(Debug)]
pub struct Context {
    events: EventQueue<AsyncEvent>,
    /// Duplicate of the event descriptor that is given to the program. The device does not use the
    /// duplicate.
    program_descriptor: Descriptor,
    /// Objects of the events that the program has fetched and not acknowledged, with one entry for
    /// each event.
    fetched: Mutex<Vec<Arc<Element>>>,
}

/// An asynchronous event (IBTA 11.6.3), such as an error of a queue pair or a change of the port.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// Type of the event.
    pub kind: ibv_event_type,
    /// Object, port or device to which the event belongs.
    pub subject: Subject,
}

/// Object of the program, port or device to which an asynchronous event belongs.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Queue pair, completion queue or shared receive queue.
    Element(Arc<Element>),
    /// The port with this number.
    Port(u8),
    /// The whole device.
    Device,
}

impl Context {
    /// Creates the queue of asynchronous events of a newly opened device (`ibv_context`). The queue
    /// is empty. Fails if the descriptors for the events cannot be created.
    pub fn new() -> io::Result<Arc<Self>> {
        let events = EventQueue::new()?;
        Ok(Arc::new(Self {
            program_descriptor: Descriptor::for_program(events.as_fd())?,
            events,
            fetched: Mutex::default(),
        }))
    }

    /// Returns the number of this context's descriptor for asynchronous events (`async_fd`).
    pub(crate) fn number(&self) -> RawFd {
        self.program_descriptor.as_raw_fd()
    }

    /// Queues an asynchronous event of an object of this context. Does nothing if an equal event is
    /// queued and not fetched yet, so events that a peer can cause do not accumulate.
    pub fn raise(&self, kind: ibv_event_type, element: &Arc<Element>) {
        self.queue(AsyncEvent {
            kind,
            subject: Subject::Element(Arc::clone(element)),
        });
    }

    /// Queues an asynchronous event of the kind `kind` for the port with the number `port`.
    pub fn raise_port(&self, kind: ibv_event_type, port: u8) {
        self.queue(AsyncEvent {
            kind,
            subject: Subject::Port(port),
        });
    }

    /// Queues an asynchronous event of the kind `kind` for the whole device.
    pub fn raise_device(&self, kind: ibv_event_type) {
        self.queue(AsyncEvent {
            kind,
            subject: Subject::Device,
        });
    }

    /// Fetches the next asynchronous event (`ibv_get_async_event`). If no event is queued, waits
    /// for an event, unless the program has made the descriptor non-blocking.
    pub fn next_event(&self) -> io::Result<AsyncEvent> {
        let event = self.events.take(AsyncEvent::element)?;
        if let Some(element) = event.element() {
            self.fetched.lock().push(Arc::clone(element));
        }
        Ok(event)
    }

    /// Acknowledges one event that the program has fetched (`ibv_ack_async_event`). `address` is
    /// the address of the C object that the event concerns. The destruction of this object waits
    /// until all its fetched events are acknowledged.
    pub fn acknowledge(&self, address: usize) {
        let mut fetched = self.fetched.lock();
        if let Some(place) = fetched
            .iter()
            .position(|element| element.address() == address)
        {
            fetched.swap_remove(place).acknowledge(1);
        }
    }

    /// Removes the queued events of an object that is being destroyed. Then waits until the program
    /// has acknowledged all fetched events of the object. `element` is the [`Element`] (event
    /// record) of the object.
    pub fn withdraw(&self, element: &Arc<Element>) {
        self.events.withdraw(element, AsyncEvent::element);
    }

    fn queue(&self, event: AsyncEvent) {
        let element = event.element().cloned();
        let same =
            |other: &AsyncEvent| other.kind == event.kind && other.subject.is_same(&event.subject);
        self.events.push(element.as_deref(), event.clone(), same);
    }
}

impl AsFd for Context {
    /// Returns the descriptor that is readable while events are queued (`async_fd` of the context).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsyncEvent {
    fn element(&self) -> Option<&Arc<Element>> {
        match &self.subject {
            Subject::Element(element) => Some(element),
            Subject::Port(_) | Subject::Device => None,
        }
    }
}

impl Subject {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Element(one), Self::Element(two)) => Arc::ptr_eq(one, two),
            // A port event is never equal to a queued one: link down, up, down differs from down,
            // up.
            (Self::Port(_), Self::Port(_)) => false,
            (Self::Device, Self::Device) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    fn context() -> Arc<Context> {
        let context = Context::new().unwrap();
        let flags = fcntl_getfl(&*context).unwrap();
        fcntl_setfl(&*context, flags | OFlags::NONBLOCK).unwrap();
        context
    }

    fn element(address: usize) -> Arc<Element> {
        let element = Element::new();
        element.identify(address);
        element
    }

    #[test]
    fn a_repeated_event_is_queued_once_until_fetched() {
        let (context, queue_pair) = (context(), element(64));
        for _ in 0..1000 {
            context.raise(ibv_event_type::IBV_EVENT_QP_ACCESS_ERR, &queue_pair);
            context.raise(ibv_event_type::IBV_EVENT_COMM_EST, &queue_pair);
        }
        let kinds = [(); 2].map(|()| context.next_event().unwrap().kind);
        assert_eq!(
            kinds,
            [
                ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                ibv_event_type::IBV_EVENT_COMM_EST
            ]
        );
        assert!(context.next_event().is_err());
        context.acknowledge(64);
        context.acknowledge(64);
        context.withdraw(&queue_pair);
    }

    #[test]
    fn a_port_that_goes_down_twice_comes_up_between() {
        let context = context();
        let (down, up) = (
            ibv_event_type::IBV_EVENT_PORT_ERR,
            ibv_event_type::IBV_EVENT_PORT_ACTIVE,
        );
        for kind in [down, up, down] {
            context.raise_port(kind, 1);
        }
        for kind in [down, up, down] {
            assert_eq!(context.next_event().unwrap().kind, kind);
        }
    }

    #[test]
    fn events_of_a_destroyed_object_are_not_reported() {
        let (context, gone, stays) = (context(), element(64), element(128));
        context.raise(ibv_event_type::IBV_EVENT_QP_FATAL, &gone);
        context.raise(ibv_event_type::IBV_EVENT_CQ_ERR, &stays);
        context.withdraw(&gone);
        context.raise(ibv_event_type::IBV_EVENT_QP_FATAL, &gone);
        let event = context.next_event().unwrap();
        assert!(matches!(&event.subject, Subject::Element(element) if element.address() == 128));
        assert!(context.next_event().is_err());
    }
}
