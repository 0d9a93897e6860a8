use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;

use crate::completion::CompletionQueue;
use crate::context::{Context, DomainId, Element, HasUsage, ProtectionDomain, Refusal, Usage};
use crate::limits;
use crate::proto::ReceiveRequest;

use super::Full;

/// A shared receive queue (`ibv_srq`): a queue of receive requests that several queue pairs use.
pub struct SharedReceiveQueue {
    number: u32,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    xrc: Option<XrcBinding>,
    element: Arc<Element>,
    usage: Usage,
    max_segments: u32,
    state: Mutex<State>,
}

/// Additional properties of a shared receive queue for extended reliable connections (XRC,
/// `IBV_SRQT_XRC`). Requests to XRC target queue pairs consume its receives.
#[derive(Debug)]
pub struct XrcBinding {
    /// XRC domain of the queue. Only queue pairs of the same XRC domain may use the queue.
    pub domain: DomainId,
    /// Completion queue to which completions of the queue's receives are added.
    pub completion_queue: Arc<CompletionQueue>,
}

struct State {
    requests: VecDeque<ReceiveRequest>,
    capacity: u32,
    /// Number of requests below which the limit event is raised, once. 0 if no event is armed.
    limit: u32,
}

impl SharedReceiveQueue {
    /// Creates a shared receive queue with the number `number` in the protection domain `domain`.
    /// The queue has room for `capacity` requests of at most `max_segments` scatter/gather elements
    /// each. The asynchronous events of the queue arrive on `context`. `xrc` is set for an XRC
    /// shared receive queue.
    pub fn new(
        number: u32,
        (context, domain): (&Arc<Context>, &Arc<ProtectionDomain>),
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
            context: Arc::clone(context),
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

    /// Appends a receive request, which any queue pair that uses the queue may take. Fails if the
    /// queue is full.
    pub fn post(&self, request: ReceiveRequest) -> Result<(), Full> {
        let mut state = self.state.lock();
        if state.requests.len() >= state.capacity as usize {
            return Err(Full);
        }
        state.requests.push_back(request);
        Ok(())
    }

    /// Removes the oldest receive request, and returns it. Returns `None` if no request is posted.
    /// If the limit event is armed and fewer requests than the limit are left, raises the event
    /// (IBTA 10.2.9.4, `ibv_modify_srq(3)`).
    pub fn take(&self) -> Option<ReceiveRequest> {
        let mut state = self.state.lock();
        let request = state.requests.pop_front()?;
        if (state.requests.len() as u64) < u64::from(state.limit) {
            state.limit = 0;
            drop(state);
            self.context
                .raise(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, &self.element);
        }
        Some(request)
    }

    /// Changes the capacity of the queue, and the number of requests below which the limit event is
    /// raised (`ibv_modify_srq(3)`). `None` leaves a value unchanged. Fails, and changes nothing,
    /// if a new value is invalid.
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

    /// Returns the maximum number of receive requests that the queue can contain.
    pub fn capacity(&self) -> u32 {
        self.state.lock().capacity
    }

    /// Returns the limit of the shared receive queue (`srq_limit`): the event
    /// `IBV_EVENT_SRQ_LIMIT_REACHED` is raised when fewer receive requests than this are left.
    /// Returns 0 if the event is not requested.
    pub fn limit(&self) -> u32 {
        self.state.lock().limit
    }

    /// Returns the maximum number of scatter/gather elements that a receive request may have.
    pub fn max_segments(&self) -> u32 {
        self.max_segments
    }

    /// Returns the number of this shared receive queue. XRC requests name the queue by this number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the ID of the shared receive queue's protection domain. The local keys of posted
    /// receives must belong to this domain.
    pub fn domain(&self) -> DomainId {
        self.domain.id()
    }

    /// Returns the XRC domain and the completion queue of this shared receive queue, or `None` if
    /// it is not an XRC queue.
    pub fn xrc(&self) -> Option<&XrcBinding> {
        self.xrc.as_ref()
    }

    /// Returns the event record of this shared receive queue. The record counts the asynchronous
    /// events that the program has fetched and not acknowledged. [`close`](Self::close) waits until
    /// the program has acknowledged these events.
    pub fn element(&self) -> &Arc<Element> {
        &self.element
    }

    /// Closes the queue, because the program destroys it. Fails while queue pairs use the queue.
    /// Removes the queue's pending events, and waits until the program has acknowledged the fetched
    /// events.
    pub fn close(&self) -> Result<(), Refusal> {
        self.usage.close()?;
        self.context.withdraw(&self.element);
        Ok(())
    }
}

impl HasUsage for SharedReceiveQueue {
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

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;
    use crate::proto::GatherList;

