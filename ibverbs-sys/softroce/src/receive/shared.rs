use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;

use crate::completion::CompletionQueue;
use crate::context::{DomainId, Element, ProtectionDomain, Refusal, Shared, Usage};
use crate::limits;
use crate::proto::ReceiveRequest;

use super::Full;

/// A shared receive queue: `ibv_srq`.
pub struct SharedReceiveQueue {
    number: u32,
    domain: Arc<ProtectionDomain>,
    xrc: Option<XrcBinding>,
    element: Arc<Element>,
    usage: Usage,
    max_segments: u32,
    state: Mutex<State>,
}

/// What only an XRC shared receive queue has.
#[derive(Debug)]
pub struct XrcBinding {
    /// The XRC domain, which queue pairs that reach the queue share.
    pub domain: DomainId,
    /// Where its receives complete.
    pub completion_queue: Arc<CompletionQueue>,
}

struct State {
    requests: VecDeque<ReceiveRequest>,
    capacity: u32,
    /// Below so many requests an event is raised, once; 0: none is.
    limit: u32,
}

impl SharedReceiveQueue {
    /// A shared receive queue with this number, for `capacity` requests of `max_segments` each.
    pub fn new(
        number: u32,
        domain: &Arc<ProtectionDomain>,
        capacity: u32,
        max_segments: u32,
        xrc: Option<XrcBinding>,
    ) -> Result<Arc<Self>, Refusal> {
        check_capacity(capacity)?;
        if max_segments > limits::MAX_SRQ_SGE {
            return Err(Refusal::Invalid);
        }
        Ok(Arc::new(Self {
            number,
            domain: Arc::clone(domain),
            xrc,
            element: Element::new(),
            usage: Usage::default(),
            max_segments: max_segments.max(1),
            state: Mutex::new(State {
                requests: VecDeque::new(),
                capacity,
                limit: 0,
            }),
        }))
    }

    /// Appends a request.
    pub fn post(&self, request: ReceiveRequest) -> Result<(), Full> {
        let mut state = self.state.lock();
        if state.requests.len() >= state.capacity as usize {
            return Err(Full);
        }
        state.requests.push_back(request);
        Ok(())
    }

    /// Takes the oldest request. When fewer are left than the limit says, raises the event that was
    /// armed with it (IBTA 10.2.9.4, `ibv_modify_srq(3)`).
    pub fn take(&self) -> Option<ReceiveRequest> {
        let mut state = self.state.lock();
        let request = state.requests.pop_front()?;
        if (state.requests.len() as u64) < u64::from(state.limit) {
            state.limit = 0;
            drop(state);
            self.domain
                .context()
                .raise(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, &self.element);
        }
        Some(request)
    }

    /// Changes what is given; all of it or, when something is wrong, nothing (`ibv_modify_srq(3)`).
    pub fn modify(&self, capacity: Option<u32>, limit: Option<u32>) -> Result<(), Refusal> {
        let mut state = self.state.lock();
        let new_capacity = capacity.unwrap_or(state.capacity);
        let new_limit = limit.unwrap_or(state.limit);
        check_capacity(new_capacity)?;
        if new_limit > new_capacity || state.requests.len() > new_capacity as usize {
            return Err(Refusal::Invalid);
        }
        state.capacity = new_capacity;
        state.limit = new_limit;
        Ok(())
    }

    /// Requests there is room for.
    pub fn capacity(&self) -> u32 {
        self.state.lock().capacity
    }

    /// The limit that is armed, or 0.
    pub fn limit(&self) -> u32 {
        self.state.lock().limit
    }

    /// Segments that a request may have.
    pub fn max_segments(&self) -> u32 {
        self.max_segments
    }

    /// What XRC requests call it by.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The protection domain of its requests' memory.
    pub fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// What makes it an XRC one.
    pub fn xrc(&self) -> Option<&XrcBinding> {
        self.xrc.as_ref()
    }

    /// What asynchronous events name.
    pub fn element(&self) -> &Arc<Element> {
        &self.element
    }

    /// Ends the queue's use: refused while queue pairs have it. Takes its events back and waits
    /// until those that were fetched are acknowledged.
    pub fn close(&self) -> Result<(), Refusal> {
        self.usage.close()?;
        self.domain.context().withdraw(&self.element);
        Ok(())
    }
}

impl Shared for SharedReceiveQueue {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for SharedReceiveQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

fn check_capacity(capacity: u32) -> Result<(), Refusal> {
    if capacity == 0 || capacity > limits::MAX_SRQ_WR {
        return Err(Refusal::Invalid);
    }
    Ok(())
}