    fn context() -> Arc<Context> {
        let context = Context::new().unwrap();
        fcntl_setfl(&*context, OFlags::NONBLOCK).unwrap();
        context
    }

    fn request(id: u64) -> ReceiveRequest {
        ReceiveRequest {
            id,
            segments: GatherList::new(),
            length: 0,
        }
    }

    fn queue(capacity: u32) -> Arc<SharedReceiveQueue> {
        let place = (&context(), &ProtectionDomain::new());
        SharedReceiveQueue::new(1, place, capacity, 1, None).unwrap()
    }

    /// Returns whether the limit event of `queue` was raised. If so, fetches and acknowledges the
    /// event.
    fn was_reached(queue: &SharedReceiveQueue) -> bool {
        let Ok(event) = queue.context.next_event() else {
            return false;
        };
        assert_eq!(event.kind, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
        queue.element.acknowledge(1);
        true
    }

    #[test]
    fn invalid_capacities_are_refused() {
        let (context, domain) = (context(), ProtectionDomain::new());
        let new = |capacity, segments| {
            SharedReceiveQueue::new(1, (&context, &domain), capacity, segments, None).map(drop)
        };
        assert_eq!(new(0, 1), Err(Refusal::Invalid));
        assert_eq!(new(limits::MAX_SRQ_WR + 1, 1), Err(Refusal::Invalid));
        assert_eq!(new(1, limits::MAX_SRQ_SGE + 1), Err(Refusal::Invalid));
        assert_eq!(new(limits::MAX_SRQ_WR, limits::MAX_SRQ_SGE), Ok(()));
    }

    #[test]
    fn receives_are_taken_in_order_and_limited() {
        let queue = queue(2);
        queue.post(request(1)).unwrap();
        queue.post(request(2)).unwrap();
        assert_eq!(queue.post(request(3)), Err(Full));
        assert_eq!(queue.take().map(|request| request.id), Some(1));
        assert_eq!(queue.post(request(3)), Ok(()));
    }

    #[test]
    fn the_limit_event_is_raised_once() {
        let queue = queue(8);
        for id in 0..5 {
            queue.post(request(id)).unwrap();
        }
        queue.modify(None, Some(3)).unwrap();
        assert_eq!(queue.limit(), 3);
        queue.take();
        queue.take();
        assert!(!was_reached(&queue), "three are not fewer than three");
        queue.take();
        assert!(was_reached(&queue));
        assert_eq!(queue.limit(), 0, "no longer armed");
        queue.take();
        assert!(!was_reached(&queue));
        queue.modify(None, Some(1)).unwrap();
        queue.take();
        assert!(was_reached(&queue));
    }

    #[test]
    fn a_refused_modification_changes_nothing() {
        let queue = queue(4);
        for id in 0..3 {
            queue.post(request(id)).unwrap();
        }
        queue.modify(None, Some(2)).unwrap();
        assert_eq!(
            queue.modify(Some(2), None),
            Err(Refusal::Invalid),
            "three are posted"
        );
        assert_eq!(queue.modify(Some(8), Some(9)), Err(Refusal::Invalid));
        assert_eq!(queue.modify(Some(0), None), Err(Refusal::Invalid));
        assert_eq!(
            queue.modify(Some(limits::MAX_SRQ_WR + 1), None),
            Err(Refusal::Invalid)
        );
        assert_eq!((queue.capacity(), queue.limit()), (4, 2));
        assert_eq!(queue.modify(Some(3), Some(0)), Ok(()));
        assert_eq!((queue.capacity(), queue.limit()), (3, 0));
        assert_eq!(queue.post(request(3)), Err(Full));
    }

    #[test]
    fn a_queue_in_use_cannot_be_closed() {
        let queue = queue(4);
        queue.usage().acquire().unwrap();
        assert_eq!(queue.close(), Err(Refusal::Busy));
        queue.usage().release();
        assert_eq!(queue.close(), Ok(()));
    }
}
